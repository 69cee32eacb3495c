"""A small line plot as SVG: logarithmic x, linear y from zero."""

from dataclasses import dataclass, field
from html import escape
from math import log10

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 360, 60, 40
_COLOURS = ("#0b6", "#06c", "#c60", "#a0a")


@dataclass
class Line:
    """A named series of points."""

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)

    def add(self, x: float, y: float) -> None:
        """One more point."""
        self.points.append((x, y))

    @property
    def first(self) -> float:
        """The first value."""
        return self.points[0][1]

    @property
    def last(self) -> float:
        """The last value."""
        return self.points[-1][1]

    @property
    def summary(self) -> str:
        """All values."""
        return ", ".join(f"{x:,.0f}: {y:.2f} ms" for x, y in self.points)


def svg(title: str, lines: list[Line]) -> str:
    """The plot."""
    xs = [log10(x) for line in lines for x, _ in line.points]
    top = max(y for line in lines for _, y in line.points) * 1.1
    low, high = min(xs), max(xs)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (log10(x) - low) / (high - low) * (_WIDTH - _LEFT - 160)
        return round(_LEFT + across, 1), round((_HEIGHT - _BOTTOM) * (1 - y / top), 1)

    parts = [f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{escape(title)}</text>']
    for step in range(5):
        value = top * step / 4
        y = place(10**low, value)[1]
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - 160}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="8" y="{y + 4}">{value:.2f}</text>')
    for x, _ in lines[0].points:
        parts.append(f'<text x="{place(x, 0)[0] - 14}" y="{_HEIGHT - _BOTTOM + 14}">{x:,.0f}</text>')
    for line, colour in zip(lines, _COLOURS, strict=True):
        path = " ".join(f"{x},{y}" for x, y in (place(*point) for point in line.points))
        end = place(*line.points[-1])
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{end[0] + 8}" y="{end[1] + 4}" fill="{colour}">{escape(line.name)}</text>')
    body = "\n".join(parts)
    style = "<style>text{font:11px sans-serif}</style>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">\n{style}\n{body}\n</svg>\n'
