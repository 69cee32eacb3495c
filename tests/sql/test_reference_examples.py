"""Each example of docs/sql-reference.md is a statement, and in their order they work on an engine."""

import re
from pathlib import Path
from typing import get_args

from sqlglot import exp

from support.sql_world import SqlWorld
from support.sqlglot_dialect import DIALECT
from topics_service.engine.tables import plans

PAGE = (Path(__file__).parents[2] / "docs" / "sql-reference.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
RUN = (*get_args(plans.Definition), *get_args(plans.Change), plans.Select)


def test_examples() -> None:
    world, namespace, ran = SqlWorld(), "default", 0
    for block in BLOCKS:
        statements = world.reader.parse(block)
        assert len(statements) == block.count(";")
        for statement in statements:
            plan = world.reader.bind(statement, world.engine.tables.newest, namespace)
            computed = getattr(plan.action, "query", None) is not None  # that needs DuckDB
            if isinstance(plan.action, RUN) and not computed and not plan.parameters:
                world.act(plan.action, [])
                world.engine.sync()
                ran += 1
    assert len(BLOCKS) >= 10
    assert ran >= 35


def test_examples_of_the_standard_are_so_for_sqlglot() -> None:
    """It will read queries that this grammar does not."""
    for block in BLOCKS:
        for text in block.split(";\n"):
            if text.startswith(
                ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE TABLE", "CREATE INDEX", "CREATE UNIQUE")
            ):
                (tree,) = DIALECT.parse(text)
                assert not isinstance(tree, exp.Command), text


def test_every_statement_has_an_example() -> None:
    first_words = {line.split()[0].strip(";") for block in BLOCKS for line in block.splitlines() if line[:1].isupper()}
    shapes = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    named = {line.split()[0] for shape in shapes for line in shape.splitlines() if re.match(r"[A-Z]{2,}", line)}
    assert named - {"SHOW"} <= first_words | {"RELEASE"}
