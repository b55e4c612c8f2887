"""An explanation of ``psrt explain`` as a film, which is drawn as text, as SVG and as a page.

``film`` defines what is drawn: ranks, what each holds or does, and frames of messages, at places or
on lanes. A file for each kind of explanation turns it into a film: every number comes from the
explanation, none is computed again. ``layout`` finds places, ``text`` and ``drawing`` draw, and
``thin`` shortens what is too much for the page that ``page`` makes and ``template/play.js`` plays.
"""
