"""Generates the encoder of one message: a function of straight-line Python that writes a dict as pieces of a frame.

Fields missing in the dict get their defaults, members missing in a version are ignored: one dict serves all versions.
An encoder raises ValueError for None in a field that can't be null, and struct.error for a number out of range.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from topics_kafka.protocol.schema import FIXED, Field
from topics_kafka.protocol.source import SMALL, Source

Buffer = bytes | bytearray | memoryview
Encoder = Callable[[Mapping[str, Any], list[Buffer], list[int]], None]
"""(message, pieces, cuts): appends pieces, and to cuts the indexes of pieces that stay separate buffers."""

MANY: Final = 4096
"""Number of pieces at which they are joined early: a small piece takes ten times its bytes in memory."""
LARGE: Final = 8192
"""Size in bytes from which records are passed on uncopied."""


def written_varint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if 0x80 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def size_of(records: Buffer | Sequence[Buffer]) -> int:
    return sum(map(len, records)) if isinstance(records, list | tuple) else len(records)


def put(records: Buffer | Sequence[Buffer], pieces: list[Buffer], cuts: list[int]) -> None:
    """Append records, given as one buffer or as several."""
    for piece in records if isinstance(records, list | tuple) else (records,):
        if len(piece) >= LARGE:
            cuts.append(len(pieces))
        pieces.append(piece)


def compacted(pieces: list[Buffer], cuts: list[int], start: int) -> int:
    """Join the pieces from `start` on that follow the last cut. Returns the new number of pieces."""
    start = max(start, cuts[-1] + 1) if cuts else start
    pieces[start:] = [b"".join(pieces[start:])]
    return len(pieces)


def gathered(pieces: list[Buffer], cuts: list[int]) -> list[bytes | memoryview]:
    """Join small neighbouring pieces."""
    if not cuts:
        return [b"".join(pieces)]
    out: list[bytes | memoryview] = []
    start = 0
    for cut in cuts:
        if cut > start:
            out.append(b"".join(pieces[start:cut]))
        piece = pieces[cut]
        out.append(memoryview(piece) if isinstance(piece, bytearray) else piece)
        start = cut + 1
    if start < len(pieces):
        out.append(b"".join(pieces[start:]))
    return out


HELPERS: Final = {
    "varint": written_varint,
    "byte": [bytes([value]) for value in range(128)],
    "size": size_of,
    "put": put,
    "compacted": compacted,
    "pack": struct.pack,
    "zero": bytes(16),
}


class EncoderSource:
    """Writes the encoder of one message.

    In the source, `d0` is the message and `g0` its `get`, `d1` a struct in it and so on; `o0` are the pieces and `w0`
    their `append`, `o1` those of a tagged field; `s` is the number of joined pieces. `x` is the value to write next,
    `n` its length on the wire.
    """

    def __init__(self, title: str, fields: tuple[Field, ...], flexible: bool) -> None:
        self.source = Source(title, HELPERS)
        self.flexible = flexible
        self._run: list[tuple[str, str]] = []
        self._write = "w0"
        with self.source.block("def compiled(d0,o0,cuts):"):
            self.source.line("w0=o0.append;s=0")
            self._struct(fields, 0)
            self._flush()

    def _flush(self) -> None:
        if self._run:
            self.source.line(f"{self._write}({self._packed()})")
            self._run.clear()

    def _packed(self, *more: tuple[str, str]) -> str:
        """The expression that packs the run and these values."""
        run = [*self._run, *more]
        codes = "".join(code for _, code in run)
        if codes in ("x", "16s"):
            return "byte[0]" if codes == "x" else run[0][0]
        return f"{self.source.format('pack', codes)}({','.join(expression for expression, _ in run if expression)})"

    def _length(self, code: str) -> None:
        """Write the run, and `n` after it."""
        if not self.flexible:
            self._run.append(("n", code))
            self._flush()
        elif self._run:
            long = self._packed()
            self.source.line(f"if n<128:{self._write}({self._packed(('n', 'B'))})")
            self.source.line(f"else:{self._write}({long});{self._write}(varint(n))")
            self._run.clear()
        else:
            self.source.line(f"{self._write}(byte[n] if n<128 else varint(n))")

    def _struct(self, fields: tuple[Field, ...], depth: int) -> None:
        if fields:
            self.source.line(f"g{depth}=d{depth}.get")
        for field in fields:
            if field.tag is None:
                self._field(field, depth, self._value(field, depth))
        if self.flexible:
            tagged = sorted((field for field in fields if field.tag is not None), key=lambda field: field.tag or 0)
            if tagged:
                self._tags(tagged, depth)
            else:
                self._run.append(("", "x"))  # no tagged fields: one zero byte

    def _value(self, field: Field, depth: int) -> str:
        default = field.literal
        if field.array and default == "[]":
            default = "()"
        elif field.struct and not field.array and not field.nullable:
            default = "{}"
        return f"g{depth}({field.name!r})" if default == "None" else f"g{depth}({field.name!r},{default})"

    def _tags(self, tagged: list[Field], depth: int) -> None:
        """Write the tagged fields that differ from their defaults."""
        line, block = self.source.line, self.source.block
        self._flush()
        write = self._write
        value, tags = f"u{depth}", f"tags{depth}"
        present = [
            f"g{depth}({field.name!r})" + ("" if field.array or field.struct else " is not None") for field in tagged
        ]
        with block(f"if {' or '.join(present)}:"):
            line(f"{tags}=[]")
            for field, there in zip(tagged, present, strict=True):
                line(f"{value}=g{depth}({field.name!r})")
                differs = "" if field.array else f" and {value}!={field.literal}"
                with block(f"if {there}{differs}:"):
                    self._tag(field, depth, value)
            line(f"{write}(varint(len({tags})));{write}(b''.join({tags}))")
        line(f"else:{write}(byte[0])")

    def _tag(self, field: Field, depth: int, value: str) -> None:
        """Write one tagged field to a separate list: its size precedes it."""
        outer, inner = self._write, f"w{depth + 1}"
        self.source.line(f"o{depth + 1}=[];{inner}=o{depth + 1}.append")
        self._write = inner
        self._field(field, depth, value)
        self._flush()
        self._write = outer
        self.source.line(f"x=b''.join(o{depth + 1})")
        self.source.line(f"tags{depth}.append(varint({field.tag})+varint(len(x))+x)")

    def _field(self, field: Field, depth: int, value: str) -> None:
        if field.array:
            self._array(field, depth, value)
        elif field.struct:
            self._plain_struct(field, depth, value)
        elif field.type == "uuid":
            self._run.append((f"(zero if (u:={value}) is None else u.bytes)", "16s"))
        elif field.fixed:
            self._run.append((value, field.fixed))
        else:
            self.source.line(f"x={value}")
            self._sequence(field)

    def _sequence(self, field: Field) -> None:
        """Write `x`, a string or bytes."""
        line = self.source.line
        more = "+1" if self.flexible else ""
        prepared = {
            "string": f"x=x.encode();n=len(x){more}",
            "bytes": f"n=len(x){more}",
            "records": f"n=size(x){more}",
        }[field.type]
        self._null(field, "x=b''")
        line(f"else:{prepared}")
        self._length("h" if field.type == "string" else "i")
        line("if x:put(x,o0,cuts)" if field.type == "records" else f"if x:{self._write}(x)")

    def _null(self, field: Field, replacement: str) -> None:
        """Handle None in `x`: write null, or raise if the field is not nullable."""
        if field.nullable:
            self.source.line(f"if x is None:n={0 if self.flexible else -1};{replacement}")
        else:
            self.source.line(f"if x is None:raise ValueError('{field.name} is None')")

    def _plain_struct(self, field: Field, depth: int, value: str) -> None:
        line = self.source.line
        inner = f"d{depth + 1}"
        self._flush()  # the run may hold values of the struct that `inner` still is
        line(f"{inner}={value}")
        if not field.nullable:
            self._struct(field.fields, depth + 1)
            return
        line(f"if {inner} is None:{self._write}(b'\\xff')")
        with self.source.block("else:"):
            self._run.append(("1", "b"))
            self._struct(field.fields, depth + 1)
            self._flush()

    def _array(self, field: Field, depth: int, value: str) -> None:
        line = self.source.line
        line(f"x={value}")
        self._null(field, "x=()")
        line(f"else:n=len(x){'+1' if self.flexible else ''}")
        self._length("i")
        code = FIXED.get(field.type)
        if code is not None:
            many = self.source.numbers("pack", code)
            line("n=len(x)")
            line(f"if n:{self._write}({many}[n](*x) if n<{SMALL} else pack(f'>{{n}}{code}',*x))")
        elif field.struct:
            with self.source.block(f"for d{depth + 1} in x:"):
                self._struct(field.fields, depth + 1)
                self._flush()
                if depth == 0 and self._write == "w0":
                    line(f"if len(o0)-s>{MANY}:s=compacted(o0,cuts,s)")
        else:
            with self.source.block("for x in x:"):
                self._sequence(field.element)


def encoder(title: str, fields: tuple[Field, ...], flexible: bool) -> Encoder:
    """The encoder of a message with these fields."""
    return EncoderSource(title, fields, flexible).source.build()
