"""The view of `topics top`: lines of text that fit a terminal, and key bindings."""

import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from topics_cli import output
from topics_client.units import counted


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    member: str
    look: Callable[[Any], object]
    rank: int  # those of a high rank go first where it is narrow


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if 0 < value < 10 else f"{value:,.0f}"


_COLUMNS: Final = (
    _Column("HEAD", "head_seq", _count, 7),
    _Column("RECORDS", "count", _count, 2),
    _Column("SIZE", "bytes", output.size, 5),
    _Column("APPENDS/S", "appends_per_second", _rate, 1),
    _Column("READS/S", "reads_per_second", _rate, 6),
    _Column("GROUPS", "groups", lambda groups: len(groups) or "-", 8),
    _Column("LAG", "lag", _count, 3),
    _Column("READY", "ready", _count, 4),
    _Column("IN_FLIGHT", "in_flight", _count, 5),
)
_MIN_NAME_WIDTH: Final = 12
_KEYS: Final = {"r": "rate", "l": "lag", "j": "ready", "c": "records", "s": "size", "n": "name"}
_LOOKS: Final[dict[str, tuple[str, Callable[[Any], str]]]] = {
    "topics": ("topics", _count),
    "records": ("records", _count),
    "bytes": ("in all", lambda value: str(output.size(int(value)))),
    "appends_per_second": ("appends/s", _rate),
    "calls_per_second": ("calls/s", _rate),
    "watched_per_second": ("watched/s", _rate),
    "streams": ("streams", _count),
    "loop_lag_ms": ("loop lag", lambda value: f"{value:.1f}ms"),
    "memory": ("memory", lambda value: str(output.size(int(value)))),
    "uptime_ms": ("up", lambda value: str(output.duration(value))),
}


def table(found: Sequence[dict[str, Any]], width: int | None) -> list[str]:
    """A heading and a line for each row, none wider than `width`: the less important columns go first, then the end of
    long names. None: as wide as it is."""
    columns = list(_COLUMNS)
    cells = [[str(column.look(row[column.member])) for column in columns] for row in found]
    widths = [max(map(len, texts)) for texts in zip(*([column.heading for column in columns], *cells), strict=True)]
    names = [output.clean(row["topic"]) for row in found]
    longest = max(len("TOPIC"), *map(len, names), 0) if names else len("TOPIC")
    shown = set(range(len(columns)))
    if width is not None:
        while shown and min(longest, _MIN_NAME_WIDTH) + sum(widths[i] + 2 for i in shown) > width:
            shown.discard(max(shown, key=lambda i: columns[i].rank))
        longest = min(longest, width - sum(widths[i] + 2 for i in shown))
    lines = [(_cut("TOPIC", longest), [column.heading for column in columns])]
    lines += [(_cut(name, longest), texts) for name, texts in zip(names, cells, strict=True)]
    return [
        "".join([name.ljust(longest), *(f"  {texts[i].rjust(widths[i])}" for i in sorted(shown))]).rstrip()
        for name, texts in lines
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def summary(facts: Sequence[tuple[str, Any]], width: int | None) -> list[str]:
    """The facts about the server, in as many lines as they take."""
    parts = [f"{_LOOKS[name][0]} {_LOOKS[name][1](value)}" for name, value in facts]
    lines = [""]
    for part in parts:
        if lines[-1] and width is not None and len(lines[-1]) + 3 + len(part) > width:
            lines.append("")
        lines[-1] += f"{' · ' if lines[-1] else ''}{part}"
    return lines if width is None else [_cut(line, width) for line in lines]


class Screen:
    """The terminal as a whole, given back at the end. Rows that do not fit in height are left out, and counted."""

    def __init__(self, *, color: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(color_system="standard" if color else None, highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def show(
        self,
        facts: Sequence[tuple[str, Any]],
        found: Sequence[dict[str, Any]],
        sort: str,
        note: str,
        alerts: Sequence[str] = (),
    ) -> None:
        """Redraw, with `alerts` at the top and `note` below."""
        from rich.text import Text

        width, height = self._console.size
        head = summary(facts, width)
        keys = f"sorted by {sort} · keys {' '.join(_KEYS)} sort, q quits"
        room = max(1, height - len(alerts) - len(head) - 3)
        more = f"{counted(len(found) - room, 'more topic')} · " if len(found) > room else ""
        lines = table(found[:room], width)
        text = Text(no_wrap=True, overflow="crop")
        for line in alerts:
            text.append(_cut(line, width) + "\n", style="bold red")
        for line in head:
            text.append(line + "\n", style="dim")
        text.append(lines[0] + "\n", style="bold")
        for line, row in zip(lines[1:], found[:room], strict=True):
            text.append(line + "\n", style="" if row["appends_per_second"] or row["reads_per_second"] else "dim")
        text.append(_cut(output.clean(note) or more + keys, width), style="red" if note else "dim")
        self._live.update(text, refresh=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.__exit__(kind, error, at)


@contextmanager
def keyboard() -> Iterator[Callable[[float], str]]:
    """A function that waits the given seconds for a key: `quit`, an order of SORTS, or empty if no key was pressed.

    Without a terminal to read from, or where terminals are none of Unix, it only waits.
    """
    from time import sleep

    def wait(seconds: float) -> str:
        sleep(seconds)
        return ""

    if sys.stdin is None or not sys.stdin.isatty():
        yield wait
        return
    try:
        import termios
        import tty
    except ModuleNotFoundError:
        yield wait
        return
    number = sys.stdin.fileno()

    def wait_for_key(seconds: float) -> str:
        if not select.select([number], [], [], seconds)[0]:
            return ""
        key = os.read(number, 1).decode(errors="replace")
        return "quit" if key in ("q", "") else _KEYS.get(key, "")

    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield wait_for_key
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
