"""The table of results, and the page that keeps it."""

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Row:
    """One measurement: ours, the peer's in the same run, and the bar that issue C sets."""

    what: str
    ours: float
    unit: str
    bar: str = ""
    peer: float | None = None
    peer_name: str = ""
    note: str = ""

    @property
    def ratio(self) -> str:
        """Ours over the peer's."""
        return "" if not self.peer else f"{self.ours / self.peer:.2f}x"


def markdown(rows: list[Row]) -> str:
    """The table as Markdown."""
    lines = ["| what | ours | bar | peer | ratio | note |", "|---|---|---|---|---|---|"]
    for row in rows:
        peer = "" if row.peer is None else f"{_number(row.peer)} {row.peer_name}"
        lines.append(f"| {row.what} | {_number(row.ours)} {row.unit} | {row.bar} | {peer} | {row.ratio} | {row.note} |")
    return "\n".join(lines)


def write(rows: list[Row]) -> None:
    """Put the table and where it was measured into the page."""
    put("measured", f"{where()}\n\n{markdown(rows)}")


def where() -> str:
    """The date of these figures, and the machine that they were measured on."""
    load = os.getloadavg()[0]
    return (
        f"Measured on {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores shared by server, load generator and peer "
        f"(one peer at a time), Python {platform.python_version()}, {platform.machine()}, load average {load:.1f} at "
        "the end."
    )


def put(part: str, text: str) -> None:
    """Replace what the page has between the comments that begin and end this part of it."""
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
