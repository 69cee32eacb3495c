"""A small line plot as SVG: logarithmic x, linear y from zero."""

from dataclasses import dataclass, field
from html import escape
from math import log10

_WIDTH, _LEFT, _RIGHT, _BOTTOM = 640, 60, 160, 40
_HEIGHT, _LOW = 360, 220
"""Of a plot by itself, and of one of several."""
_APART = 12
"""The least distance of two names."""
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
    return _page(_panel(title, lines, _HEIGHT), _HEIGHT)


def stacked(panels: dict[str, list[Line]]) -> str:
    """A plot for each title, one below the other."""
    parts = [
        f'<g transform="translate(0 {i * _LOW})">\n{_panel(title, lines, _LOW)}\n</g>'
        for i, (title, lines) in enumerate(panels.items())
    ]
    return _page("\n".join(parts), len(parts) * _LOW)


def _page(body: str, height: int) -> str:
    style = "<style>text{font:11px sans-serif}</style>"
    box = f"0 0 {_WIDTH} {height}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}">\n{style}\n{body}\n</svg>\n'


def _panel(title: str, lines: list[Line], height: int) -> str:
    xs = [log10(x) for line in lines for x, _ in line.points]
    top = max(y for line in lines for _, y in line.points) * 1.1
    low, high = min(xs), max(xs)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (log10(x) - low) / ((high - low) or 1) * (_WIDTH - _LEFT - _RIGHT)
        return round(_LEFT + across, 1), round((height - _BOTTOM) * (1 - y / top), 1)

    parts = [f'<text x="{_LEFT}" y="{height - 8}">{escape(title)}</text>']
    for step in range(5):
        value = top * step / 4
        y = place(10**low, value)[1]
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="8" y="{y + 4}">{value:.2f}</text>')
    for x, _ in lines[0].points:
        parts.append(f'<text x="{place(x, 0)[0] - 14}" y="{height - _BOTTOM + 14}">{x:,.12g}</text>')
    taken = list[float]()
    for line, colour in zip(lines, _COLOURS, strict=False):
        path = " ".join(f"{x},{y}" for x, y in (place(*point) for point in line.points))
        across, y = place(*line.points[-1])
        while any(abs(y - other) < _APART for other in taken):
            y -= _APART
        taken.append(y)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{across + 8}" y="{y + 4}" fill="{colour}">{escape(line.name)}</text>')
    return "\n".join(parts)
