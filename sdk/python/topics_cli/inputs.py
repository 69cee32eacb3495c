"""Input records: from arguments, files, standard input."""

import errno
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Final, Self

from topics_cli import formats, output, server
from topics_cli.csvtext import csv_rows
from topics_cli.lines import JSON_SPACE, LONGEST_LINE, BadTextError, all_json, chunks, json_value
from topics_cli.recordtext import Parsed, parsed, text
from topics_cli.rows import tag_of
from topics_cli.sending import Batch

_STDIN: Final = "standard input"
_KEPT: Final = 5
_WHOLE: Final = re.compile(rb'\{"\$seq":\d+,"\$ts":\d+,"')  # as `topics export --with-meta` writes them
_GATHERED_RECORDS: Final = 2000
_GATHERED_BYTES: Final = 1 << 20

_Add = Callable[[Batch, Any, int], Batch | None]  # puts an item into a batch


class InvalidLineError(ValueError):
    """A line that can't be a record."""

    def __init__(self, file: str, line: int, column: int, what: str, *, unit: str = "line") -> None:
        """`file` is empty for a value among the arguments, the `line` of which is its number. `column` 0 is none.
        `unit` is row for files whose rows are no lines."""
        self.file = file
        self.line = line
        where = f"{file}: {unit} {line}" if file else f"value {line}"
        super().__init__(f"invalid_request: {where}{f', column {column}' if column else ''}: {what}")

    def hinted(self, hint: str) -> Self:
        """The message with a hint."""
        self.args = (f"{self} ({hint})",)
        return self


class Inputs:
    """Records in batches as they are read, from one file after the other.

    `invalid` holds those that were skipped: the first few, all are counted in `skipped`. `consumed` are the bytes read,
    of `total`, which is None if unknown.
    """

    def __init__(
        self,
        files: Sequence[str],
        values: Sequence[str] = (),
        *,
        kind: str = "ndjson",
        skip_invalid: bool = False,
        start_line: int = 1,
        partition: int | None = None,
        tag: str | None = None,
        tag_field: str | None = None,
        meta: str | None = None,
    ) -> None:
        """The `kind` of files and values is ndjson, text or binary. Files of any format: `FileInputs`.

        Raises UsageError for contradicting options, OSError for a missing file.
        """
        self.files = list(files) or ([] if values else ["-"])
        self.values = values
        if values and files:
            raise server.UsageError("either VALUEs or --file")
        if self.files.count("-") > 1:
            raise server.UsageError("standard input can be read once")
        self.skipped = 0
        self.invalid: list[InvalidLineError] = []
        self.consumed = 0
        self._kind = kind
        self._skip = skip_invalid
        self._start = start_line
        self._partition = partition
        self._tag = tag
        self._tag_field = tag_field
        self._meta = _meta(meta)
        sizes = [_size(name) for name in self.files]
        self.total = None if None in sizes else sum(size or 0 for size in sizes)
        if tag_field is not None and kind != "ndjson":
            raise server.UsageError("--tag-field is for lines of JSON")
        if start_line > 1 and (values or kind == "binary"):
            raise server.UsageError("--start-line is for files of lines")

    def batches(self) -> Iterator[Batch]:
        """Yield all records in batches. The records before an invalid line are yielded first, then InvalidLineError is
        raised."""
        if self.values:
            yield from self._of_values()
        for number, name in enumerate(self.files):
            start = self._start if number == 0 else 1
            yield from self._of_file(name, _STDIN if name == "-" else name, start)

    def _of_file(self, name: str, label: str, start: int) -> Iterator[Batch]:
        if self._kind == "binary":
            with open(0 if name == "-" else name, "rb", closefd=name != "-") as stream:
                yield from self._of_whole(stream, label)
            return
        with io.FileIO(0 if name == "-" else name, closefd=name != "-") as raw:
            source = formats.Source(raw, label)
            wanted = "text" if self._kind == "text" else "lines of JSON"
            formats.refuse_other(source.head(), label, wanted, "topics import reads files of other formats")
            try:
                add = self._add_text if self._kind == "text" else self._add_json
                yield from self._of_lines(source, label, start, add)
            except InvalidLineError as error:
                if error.line == 1 and name.lower().endswith(".csv"):
                    raise error.hinted("topics import reads CSV") from None
                raise

    def _of_lines(self, source: formats.Source, label: str, start: int, add: "_Add") -> Iterator[Batch]:
        before = self.consumed
        for first, group in chunks(source):
            self.consumed = before + source.consumed
            plain = add == self._add_json and first >= start
            batches = self._of_good_lines(label, first, group) if plain else None
            yield from batches or self._gathered(label, enumerate(group, first), add, start)

    def _of_values(self) -> Iterator[Batch]:
        add: _Add = {"ndjson": self._add_json, "text": self._add_text}.get(self._kind, self._add_binary)
        items = enumerate(map(os.fsencode, self.values), 1)
        yield from list(self._gathered("", items, add, 1))  # one that is not good leaves the others unsent

    def _of_good_lines(self, label: str, first: int, group: Sequence[bytes | None]) -> list[Batch] | None:
        """Lines of JSON as batches, a few times faster than one by one; None if there is anything about them."""
        datas = [line.strip(JSON_SPACE) for line in group if line is not None]
        if len(datas) < len(group) or not all(datas) or not all_json(datas):
            return None
        tags = [self._tag] * len(datas)
        if self._tag_field is not None:
            try:
                tags = [tag_of(value, self._tag_field) for value in json.loads(b"[%b]" % b",".join(datas))]
            except (ValueError, RecursionError):  # it is looked at more closely then
                return None
        batches = []
        for start in range(0, len(datas), _GATHERED_RECORDS):
            part = slice(start, start + _GATHERED_RECORDS)
            batch = Batch(label, self._partition or 0)
            batch.fill(datas[part], tags[part], first + start, meta=self._meta)
            batches.append(batch)
        return batches

    def _of_whole(self, stream: IO[bytes], label: str) -> Iterator[Batch]:
        data = stream.read(LONGEST_LINE + 1)
        self.consumed += len(data)
        item = data if len(data) <= LONGEST_LINE else None
        yield from self._gathered(label, [(1, item)], self._add_binary, 1)

    def _gathered(
        self, label: str, items: "Iterable[tuple[int, Any]]", add: "_Add", start: int, *, unit: str = "line"
    ) -> Iterator[Batch]:
        """Items with their lines as batches."""
        batch = Batch(label, self._partition or 0)
        for line, item in items:
            if line < start:
                continue
            try:
                if item is None:
                    raise BadTextError(0, f"it is longer than {LONGEST_LINE >> 20} MiB")
                other = add(batch, item, line)
            except BadTextError as bad:
                error = InvalidLineError(label, line, bad.column, bad.what, unit=unit)
                if not self._skip:
                    yield batch
                    raise error from None
                self.skipped += 1
                if len(self.invalid) < _KEPT:
                    self.invalid.append(error)
                continue
            if other is not None:
                yield batch
                batch = other
            elif len(batch) >= _GATHERED_RECORDS or batch.size >= _GATHERED_BYTES:
                yield batch
                batch = Batch(label, batch.partition)
        yield batch

    def _add_json(self, batch: Batch, data: bytes, line: int) -> None:
        stripped = data.strip(JSON_SPACE)
        if not stripped and batch.file:
            return
        try:
            value = json_value(stripped)
        except BadTextError as bad:
            before = len(data) - len(data.lstrip(JSON_SPACE))
            raise BadTextError(bad.column + before, bad.what) from None
        tag = self._tag if self._tag_field is None else tag_of(value, self._tag_field)
        batch.add(stripped, line, tag=tag, meta=self._meta)

    def _add_text(self, batch: Batch, data: bytes, line: int) -> None:
        try:
            decoded = data.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise BadTextError(error.start + 1, f"byte 0x{data[error.start]:02x} is not UTF-8") from None
        batch.add(text(decoded), line, tag=self._tag, meta=self._meta)

    def _add_binary(self, batch: Batch, data: bytes, line: int) -> None:
        batch.add(data, line, binary=True, tag=self._tag, meta=self._meta)

    def _add_record(self, batch: Batch, data: bytes, line: int) -> Batch | None:
        stripped = data.strip(JSON_SPACE)
        return self._add_parsed(batch, parsed(stripped), line) if stripped else None

    def _add_parsed(self, batch: Batch, record: Parsed | BadTextError | None, line: int) -> Batch | None:
        """Returns another batch that the record is in, if it belongs to another partition."""
        if isinstance(record, BadTextError):
            raise record
        if record is None:  # a gap, and nothing to append
            return None
        partition = self._partition if self._partition is not None else record.partition or 0
        other = None
        if partition != batch.partition:
            if len(batch):
                batch = other = Batch(batch.file, partition)
            batch.partition = partition
        batch.add(record.data, line, binary=record.binary, tag=record.tag, node=record.node, meta=record.meta)
        return other


class FileInputs(Inputs):
    """Records of files, in the format of the name or of the first bytes."""

    def __init__(
        self,
        files: Sequence[str],
        *,
        chosen: str | None,
        whole: bool,
        as_rows: bool,
        tag_field: str | None = None,
        **options: Any,
    ) -> None:
        """`chosen` is `--format`. With `whole` lines of JSON are records (`export --with-meta`), with `as_rows` rows
        are objects whatever their columns are. `options` are those of Inputs."""
        self._chosen = chosen
        self._whole = whole
        self._as_rows = as_rows
        for name in files:
            self._check(formats.of_name(name, chosen).kind)
        super().__init__(files, tag_field=tag_field, **options)

    def _check(self, kind: str | None) -> None:
        if self._whole and kind in ("csv", "parquet"):
            raise server.UsageError(f"--with-meta is for ndjson; {formats.spoken(kind)} has everything anyway")
        if self._as_rows and kind == "ndjson":
            raise server.UsageError("--rows is for csv and parquet; a line of ndjson is an object already")

    def _of_file(self, name: str, label: str, start: int) -> Iterator[Batch]:
        with formats.opened(name, label, self._chosen) as (source, kind, guessed):
            self._check(kind)
            if kind == "ndjson":
                yield from self._of_json(source, label, start, guessed=guessed)
                return
            before = self.consumed
            if kind == "csv":
                rows = csv_rows(source, label, as_rows=self._as_rows, tag_field=self._tag_field)
                for batch in self._gathered(label, rows, self._add_parsed, start):
                    self.consumed = before + source.consumed
                    yield batch
                return
            from topics_cli.parquet import parquet_rows

            with source.as_file(name) as file:
                rows = parquet_rows(file, label, as_rows=self._as_rows, tag_field=self._tag_field)
                yield from self._gathered(label, rows, self._add_parsed, start, unit="row")
            self.consumed = before + (_size(name) or 0)

    def _of_json(self, source: formats.Source, label: str, start: int, *, guessed: bool) -> Iterator[Batch]:
        head = source.head()
        begins = head.lstrip(JSON_SPACE)[:1]
        if _WHOLE.match(head) and not self._whole:
            output.note(
                f"{label} looks like whole records, which are only data here: --with-meta imports them as they were"
            )
        try:
            yield from self._of_lines(source, label, start, self._add_record if self._whole else self._add_json)
        except InvalidLineError as error:
            if guessed and error.line == 1:
                document = (
                    "a document of several lines is not NDJSON: jq -c . puts it on one, jq -c '.[]' each of a list"
                )
                raise error.hinted(document if begins in (b"[", b"{") else "--format csv reads CSV") from None
            raise


def _meta(given: str | None) -> bytes:
    if given is None:
        return b""
    data = os.fsencode(given).strip(JSON_SPACE)
    try:
        if not isinstance(json_value(data), dict):
            raise server.UsageError("--meta is a JSON object")
    except BadTextError as bad:
        raise server.UsageError(f"--meta is a JSON object: {bad}") from None
    return data


def _size(name: str) -> int | None:
    """Of a file; None if the size is unknown. Raises OSError if it is not there."""
    found = os.fstat(0) if name == "-" else os.stat(name)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    return found.st_size if stat.S_ISREG(found.st_mode) else None
