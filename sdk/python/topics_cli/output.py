"""Output of subcommands: JSON lines for programs, tables for people."""

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

from topics_client.units import counted as counted  # for all commands
from topics_client.units import human_size

_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # would move the cursor, or worse
_BETWEEN: Final = "  "  # the columns of a table
_MIN_CUT_WIDTH: Final = 10  # characters of a text that is cut
_COLORS: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


def add_arguments(parser: argparse.ArgumentParser, *, table: bool = True) -> None:
    """`--json` and `--color`; with `table` also `--no-headers`."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object per line")
    if table:
        group.add_argument("--no-headers", action="store_true", help="print tables without headings")
    group.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="use colors; auto: on a terminal unless NO_COLOR is set (default: auto)",
    )


def line(value: object) -> None:
    """One JSON value, compact as in /v0, in a line."""
    import json

    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def raw_lines(texts: Iterable[bytes]) -> None:
    """Lines of bytes, unchanged, written at once; after earlier output."""
    sys.stdout.flush()
    for text in texts:
        sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()


def rows(
    arguments: argparse.Namespace,
    found: Iterable[Mapping[str, Any]],
    shown: Mapping[str, Callable[[Any], object] | None],
    headings: Sequence[str] = (),
) -> int:
    """Print rows, as JSON lines while they come, or as a table of those members that `shown` names, in its order.

    Each has a function that formats the value for people, or None. `headings` replace the members' names. Returns the
    number of rows.
    """
    if arguments.json:
        count = 0
        for row in found:
            line(row)
            count += 1
        return count
    cells = [[_cell(row.get(name), look) for name, look in shown.items()] for row in found]
    table(headings or list(shown), cells, headers=not arguments.no_headers, color=colored(arguments))
    return len(cells)


def table(
    names: Sequence[str],
    cells: Sequence[Sequence[object]],
    *,
    headers: bool = True,
    color: bool = False,
    heading: Callable[[str], str] = str.upper,
) -> None:
    """Cells under their names: text to the left, numbers to the right. Nothing where there is no row.

    A terminal gets lines as wide as it is (COLUMNS says otherwise), with the longest texts cut; pipes and files get
    all of it.
    """
    from shutil import get_terminal_size

    width = get_terminal_size().columns if sys.stdout.isatty() else None
    for text in table_lines(names, cells, headers=headers, color=color, width=width, heading=heading):
        print(text)


def table_lines(
    names: Sequence[str],
    cells: Sequence[Sequence[object]],
    *,
    headers: bool = True,
    color: bool = False,
    width: int | None = None,
    heading: Callable[[str], str] = str.upper,
) -> Iterable[str]:
    """The lines of `table`, no longer than `width` if texts can be cut so far; numbers are whole always."""
    if not cells:
        return
    columns: list[list[str]] = []
    numeric = []
    for number, name in enumerate(names):
        values = [row[number] for row in cells]
        numeric.append(all(isinstance(value, int | float | Measure | None) for value in values))
        columns.append(
            [clean(heading(name))] * headers + [clean("-" if value is None else str(value)) for value in values]
        )
    widths = [max(map(len, column)) for column in columns]
    if width is not None:
        minimum = [
            each if right else min(each, max(_MIN_CUT_WIDTH, len(name)))
            for name, each, right in zip(names, widths, numeric, strict=True)
        ]
        widths = _fitting(widths, minimum, width - len(_BETWEEN) * (len(widths) - 1))
    columns = [
        [_cut(text, width).rjust(width) if right else _cut(text, width).ljust(width) for text in column]
        for column, width, right in zip(columns, widths, numeric, strict=True)
    ]
    for number, row in enumerate(zip(*columns, strict=True)):
        text = _BETWEEN.join(row).rstrip()
        yield paint(text, "bold") if color and headers and number == 0 else text


def _fitting(widths: Sequence[int], minimum: Sequence[int], room: int) -> list[int]:
    """The widths, the largest of them less, so that they fit into `room`, or as near as `minimum` allows."""
    found = list(widths)
    while sum(found) > room:
        widest = max(range(len(found)), key=lambda number: (found[number] > minimum[number], found[number]))
        if found[widest] <= minimum[widest]:
            break
        found[widest] -= 1
    return found


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def sections(arguments: argparse.Namespace, found: Mapping[str, Mapping[str, object]]) -> None:
    """Facts under headings, a line for each; the one without a heading stands first."""
    width = max((len(name) for facts in found.values() for name in facts), default=0)
    for heading, facts in found.items():
        if heading:
            print(f"\n{title(arguments, heading)}")
        for name, value in facts.items():
            print(f"{'  ' * bool(heading)}{name:<{width}}  {clean('-' if value is None else str(value))}")


def title(arguments: argparse.Namespace, heading: str) -> str:
    """A heading, bold where colours are wanted."""
    return paint(heading, "bold") if colored(arguments) else heading


def note(text: str) -> None:
    """One line on stderr, for people."""
    print(clean(text), file=sys.stderr)


def listed(**numbers: int) -> str:
    """Numbers of several things, each named in the singular: `1 topic, 3 records`."""
    return ", ".join(counted(number, noun) for noun, number in numbers.items())


class Measure(str):
    """A number with its unit, which stands to the right in a table."""

    __slots__ = ()


def size(count: int | None) -> Measure | None:
    """Bytes for people: 512B, 1.5KiB, 20MiB."""
    return None if count is None else Measure(human_size(count))


def duration(ms: float | None) -> Measure | None:
    """A length of time for people: 250ms, 12s, 5m, 3h, 2d."""
    if ms is None:
        return None
    if ms < 1000:
        return Measure(f"{ms:.0f}ms")
    value = ms / 1000
    for unit, length in (("s", 120), ("m", 120), ("h", 48)):
        if value < length:
            return Measure(f"{int(value)}{unit}")
        value /= {"s": 60, "m": 60, "h": 24}[unit]
    return Measure(f"{int(value)}d")


def ago(ts_ms: int | None) -> str:
    """Return how long ago a time was, in words: `2 days ago`, `5 min ago`, `just now`; `never` for none."""
    if ts_ms is None:
        return "never"
    seconds = (time.time() * 1e3 - ts_ms) / 1e3
    if seconds < 1:
        return "just now"
    for name, length, maximum in (("s", 1, 120), ("min", 60, 7200), ("hour", 3600, 172_800)):
        if seconds < maximum:
            number = int(seconds // length)
            return f"{number} {name}{'s' if name == 'hour' and number != 1 else ''} ago"
    return f"{counted(int(seconds // 86_400), 'day')} ago"


def age(ts_ms: int | None) -> Measure | None:
    """The time since a moment, for people."""
    return None if ts_ms is None else duration(max(0.0, time.time() * 1e3 - ts_ms))


def until(ts_ms: int | None) -> Measure | None:
    """The time until a moment, for people; 0ms once it has passed."""
    return None if ts_ms is None else duration(max(0.0, ts_ms - time.time() * 1e3))


def colored(arguments: argparse.Namespace, stream: TextIO | None = None) -> bool:
    """Return True if colors are enabled for the stream (default: stdout)."""
    if arguments.color != "auto":
        return bool(arguments.color == "always")
    out = sys.stdout if stream is None else stream
    return out is not None and out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, color: str) -> str:
    """The text in one of the colours `bold`, `dim`, `red`, `green`, `yellow`, `blue`, `cyan`."""
    return f"\x1b[{_COLORS[color]}m{text}\x1b[0m"


def clean(text: str) -> str:
    """Text that may come from anyone, without characters that would do something to a terminal, or end the line."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def _cell(value: Any, look: Callable[[Any], object] | None) -> object:
    return value if look is None else look(value)
