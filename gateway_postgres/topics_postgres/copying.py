"""Formats of COPY: text, CSV and binary, rows in and out."""

import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from topics_postgres.errors import PgError

MAX_ROW_BYTES: Final = 32 << 20
"""The bytes of one row that arrives."""
SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_BAD_FORMAT: Final = "22P04"
_OID_FLAG: Final = 1 << 16

Field = bytes | None
Row = list[Field]

_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_TO_ESCAPE: Final = {0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0B: b"\\v", 0x0C: b"\\f", 0x0D: b"\\r", 0x5C: b"\\\\"}


class Options(Struct, frozen=True):
    """The options of a COPY."""

    form: str = "text"
    delimiter: bytes = b"\t"
    null: bytes = b"\\N"
    header: bool = False
    quote: bytes = b'"'
    escape: bytes = b'"'
    force_quote: frozenset[str] = frozenset()
    force_null: frozenset[str] = frozenset()
    force_not_null: frozenset[str] = frozenset()

    @property
    def code(self) -> int:
        """0 for text and CSV, 1 for binary."""
        return int(self.form == "binary")


def options_of(given: dict[str, str], *, is_in: bool) -> Options:
    """The options that a statement gives. Raises PgError."""
    form = given.get("format", "text").lower()
    if form not in ("text", "csv", "binary"):
        raise PgError("22023", f'COPY format "{form[:40]}" not recognized')
    known = {"format", "encoding"}
    if form != "binary":
        known |= {"delimiter", "null", "header"}
    if form == "csv":
        known |= {"quote", "escape", "force_null", "force_not_null"} if is_in else {"quote", "escape", "force_quote"}
    for name in given:
        if name not in known:
            raise PgError("0A000", f"the option {name[:40]} of COPY is not supported for {form}")
    if given.get("encoding", "utf8").lower().replace("-", "") != "utf8":
        raise PgError("0A000", "COPY is in UTF8 only")
    header = given.get("header", "false").lower()
    if header not in ("true", "on", "1", "match", "false", "off", "0"):
        raise PgError("42601", "HEADER takes a boolean or MATCH")
    quote = _character("quote", given.get("quote", '"'))
    return Options(
        form=form,
        delimiter=_character("delimiter", given.get("delimiter", "," if form == "csv" else "\t")),
        null=given.get("null", "" if form == "csv" else "\\N").encode(),
        header=header in ("true", "on", "1", "match"),
        quote=quote,
        escape=_character("escape", given["escape"]) if "escape" in given else quote,
        force_quote=_names(given.get("force_quote", "")),
        force_null=_names(given.get("force_null", "")),
        force_not_null=_names(given.get("force_not_null", "")),
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(name for name in text.split(",") if name)


def _character(name: str, text: str) -> bytes:
    found = text.encode()
    if len(found) != 1 or found in b"\r\n":
        raise PgError("0A000", f"COPY {name} must be a single one-byte character")
    return found


# ---------------------------------------------------------------------------------------------------------- input


class RowReader(ABC):
    """Divides what arrives into rows; of an unfinished one at most 32 MiB are kept."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self.count = 0
        """Rows so far, that of a header among them."""
        self.options = options
        self.columns = columns
        self.is_over = False
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Row]:
        """The rows that are whole with these bytes. Raises PgError."""
        if self.is_over:
            return
        buffer = self._rest + data if self._rest else data
        self._rest = b""
        end = 0
        for row, behind in self.rows(buffer):
            end = behind
            self.count += 1
            if self.options.header and self.count == 1 and self.options.form != "binary":
                continue
            if len(row) != len(self.columns):
                what = "missing data for" if len(row) < len(self.columns) else "extra data after the last"
                raise self.failed(f"{what} column")
            yield row
        self._rest = b"" if self.is_over else buffer[end:]
        if len(self._rest) > MAX_ROW_BYTES:
            raise PgError("54000", f"a row of the COPY has more than {MAX_ROW_BYTES} bytes")

    def finish(self) -> Iterator[Row]:
        """The last row, if no end of line follows it. Raises PgError for half a row."""
        if self._rest and not self.is_over:
            yield from self.feed(b"\n")
        if self._rest and not self.is_over:
            raise self.failed("the data ends within a row")

    @abstractmethod
    def rows(self, data: bytes) -> Iterator[tuple[Row, int]]:
        """The whole rows in the data, each with the place behind it."""

    def failed(self, message: str) -> PgError:
        """An error of the row that is read."""
        return PgError(_BAD_FORMAT, message, detail=f"COPY, row {self.count}")


class TextReader(RowReader):
    """The text format."""

    def rows(self, data: bytes) -> Iterator[tuple[Row, int]]:
        """See RowReader."""
        at, delimiter, null = 0, self.options.delimiter, self.options.null
        while True:
            end = data.find(b"\n", at)
            while end > 0 and _is_escaped(data, at, end):
                end = data.find(b"\n", end + 1)
            if end < 0:
                return
            line = data[at:end]
            at = end + 1
            if line.endswith(b"\r"):
                line = line[:-1]
            if line == b"\\.":
                self.is_over = True
                return
            if b"\\" not in line:
                yield (
                    ([None if field == null else field for field in line.split(delimiter)] if line or null else []),
                    at,
                )
                continue
            yield [None if field == null else _unescaped(field) for field in _split_escaped(line, delimiter)], at


def _is_escaped(data: bytes, start: int, at: int) -> bool:
    """Return whether an odd number of backslashes stands before a place."""
    count = 0
    while at - count > start and data[at - count - 1] == 0x5C:
        count += 1
    return count % 2 == 1


def _split_escaped(line: bytes, delimiter: bytes) -> list[bytes]:
    fields = line.split(delimiter)
    made: list[bytes] = []
    for field in fields:
        if made and _is_escaped(made[-1], 0, len(made[-1])):
            made[-1] += delimiter + field
        else:
            made.append(field)
    return made


def _unescaped(field: bytes) -> bytes:
    if b"\\" not in field:
        return field

    def plain(found: re.Match[bytes]) -> bytes:
        if found[1]:
            return bytes((int(found[1], 16),))
        if found[2]:
            return bytes((int(found[2], 8) & 0xFF,))
        return _ESCAPED.get(found[3], found[3])

    return _ESCAPE.sub(plain, field)


class CsvReader(RowReader):
    """CSV: a value in quotes is never NULL."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        quote, escape, delimiter = map(re.escape, (options.quote, options.escape, options.delimiter))
        inner = rb"[^%b]|%b%b" % (quote, escape, quote)
        if options.escape != options.quote:
            inner = rb"[^%b%b]|%b." % (quote, escape, escape)
        self._quoted = re.compile(rb"%b((?:%b)*+)%b" % (quote, inner, quote), re.DOTALL)
        self._plain = re.compile(rb"[^%b%b\r\n]*+" % (delimiter, quote))
        self._escapes = re.compile(rb"%b(.)" % escape, re.DOTALL)
        self._keeps_null = [name in options.force_not_null or "*" in options.force_not_null for name in columns]
        self._nulls = [name in options.force_null or "*" in options.force_null for name in columns]
        self._is_forced = any(self._keeps_null) or any(self._nulls)

    def rows(self, data: bytes) -> Iterator[tuple[Row, int]]:
        """See RowReader."""
        at, quote, null, delimiter = 0, self.options.quote, self.options.null, self.options.delimiter
        while True:
            end = data.find(b"\n", at)
            if end < 0:
                return
            if data.find(quote, at, end) < 0:
                line = data[at:end].removesuffix(b"\r")
                at = end + 1
                if line == b"\\.":
                    self.is_over = True
                    return
                fields = line.split(delimiter)
                row = (
                    [self._field(each, place) for place, each in enumerate(fields)]
                    if self._is_forced
                    else [None if field == null else field for field in fields]
                )
                yield row, at
                continue
            found = self._record(data, at)
            if found is None:
                return
            fields_of, at = found
            yield fields_of, at

    def _record(self, data: bytes, at: int) -> tuple[Row, int] | None:
        """A record with quotes, and the place behind it; None if its end is not there."""
        row: Row = []
        while True:
            value, at, is_quoted = self._value(data, at)
            if at < 0:
                return None
            place = len(row)
            if is_quoted:
                is_null = place < len(self._nulls) and self._nulls[place] and value == self.options.null
                row.append(None if is_null else value)
            else:
                row.append(self._field(value, place))
            if data.startswith(self.options.delimiter, at):
                at += 1
            elif data.startswith((b"\n", b"\r\n"), at):
                return row, at + (1 if data[at] == 0x0A else 2)
            elif at >= len(data) or data[at:] == b"\r":
                return None
            else:
                raise self.failed("a character follows the end of a value in quotes")

    def _value(self, data: bytes, at: int) -> tuple[bytes, int, bool]:
        """A value, the place behind it (-1 if its end is not there) and whether it has quotes."""
        parts: list[bytes] = []
        is_quoted = False
        while True:
            plain = self._plain.match(data, at)
            assert plain is not None, "it matches nothing, too"
            parts.append(plain[0])
            at = plain.end()
            if not data.startswith(self.options.quote, at):
                return b"".join(parts), at, is_quoted
            quoted = self._quoted.match(data, at)
            if quoted is None:
                return b"", -1, True
            if quoted.end() == len(data):  # half of a doubled quote may come yet
                return b"", -1, True
            is_quoted, at = True, quoted.end()
            inner = quoted[1]
            parts.append(self._escapes.sub(rb"\1", inner) if self.options.escape in inner else inner)

    def _field(self, value: bytes, place: int) -> Field:
        if value != self.options.null or (place < len(self._keeps_null) and self._keeps_null[place]):
            return value
        return None


class BinaryReader(RowReader):
    """The binary format."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._has_header = False

    def rows(self, data: bytes) -> Iterator[tuple[Row, int]]:
        """See RowReader."""
        at = 0
        if not self._has_header:
            header = self._header(data)
            if not header:
                return
            at = header
            # The header is no row; it is passed over when the first row, or the end, is there.
        while True:
            found = self._row(data, at)
            if found is None or self.is_over:
                return
            self._has_header = True
            row, at = found
            yield row, at

    def finish(self) -> Iterator[Row]:
        """See RowReader. Clients may leave out the end marker."""
        if not self.is_over:
            header = 0 if self._has_header else self._header(self._rest)
            if not self._has_header and not header:
                raise self.failed("the header of the binary format is missing")
            if len(self._rest) > header:
                raise self.failed("the data ends within a row")
        return iter(())

    def _header(self, data: bytes) -> int:
        """The length of the header; 0 if it is not whole."""
        if not data.startswith(SIGNATURE[: len(data)]):
            raise self.failed("the signature of the binary format is missing")
        if len(data) < len(SIGNATURE) + 8:
            return 0
        flags, extension = struct.unpack_from(">Ii", data, len(SIGNATURE))
        if flags & _OID_FLAG or flags >> 17 or extension < 0 or extension > MAX_ROW_BYTES:
            raise self.failed("the header of the binary format has flags or an extension that are not known")
        end = len(SIGNATURE) + 8 + int(extension)
        return end if len(data) >= end else 0

    def _row(self, data: bytes, at: int) -> tuple[Row, int] | None:
        if len(data) < at + 2:
            return None
        (count,) = struct.unpack_from(">h", data, at)
        if count == -1:
            self.is_over = True
            return None
        if count != len(self.columns):
            raise self.failed(f"the row has {count} fields, the table {len(self.columns)}")
        at += 2
        row: Row = []
        for _ in range(count):
            if len(data) < at + 4:
                return None
            (length,) = struct.unpack_from(">i", data, at)
            at += 4
            if length == -1:
                row.append(None)
                continue
            if not 0 <= length <= MAX_ROW_BYTES:
                raise self.failed("a field has an impossible length")
            if len(data) < at + length:
                return None
            row.append(data[at : at + length])
            at += length
        return row, at


def reader(options: Options, columns: Sequence[str]) -> RowReader:
    """The reader of a format."""
    if options.form == "binary":
        return BinaryReader(options, columns)
    return CsvReader(options, columns) if options.form == "csv" else TextReader(options, columns)


# --------------------------------------------------------------------------------------------------------- output


class RowWriter:
    """Rows as a COPY gives them."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._forced = [name in options.force_quote or "*" in options.force_quote for name in columns]
        special = (options.delimiter, options.quote, b"\n", b"\r")
        self._special = re.compile(b"[" + b"".join(map(re.escape, special)) + b"]")
        self._in_text = re.compile(b"[" + b"".join(map(re.escape, (options.delimiter, b"\\\b\t\n\v\f\r"))) + b"]")
        form: dict[str, Callable[[Sequence[Field]], bytes]] = {
            "text": self._text, "csv": self._csv, "binary": self._binary
        }  # fmt: skip
        self.row = form[options.form]
        """The function that makes the bytes of one row."""

    def begin(self) -> bytes:
        """The bytes in front of the rows."""
        if self._options.form == "binary":
            return SIGNATURE + struct.pack(">Ii", 0, 0)
        return self.row([name.encode() for name in self._columns]) if self._options.header else b""

    def end(self) -> bytes:
        """The bytes behind them."""
        return struct.pack(">h", -1) if self._options.form == "binary" else b""

    def _text(self, values: Sequence[Field]) -> bytes:
        null, find = self._options.null, self._in_text
        fields = [
            null if value is None else find.sub(_escaped, value) if find.search(value) else value for value in values
        ]
        return self._options.delimiter.join(fields) + b"\n"

    def _csv(self, values: Sequence[Field]) -> bytes:
        options, fields = self._options, list[bytes]()
        for value, forced in zip(values, self._forced, strict=True):
            if value is None:
                fields.append(options.null)
            elif forced or value == options.null or value == b"\\." or self._special.search(value):
                inner = value
                if options.escape != options.quote:
                    inner = inner.replace(options.escape, options.escape * 2)
                fields.append(options.quote + inner.replace(options.quote, options.escape + options.quote)
                              + options.quote)  # fmt: skip
            else:
                fields.append(value)
        return options.delimiter.join(fields) + b"\n"

    def _binary(self, values: Sequence[Field]) -> bytes:
        pack = struct.Struct(">i").pack
        parts = [struct.pack(">h", len(values))]
        for value in values:
            parts += (pack(-1),) if value is None else (pack(len(value)), value)
        return b"".join(parts)


def _escaped(found: re.Match[bytes]) -> bytes:
    return _TO_ESCAPE.get(found[0][0], b"\\" + found[0])
