"""Pages of HTML that stand alone: one file each, which needs no network, no server and no fonts.

``frame`` is a page around sections; ``parts`` is what sections are made of; ``lines``, ``bars`` and
``heat_map`` draw. None of them knows what it shows.
"""
