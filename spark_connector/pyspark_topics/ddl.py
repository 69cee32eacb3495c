"""Spark's DDL for columns (`id bigint, items array<struct<sku: string, n: int>>`) as an Arrow schema.

Spark's own parser is in the JVM, which is out of reach where data sources are planned.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|[\w]+|[<>(),:])")
_SYNONYMS: Final = frozenset({"byte", "short", "integer", "long", "real", "timestamp_ltz"})
_SIMPLE: Final = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "date": pa.date32(),
    "binary": pa.binary(),
}
_NAMES: Final = {kind: name for name, kind in _SIMPLE.items() if name not in _SYNONYMS}
_DECIMALS: Final = ("decimal", "dec", "numeric")


def arrow_schema(text: str) -> pa.Schema:
    """The columns of a DDL text, or of the JSON text of a StructType. Types are those that Spark has for these columns.

    Every column can be null. Raises ValueError, also for types that JSON can't be read as and for NOT NULL.
    """
    if text.lstrip().startswith("{"):
        return _from_json(text)
    parser = _Ddl(text)
    fields = list(parser.fields(""))
    if not fields:
        raise ValueError("no columns")
    return pa.schema(fields)


def ddl_type(kind: pa.DataType) -> str:
    """The type as a DDL text names it."""
    if pa.types.is_list(kind):
        return f"array<{ddl_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{ddl_type(kind.key_type)}, {ddl_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{each.name}: {ddl_type(each.type)}' for each in kind)}>"
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return _NAMES.get(kind, str(kind))


def _from_json(text: str) -> pa.Schema:
    from pyspark.sql.types import StructType

    from pyspark_topics.spark_types import arrow_schema_of

    try:
        return arrow_schema_of(StructType.fromJson(json.loads(text)))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"not the JSON of a StructType: {error}") from None


class _Ddl:
    """A reader of one DDL text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def fields(self, end: str) -> Iterator[pa.Field]:
        """`name [:] type [COMMENT '…'], …` up to `end`, which is consumed."""
        seen: set[str] = set()
        while True:
            if self._next() == end and not seen:
                self._take()
                return
            name = self._name()
            if name in seen:
                raise self._error(f"column {name} comes twice")
            seen.add(name)
            if self._next() == ":":
                self._take()
            yield pa.field(name, self._type())
            if self._next().lower() == "not":
                raise self._error(f"column {name} can't be NOT NULL")
            if self._next().lower() == "comment":
                self._take()
                if not self._take().startswith("'"):
                    raise self._error("a comment stands between '")
            token = self._take()
            if token == end:
                return
            if token != ",":
                raise self._error(f"{token or 'the end'} behind column {name}")

    def _type(self) -> pa.DataType:
        word = self._take().lower()
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word in _DECIMALS:
            return self._decimal()
        if word == "array":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return pa.list_(pa.field("element", element))
        if word == "struct":
            self._expect("<")
            return pa.struct(list(self.fields(">")))
        if word == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            if key != pa.string():
                raise self._error("keys of a map are strings in JSON")
            return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))
        raise self._error(f"{word or 'the end'} is not a type that JSON can be read as")

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._next() == "(":
            self._take()
            precision = self._number()
            if self._next() == ",":
                self._take()
                scale = self._number()
            self._expect(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise self._error(f"decimal({precision}, {scale})")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._take()
        if not re.fullmatch(r"\d{1,3}", token):
            raise self._error(f"{token or 'the end'} where a number is due")
        return int(token)

    def _name(self) -> str:
        token = self._take()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            raise self._error(f"{token or 'the end'} where the name of a column is due")
        return token

    def _expect(self, wanted: str) -> None:
        token = self._take()
        if token != wanted:
            raise self._error(f"{token or 'the end'} where {wanted} is due")

    def _next(self) -> str:
        """The next token, which stays; empty at the end."""
        match = _TOKEN.match(self._text, self._at)
        if match is None and self._text[self._at :].strip():
            raise self._error(f"can't be read from {self._text[self._at :].strip()[:20]!r} on")
        return match[1] if match else ""

    def _take(self) -> str:
        token = self._next()
        if match := _TOKEN.match(self._text, self._at):
            self._at = match.end()
        return token

    def _error(self, text: str) -> ValueError:
        return ValueError(f"{text}, in {self._text.strip()[:200]!r}")
