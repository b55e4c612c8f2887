"""A canvas that turns shapes into SVG text. Knows nothing about collectives."""

from __future__ import annotations

import math
from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from psrt.core.files import write_text

#: Fonts of most systems, with Greek letters and arrows.
_FONT = "'DejaVu Sans', 'Helvetica Neue', Arial, sans-serif"
#: Mean width of a character in units of the font size, to make room for texts.
_CHARACTER = 0.62


def text_width(text: str, size: float) -> float:
    """Return the approximate width of a text, in pixels."""
    return len(text) * size * _CHARACTER


#: Colours of texts, of secondary texts, and of guide lines.
INK, SOFT, RULE = "#222222", "#555555", "#E3E6EA"
#: The colours of light pages, by Okabe and Ito, which colour-blind readers can distinguish.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#B5568A", "#C28400", "#3F9FD8", "#555B63")


def tint(style: int, strength: float = 1.0) -> str:
    """Return a colour of the palette on white.

    Args:
        style: its number.
        strength: how strong it is, from 0 to 1.

    >>> tint(0), tint(0, 0.5)
    ('#0072B2', '#80B8D8')
    """
    colour = PALETTE[style % len(PALETTE)]
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - strength * (255 - it)):02X}" for it in parts)


class Canvas:
    """Shapes in the order in which they are painted, in pixels from the top left.

    Colours are as SVG names them, ``none`` or ``#rrggbb``; ``stroke`` is that of an outline.

    Args:
        width: of the picture.
        height: of the picture.
        title: its title, which browsers show.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width = width
        self.height = height
        self._title = title
        self._shapes: list[str] = []

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        stroke: str = "none",
        line: float = 1.0,
        dashed: bool = False,
        radius: float = 0.0,
    ) -> None:
        """Draw a rectangle.

        Args:
            x: of its left side.
            y: of its top.
            width: to the right.
            height: downwards.
            fill: colour inside.
            stroke: colour of the outline.
            line: width of the outline.
            dashed: whether the outline is dashed.
            radius: of its corners.
        """
        dash = ' stroke-dasharray="2 2"' if dashed else ""
        self._shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="{radius:g}" fill="{fill}" stroke="{stroke}" stroke-width="{line:g}"{dash}/>'
        )

    def circle(
        self, x: float, y: float, radius: float, *, fill: str, stroke: str, title: str = ""
    ) -> None:
        """Draw a disc around (x, y); browsers show its title under the cursor."""
        inside = f"><title>{escape(title)}</title></circle>" if title else "/>"
        self._shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{stroke}"'
            f"{inside}"
        )

    def line(
        self, x: float, y: float, to_x: float, to_y: float, *, stroke: str, width: float = 1.0
    ) -> None:
        """Draw a line from (x, y) to (to_x, to_y)."""
        self._shapes.append(
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" '
            f'stroke="{stroke}" stroke-width="{width:g}"/>'
        )

    def curve(
        self, points: Iterable[tuple[float, float]], *, stroke: str, width: float = 1.6,
        dashes: str = "",
    ) -> None:  # fmt: skip
        """Draw straight lines from point to point.

        Args:
            points: (x, y) of each.
            stroke: colour.
            width: of the line.
            dashes: lengths of dashes and gaps; empty for a solid line.
        """
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._shapes.append(
            f'<path d="M{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}" '
            f'stroke-linejoin="round"{dash}/>'
        )

    def area(
        self, points: Iterable[tuple[float, float]], *, fill: str, opacity: float = 1.0
    ) -> None:
        """Fill a polygon.

        Args:
            points: (x, y) of each corner.
            fill: colour.
            opacity: from 0, invisible, to 1.
        """
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._shapes.append(f'<path d="M{path}z" fill="{fill}" fill-opacity="{opacity:.2f}"/>')

    def tiles(
        self, corners: Iterable[tuple[float, float]], width: float, height: float, *, fill: str,
        opacity: float = 1.0,
    ) -> None:  # fmt: skip
        """Fill rectangles of one size and colour.

        Args:
            corners: (x, y) of the upper left of each.
            width: to the right.
            height: downwards.
            fill: colour.
            opacity: from 0, invisible, to 1.
        """
        path = "".join(
            f"M{x:.1f} {y:.1f}h{width:.2f}v{height:.2f}h{-width:.2f}z" for x, y in corners
        )
        self._shapes.append(f'<path d="{path}" fill="{fill}" fill-opacity="{opacity:.2f}"/>')

    def arrow(
        self, x: float, y: float, to_x: float, to_y: float, *, stroke: str, width: float = 1.6
    ) -> None:
        """Draw a line with a head; the head is a polygon, since not all viewers show markers."""
        angle = math.atan2(to_y - y, to_x - x)
        head = 5 + 2 * width
        neck_x, neck_y = to_x - head * math.cos(angle), to_y - head * math.sin(angle)
        side_x, side_y = 0.42 * head * math.sin(angle), -0.42 * head * math.cos(angle)
        self.line(x, y, neck_x, neck_y, stroke=stroke, width=width)
        self._shapes.append(
            f'<polygon points="{to_x:.1f},{to_y:.1f} {neck_x + side_x:.1f},{neck_y + side_y:.1f} '
            f'{neck_x - side_x:.1f},{neck_y - side_y:.1f}" fill="{stroke}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12.0,
        fill: str = "#222222",
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        """Write a text.

        Args:
            x: of its ``anchor``.
            y: of its vertical centre.
            text: is escaped.
            size: of the font.
            fill: colour.
            anchor: ``start``, ``middle`` or ``end`` of the text.
            bold: whether it is bold.
        """
        weight = ' font-weight="bold"' if bold else ""
        # The baseline is a third of the size below the centre.
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y + 0.35 * size:.1f}" font-size="{size:g}" fill="{fill}" '
            f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def upright(self, x: float, y: float, text: str, *, size: float, fill: str) -> None:
        """Write a text that runs upwards, around its middle (x, y)."""
        self._shapes.append(
            f'<text transform="translate({x + 0.35 * size:.1f} {y:.1f}) rotate(-90)" '
            f'font-size="{size:g}" fill="{fill}" text-anchor="middle">{escape(text)}</text>'
        )

    def tag(self, x: float, y: float, text: str, *, fill: str, size: float = 10.0) -> None:
        """Write a text on a white ground, so that lines behind it do not cross it."""
        width = text_width(text, size) + 6
        self.rect(x - width / 2, y - size * 0.7, width, size * 1.4, fill="white", radius=3)
        self.text(x, y, text, size=size, fill=fill)

    def as_text(self) -> str:
        """Return the file's contents."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:.0f}" '
            f'height="{self.height:.0f}" viewBox="0 0 {self.width:.0f} {self.height:.0f}" '
            f"font-family={quoteattr(_FONT)}>\n<title>{escape(self._title)}</title>\n"
            f'<rect width="100%" height="100%" fill="white"/>\n'
            + "\n".join(self._shapes)
            + "\n</svg>\n"
        )

    def inline(self) -> str:
        """Return an element for a page of HTML, as wide as there is room, on the page's ground."""
        return (
            f'<svg viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" '
            f"aria-label={quoteattr(self._title)} font-family={quoteattr(_FONT)}>"
            + "".join(self._shapes)
            + "</svg>"
        )

    def save(self, path: str) -> None:
        """Write the file.

        Raises:
            ConfigError: if it cannot be written.
        """
        write_text(path, self.as_text())


def legend_entry(canvas: Canvas, x: float, y: float, text: str, fill: str) -> float:
    """Draw an entry of a legend, and return the position of the next one."""
    canvas.rect(x, y - 8, 24, 16, fill=fill, stroke=RULE)
    canvas.text(x + 31, y, text, size=11, anchor="start", fill=SOFT)
    return x + legend_width(text)


def legend_width(text: str) -> float:
    """Return the width of such an entry."""
    return 31 + text_width(text, 11) + 22
