"""Format strings: `--format '{seq} {tag}\\t{value}\\n'`."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from topics_cli import output
from topics_cli.recordtext import value_line
from topics_cli.times import shown

if TYPE_CHECKING:
    from topics_client.models import Record

FIELDS: "Final[Mapping[str, Callable[[Record], str | int | bytes]]]" = {
    "topic": lambda record: record.topic,
    "partition": lambda record: record.partition,
    "seq": lambda record: record.seq,
    "time": lambda record: shown(record.ts_ms),
    "ts": lambda record: record.ts_ms,
    "tag": lambda record: record.tag or "",
    "node": lambda record: record.node or "",
    "meta": lambda record: record.meta_data.decode(),
    "size": lambda record: len(record.data),
    "value": lambda record: value_line(record).decode(),
    "raw": lambda record: record.data,
}
"""The fields of a format, with their values of a record."""

HELP: Final = """\
A format with fields in braces is printed for each record, without an implicit line end: {topic},
{partition}, {seq}, {time} (ISO 8601), {ts} (ms since 1970), {tag}, {node}, {meta}, {size} (bytes), {value} (as value
prints it), {raw} (its bytes). \\n, \\t, \\r, \\0, \\\\ and \\xHH are known, {{ and }} are braces, and a field takes a
width as in Python: {seq:>8}.
"""

# Field names of kcat, rpk, nats and redis-cli, for suggestions.
_ELSEWHERE: Final = {
    **dict.fromkeys(("offset", "id", "sequence", "o"), "seq"),
    **dict.fromkeys(("key", "k", "subject"), "tag"),
    **dict.fromkeys(("data", "payload", "message", "body", "s"), "value"),
    **dict.fromkeys(("timestamp", "ts_ms"), "ts"),
    **dict.fromkeys(("headers", "header"), "meta"),
    **dict.fromkeys(("length", "len", "bytes"), "size"),
}
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPED: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_SAMPLE: Final = {"partition": 0, "seq": 0, "ts": 0, "size": 0}


class Template:
    """A format string: called with a record it returns bytes; with `clean` without control characters of a terminal."""

    def __init__(self, text: str) -> None:
        """Raises ValueError with the fault."""
        self._parts: list[bytes | tuple[str, str]] = []
        try:
            parts = list(Formatter().parse(text))
        except ValueError:
            raise ValueError("literal braces are doubled: {{ or }}") from None
        for literal, field, spec, conversion in parts:
            if literal:
                self._parts.append(_literal(literal))
            if field is not None:
                self._parts.append(_field(field, spec or "", conversion))

    def __call__(self, record: "Record", *, clean: bool = False) -> bytes:
        return b"".join(
            [part if isinstance(part, bytes) else _filled(record, *part, clean=clean) for part in self._parts]
        )


def argument(names: Iterable[str]) -> "Callable[[str], str | Template]":
    """A type for argparse: one of the names, or a format string."""
    known = tuple(names)

    def read(text: str) -> str | Template:
        if text in known:
            return text
        if "{" not in text:
            raise argparse.ArgumentTypeError(
                f"{text!r} is neither {', '.join(known)} nor a format, such as '{{seq}} {{value}}\\n'"
            )
        try:
            return Template(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _filled(record: "Record", name: str, spec: str, *, clean: bool) -> bytes:
    value = FIELDS[name](record)
    if isinstance(value, bytes):
        return value
    if clean and isinstance(value, str):
        value = output.clean(value)
    return format(value, spec).encode()


def _literal(text: str) -> bytes:
    def escaped(found: "re.Match[str]") -> str:
        name = found[1]
        if name[:1] == "x" and len(name) == 3:
            return chr(0xDC00 + int(name[1:], 16)) if name[1:] >= "80" else chr(int(name[1:], 16))
        if name not in _ESCAPED:
            raise ValueError(f"unknown escape \\{name}; known: \\n \\t \\r \\0 \\\\ \\xHH")
        return _ESCAPED[name].decode()

    return _ESCAPE.sub(escaped, text).encode(errors="surrogateescape")


def _field(name: str, spec: str, conversion: str | None) -> tuple[str, str]:
    if name not in FIELDS:
        from difflib import get_close_matches

        near = _ELSEWHERE.get(name) or next(iter(get_close_matches(name, FIELDS, 1)), None)
        guess = f"did you mean {{{near}}}? " if near else ""
        raise ValueError(f"unknown field {{{name}}}; {guess}known: {' '.join(f'{{{each}}}' for each in FIELDS)}")
    if conversion:
        raise ValueError(f"{{{name}!{conversion}}}: a field takes a width, as in {{seq:>8}}, and no conversion")
    sample: Any = _SAMPLE.get(name, "")
    try:
        if spec and name == "raw":
            raise ValueError
        format(sample, spec)
    except ValueError:
        raise ValueError(f"{{{name}:{spec}}}: {spec!r} is not a width for {{{name}}}") from None
    return name, spec
