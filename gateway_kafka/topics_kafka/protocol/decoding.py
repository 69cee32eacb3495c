"""Generates the decoder of one message: a function of straight-line Python that reads a frame into a dict.

A decoder reads neighbouring fields of constant size at once, with the length of the string or array that follows them.
It never allocates memory because of a length alone: every length is compared with the rest of the frame, and the
elements of all arrays of a message count against `MAX_ELEMENTS`. It may raise any ordinary exception on malformed
bytes: the codec turns them into `MalformedError`.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from topics_kafka.protocol.errors import MalformedError
from topics_kafka.protocol.schema import FIXED, Field
from topics_kafka.protocol.source import SMALL, Source

Message = dict[str, Any]
Decoder = Callable[["bytes | memoryview", int, int], Message]
"""(buffer, position of the message, end of the buffer) -> the message. Bytes after the message are ignored."""

MAX_ELEMENTS: Final = 65_536
"""Maximum number of elements in all arrays of a message: 2 bytes on the wire can take 250 in memory, and one number can
add hundreds to the answer."""


def varint(buffer: bytes | memoryview, position: int, value: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint whose first byte was `value`. Returns (number, position)."""
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0x7FFFFFFF:
                break
            return value, position
    raise MalformedError("a varint above 31 bits")


def skip_tags(buffer: bytes | memoryview, position: int, end: int, count: int) -> int:
    """The position after a section of tagged fields, whose first byte was `count`."""
    if count > 0x7F:
        count, position = varint(buffer, position, count)
    for _ in range(count):
        tag = buffer[position]
        position += 1
        if tag > 0x7F:
            tag, position = varint(buffer, position, tag)
        size = buffer[position]
        position += 1
        if size > 0x7F:
            size, position = varint(buffer, position, size)
        position += size
        if position > end:
            raise MalformedError("a tagged field longer than the frame")
    return position


@lru_cache(maxsize=4096)
def uuid_of(raw: bytes) -> UUID | None:
    """A UUID, or None for the all-zero one. Cached, since topic ids repeat and creating a UUID is slow."""
    return UUID(bytes=raw) if raw.strip(b"\0") else None


def min_size(field: Field, flexible: bool) -> int:
    """The minimum number of bytes that a field takes."""
    if field.fixed:
        return struct.calcsize(">" + field.fixed)
    if field.struct and not field.array and not field.nullable:
        members = sum(min_size(member, flexible) for member in field.fields if member.tag is None)
        return members + (1 if flexible else 0)
    if flexible or (field.struct and not field.array):
        return 1
    return 2 if field.type == "string" and not field.array else 4


HELPERS: Final = {
    "Malformed": MalformedError,
    "varint": varint,
    "skip_tags": skip_tags,
    "uuid": uuid_of,
    "view": memoryview,
    "unpack_from": struct.unpack_from,
}


class DecoderSource:
    """Writes the decoder of one message.

    In the source, `b` is the buffer, `p` the position, `e` the end, `left` the number of elements still allowed; `n` is
    the length just read, `q` the end of its span. A field is a variable named after it and the depth of its struct.
    """

    def __init__(self, title: str, fields: tuple[Field, ...], flexible: bool) -> None:
        self.source = Source(title, HELPERS)
        self.flexible = flexible
        self._run: list[tuple[str, str]] = []
        with self.source.block("def compiled(b,p,e):"):
            self.source.line(f"left={MAX_ELEMENTS}")
            self.source.line(f"return {self._struct(fields, 0)}")

    def _read(self, variable: str, code: str) -> None:
        """Add a value of constant size to the run that is read at once."""
        self._run.append((variable, code))

    def _flush(self) -> None:
        if not self._run:
            return
        codes = "".join(code for _, code in self._run)
        targets = ",".join(variable for variable, _ in self._run)
        if codes == "B":
            self.source.line(f"{targets}=b[p];p+=1")
        else:
            unpack = self.source.format("unpack_from", codes)
            self.source.line(f"{targets},={unpack}(b,p);p+={struct.calcsize('>' + codes)}")
        self._run.clear()

    def _length(self, code: str) -> None:
        """Read a length into `n`: -1 is null."""
        self._read("n", "B" if self.flexible else code)
        self._flush()
        if self.flexible:
            self.source.line("if n>127:n,p=varint(b,p,n)")
            self.source.line("n-=1")

    def _struct(self, fields: tuple[Field, ...], depth: int) -> str:
        """Read a struct. Returns the expression that creates its dict."""
        for field in fields:
            if field.tag is None:
                self._field(field, depth)
        tagged = [field for field in fields if field.tag is not None]
        if self.flexible:
            self._read("t", "B")
            self._flush()
            self._tags(tagged, depth)
        self._flush()
        values = (
            f"uuid({self._variable(field, depth)})"
            if field.type == "uuid" and field.tag is None
            else self._variable(field, depth)
            for field in fields
        )
        return "{" + ",".join(f"{field.name!r}:{value}" for field, value in zip(fields, values, strict=True)) + "}"

    def _variable(self, field: Field, depth: int) -> str:
        return f"{field.name}_{depth}"

    def _tags(self, tagged: list[Field], depth: int) -> None:
        line, block = self.source.line, self.source.block
        if not tagged:
            line("if t:p=skip_tags(b,p,e,t)")
            return
        for field in tagged:
            line(f"{self._variable(field, depth)}={field.literal}")
        stop = f"q{depth}"
        with block("if t:"):
            line("if t>127:t,p=varint(b,p,t)")
            with block("for _ in range(t):"):
                line("k=b[p];p+=1")
                line("if k>127:k,p=varint(b,p,k)")
                line("n=b[p];p+=1")
                line("if n>127:n,p=varint(b,p,n)")
                line(f"{stop}=p+n")
                line(f"if {stop}>e:raise Malformed('a tagged field longer than the frame')")
                for position, field in enumerate(tagged):
                    with block(f"{'elif' if position else 'if'} k=={field.tag}:"):
                        self._field(field, depth)
                        self._flush()
                        if field.type == "uuid":
                            line(f"{self._variable(field, depth)}=uuid({self._variable(field, depth)})")
                        line(f"if p!={stop}:raise Malformed('the size of tagged field {field.name}')")
                line(f"p={stop}")

    def _field(self, field: Field, depth: int) -> None:
        variable = self._variable(field, depth)
        if field.array:
            self._array(field, variable, depth)
        elif field.struct:
            self._plain_struct(field, variable, depth)
        elif field.fixed:
            self._read(variable, field.fixed)
        else:
            self._sequence(field, variable)

    def _sequence(self, field: Field, variable: str) -> None:
        """Read a string or bytes."""
        line = self.source.line
        self._length("h" if field.type == "string" else "i")
        value = "str(b[p:q],'utf-8')" if field.type == "string" else "view(b)[p:q]"
        if field.nullable:
            line(f"if n<0:{variable}=None")
            with self.source.block("else:"):
                line("q=p+n")
                line(f"if q>e:raise Malformed('the length of {field.name}')")
                line(f"{variable}={value};p=q")
        else:
            line("q=p+n")
            line(f"if not p<=q<=e:raise Malformed('the length of {field.name}')")
            line(f"{variable}={value};p=q")

    def _plain_struct(self, field: Field, variable: str, depth: int) -> None:
        line = self.source.line
        if not field.nullable:
            line(f"{variable}={self._struct(field.fields, depth + 1)}")
            return
        self._read("n", "b")
        self._flush()
        line(f"if n<0:{variable}=None")
        with self.source.block("else:"):
            value = self._struct(field.fields, depth + 1)
            line(f"{variable}={value}")

    def _array(self, field: Field, variable: str, depth: int) -> None:
        line = self.source.line
        self._length("i")
        if field.nullable:
            line(f"if n<0:{variable}=None")
            with self.source.block("else:"):
                self._elements(field, variable, depth)
        else:
            line(f"if n<0:raise Malformed('{field.name} is null')")
            self._elements(field, variable, depth)

    def _elements(self, field: Field, variable: str, depth: int) -> None:
        line = self.source.line
        smallest = min_size(field.element, self.flexible)
        line(f"if n*{smallest}>e-p or n>left:raise Malformed('the length of {field.name}')")
        line("left-=n")
        code = FIXED.get(field.type)
        if code is not None:
            many = self.source.numbers("unpack_from", code)
            line(f"{variable}=list({many}[n](b,p) if n<{SMALL} else unpack_from(f'>{{n}}{code}',b,p));p+=n*{smallest}")
            return
        line(f"{variable}=[]")
        with self.source.block("for _ in range(n):"):
            if field.struct:
                line(f"{variable}.append({self._struct(field.fields, depth + 1)})")
            else:
                self._sequence(field.element, "v")
                line(f"{variable}.append(v)")


def decoder(title: str, fields: tuple[Field, ...], flexible: bool) -> Decoder:
    """The decoder of a message with these fields."""
    return DecoderSource(title, fields, flexible).source.build()
