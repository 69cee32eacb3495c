"""Declared columns, and how a table follows them."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.types import IntegerType

from topics_lakehouse.catalog import RECORDS, create_table, identifier, open_catalog
from topics_lakehouse.config import load
from topics_lakehouse.ddl import columns_of
from topics_lakehouse.schema import ENVELOPE, Conflict, SchemaError, evolve, file_schema, typed_columns

_NESTED = "items array<struct<sku: string, n: int>>, attrs map<string, double>, place struct<lat: double, lon: double>"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    config = load(None, {"warehouse": str(tmp_path), "topics": ["orders"]})
    name = identifier(config, "orders")
    return create_table(open_catalog(config), config, name, ENVELOPE, topic="orders", topic_id="top_a", role=RECORDS)


def _types(table: Table) -> dict[str, str]:
    return {each.name: str(each.field_type) for each in table.schema().fields if each.name not in ENVELOPE.names}


def test_columns_are_added_and_widened(table: Table) -> None:
    for declared in (
        "a int, b float, c decimal(5, 2)",
        "a bigint, b double, c decimal(9, 2), d date",
        _NESTED,
        _NESTED,
    ):
        table, conflicts = evolve(table, columns_of(declared))
        assert conflicts == []
    found = _types(table)
    assert {name: found[name] for name in "abcd"} == {"a": "long", "b": "double", "c": "decimal(9, 2)", "d": "date"}
    location = table.metadata_location
    assert evolve(table, columns_of(_NESTED))[0].metadata_location == location


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("a bigint", "a string", "long"),
        ("a string", "a binary", "string"),
        ("a decimal(9, 2)", "a decimal(9, 3)", "decimal(9, 2)"),
        ("a date", "a timestamp", "date"),
        ("a bigint", "a double", "long"),
        ("a struct<x: string>", "a struct<x: int, y: int>", "string"),
        ("a struct<x: int>", "a struct<X: int>", "a.x int"),
        ("a array<struct<x: date>>", "a array<struct<x: int>>", "date"),
        ("a array<int>", "a int", "list<int>"),
        ("a map<string, bigint>", "a map<string, double>", "long"),
        ("a bigint", "A bigint", "a long"),
    ],
)
def test_what_can_not_be_had_is_told(table: Table, old: str, new: str, kept: str) -> None:
    table, _ = evolve(table, columns_of(old))
    table, (conflict,) = evolve(table, columns_of(new))
    assert isinstance(conflict, Conflict)
    assert conflict.kept == kept
    assert str(conflict).startswith(f"column {conflict.column} is declared as ")


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("struct<x: int>", "struct<y: date, x: bigint>", "struct<x: bigint, y: date>"),
        (
            "struct<x: struct<y: float>>",
            "struct<x: struct<y: double, z: array<int>>>",
            "struct<x: struct<y: double, z: array<int>>>",
        ),
        ("array<int>", "array<bigint>", "array<bigint>"),
        ("array<struct<n: int>>", "array<struct<n: bigint, sku: string>>", "array<struct<n: bigint, sku: string>>"),
        ("array<array<decimal(5, 2)>>", "array<array<decimal(9, 2)>>", "array<array<decimal(9, 2)>>"),
        ("map<string, float>", "map<string, double>", "map<string, double>"),
        ("map<string, struct<x: int>>", "map<string, struct<x: int, y: int>>", "map<string, struct<x: int, y: int>>"),
        ("struct<x: bigint, y: int>", "struct<x: int>", "struct<x: bigint, y: int>"),
    ],
)
def test_fields_are_added_and_widened_at_any_depth(table: Table, old: str, new: str, found: str) -> None:
    table, _ = evolve(table, columns_of(f"a {old}"))
    table, conflicts = evolve(table, columns_of(f"a {new}"))
    assert conflicts == []
    assert typed_columns(table, columns_of(f"a {new}")) == columns_of(f"a {found}")
    location = table.metadata_location
    assert evolve(table, columns_of(f"a {new}"))[0].metadata_location == location


@pytest.mark.parametrize(
    "declared",
    [
        "a int, A int",
        "a struct<x: int, X: string>",
        "a array<struct<x: int, b: struct<ye: int, YE: int>>>",
        "a map<string, struct<id: int, ID: int>>",
        "a array<array<struct<id: int, Id: int>>>",
    ],
)
def test_names_that_differ_in_capitals_alone_are_refused_at_any_depth(declared: str) -> None:
    with pytest.raises(ValueError, match="is there twice, but for capitals"):
        columns_of(declared)


def test_a_name_may_have_dots(table: Table) -> None:
    for declared in ("a int, `a.b` int", "a int, `a.b` bigint, `c.d` string"):
        table, conflicts = evolve(table, columns_of(declared))
        assert conflicts == []
    assert _types(table) == {"a": "int", "a.b": "long", "c.d": "string"}


def test_narrower_is_no_conflict(table: Table) -> None:
    table, _ = evolve(table, columns_of("a bigint, b double"))
    declared = columns_of("a int, b float")
    table, conflicts = evolve(table, declared)
    assert conflicts == []
    assert typed_columns(table, declared) == columns_of("a bigint, b double")


def test_records_are_parsed_into_the_types_of_the_table(table: Table) -> None:
    table, _ = evolve(table, columns_of("a bigint"))
    table, _ = evolve(table, columns_of("a string, b int"))
    assert typed_columns(table, columns_of("a string, b int")) == columns_of("a bigint, b int")


def test_files_have_the_ids_of_the_table(table: Table) -> None:
    table, _ = evolve(table, columns_of(_NESTED))
    schema = file_schema(table.schema(), ["data", "items"])
    assert schema.names == ["data", "items"]
    assert schema.field("data").type == pa.binary()
    assert schema.field("items").type.value_type.field("sku").metadata
    assert schema.field("items").metadata == {b"PARQUET:field_id": b"9"}


def test_a_required_column_of_someone_else(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("must", IntegerType(), required=True)
    with pytest.raises(SchemaError, match="column must is required"):
        evolve(table, columns_of("a int"))


def test_someone_else_evolves_at_the_same_time(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    landing = SqlCatalog.commit_table
    losses = []

    def commit_table(*given: object) -> object:
        if not losses:
            losses.append(1)
            raise CommitFailedException("current schema id has changed")
        return landing(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    table, _ = evolve(table, columns_of("a int"))
    assert _types(table) == {"a": "int"}
