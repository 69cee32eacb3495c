"""Values stay values: parameters are no part of a text, and a quoted literal is the text in it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from support.sql_schema import MemorySchema
from support.sql_world import SqlWorld
from topics_service.engine.tables.expressions import Literal, Parameter
from topics_service.engine.tables.plans import Insert

EVIL = [
    "'); DROP TABLE t; --",
    "''",
    "\\'; DELETE FROM t",
    "$1",
    "/* x",
    "1; 2",
    "\u2019; --",
    "x' OR '1'='1",
    '"',
    "\\x00",
]
texts = st.one_of(st.sampled_from(EVIL), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))


@given(st.lists(texts, min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_parameters_are_values(given_texts: list[str]) -> None:
    world = SqlWorld()
    world.run("CREATE TABLE t (id INT PRIMARY KEY, body TEXT)")
    for number, text in enumerate(given_texts):
        world.run("INSERT INTO t VALUES ($1, $2)", number, text)
    assert world.rows("SELECT body FROM t ORDER BY id") == [(text,) for text in given_texts]
    for text in given_texts:
        wanted = [(number,) for number, each in enumerate(given_texts) if each == text]
        assert world.rows("SELECT id FROM t WHERE body = $1 ORDER BY id", text) == wanted
        assert world.run("UPDATE t SET body = $1 || $2 WHERE body = $1 AND false", text, text).row_count == 0


def test_a_plan_knows_no_values() -> None:
    """The plan is made before there are values: it has a place for each."""
    schema = MemorySchema("CREATE TABLE t (id INT PRIMARY KEY, body TEXT)")
    action = schema.action("INSERT INTO t VALUES ($1, $2)")
    assert isinstance(action, Insert)
    assert [each.__class__ for each in action.rows[0]] == [Parameter, Parameter]


@given(texts)
@settings(max_examples=300, deadline=None)
def test_quoted_literals_are_their_text(text: str) -> None:
    quoted = "'" + text.replace("'", "''") + "'"
    (output,) = MemorySchema().action(f"SELECT {quoted}").outputs
    assert isinstance(output.expression, Literal)
    assert output.expression.value == text


@given(texts.filter(bool))
@settings(max_examples=200, deadline=None)
def test_quoted_names_are_their_text(text: str) -> None:
    quoted = '"' + text.replace('"', '""') + '"'
    (output,) = MemorySchema().action(f"SELECT 1 AS {quoted}").outputs
    assert output.name == text
