"""Self-contained HTML pages: one file each, without network, server or fonts.

``frame`` makes a page around sections; ``parts`` defines the parts of sections; ``lines``, ``bars``
and ``heat_map`` draw. None of them knows what it shows.
"""
