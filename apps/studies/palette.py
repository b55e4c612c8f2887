"""How the lines of a plot differ: for the colour-blind by colour, for print by marks and dashes.

Colours are those of Okabe and Ito, "Color universal design", 2008, but grey for their yellow, which
is too faint for a line on white.
"""

COLOURS = ("black", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
MARKERS = "osD^vP*X"
DASHES = ("-", "--", "-.", ":")
