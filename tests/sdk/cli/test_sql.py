"""`topics sql`."""

import json
import subprocess
from pathlib import Path

import pytest

from topics_cli.sqltext import parts, pointed, used_namespace

from .runner import Cli
from .terminal import terminal


@pytest.fixture(scope="module")
def shop(topics: Cli) -> Cli:
    """The command, on a server with a table `shop.items` of three rows."""
    topics(
        "sql",
        "-c",
        "CREATE TABLE shop.items (id BIGINT PRIMARY KEY, name TEXT NOT NULL, price DECIMAL(10,2), sold BOOLEAN)",
        "-c",
        "INSERT INTO shop.items VALUES (1, 'a;b', 1.50, true), (2, 'it''s', NULL, false), (3, 'c', 20, NULL)",
    )
    return topics


def test_formats(shop: Cli) -> None:
    query = "SELECT id, name, price, sold FROM shop.items ORDER BY id"
    found = shop("sql", "-c", query)
    assert found.cells == [
        ["id", "name", "price", "sold"],
        ["1", "a;b", "1.50", "true"],
        ["2", "it's", "-", "false"],
        ["3", "c", "20.00", "-"],
    ]
    assert found.err == "(3 rows)\n"
    assert shop("sql", "-c", query, "--format", "csv").out == (
        "id,name,price,sold\n1,a;b,1.50,true\n2,it's,,false\n3,c,20.00,\n"
    )
    assert shop("sql", "-c", query, "--format", "ndjson").rows[1] == {
        "id": 2, "name": "it's", "price": None, "sold": False,
    }  # fmt: skip
    assert shop("sql", "-c", query, "--json").rows == shop("sql", "-c", query, "--format", "ndjson").rows
    assert shop("sql", "-c", query, "--format", "json").rows == [shop("sql", "-c", query, "--json").rows]


def test_parameters_and_namespace(shop: Cli) -> None:
    query = "SELECT name FROM items WHERE id = $1 AND price >= $2"
    assert shop("sql", "--namespace", "shop", "-c", query, "-p", "1", "-p", "1.5", "--json").rows == [{"name": "a;b"}]
    assert shop("sql", "--namespace", "shop", "-c", query, "--params", "[1, 2]", "--json").rows == []
    assert "invalid_request" in shop("sql", "--namespace", "shop", "-c", query, "-p", "1", code=1, lines=3).err
    assert "JSON array" in shop("sql", "-c", query, "--params", "{}", code=2).err


def test_files_and_transactions(shop: Cli, tmp_path: Path) -> None:
    file = tmp_path / "change.sql"
    file.write_text(
        "USE shop;  -- for what follows\nBEGIN;\nINSERT INTO items (id, name) VALUES (10, 'x');\n"
        "DELETE FROM items WHERE id = 10;\nCOMMIT;\nSELECT count(*) AS n FROM items\n"
    )
    assert shop("sql", file, "--json").rows == [{"n": 3}]
    assert shop("sql", "--json", stdin="SELECT 1 AS one; SELECT 2 AS two;").rows == [{"one": 1}, {"two": 2}]


def test_an_error_shows_its_place(shop: Cli) -> None:
    script = "SELECT 1 AS one;\n\nSELECT *\n  FORM shop.items WHERE;\nSELECT 3;"
    ran = shop("sql", "--json", stdin=script, code=1, lines=3)
    assert ran.rows == [{"one": 1}], "what came before is done, nothing after it"
    said = ran.err.splitlines()
    assert said[0].startswith("topics sql: syntax_error: ")
    assert said[1].startswith("line 4: ")
    assert said[2].strip() == "^"
    assert "table_not_found" in shop("sql", "-c", "SELECT * FROM shop.nothing", code=5, lines=3).err


def test_a_text_is_split_at_semicolons_of_statements() -> None:
    text = "SELECT ';' AS \"a;b\" /* ; */; -- ;\n\nBEGIN; SELECT 1; SAVEPOINT s; ROLLBACK TO s; COMMIT;\nSELECT 2"
    found = list(parts(text))
    assert [(part.text.strip(), part.line, part.complete) for part in found] == [
        ("SELECT ';' AS \"a;b\" /* ; */;", 0, True),
        ("-- ;\n\nBEGIN; SELECT 1; SAVEPOINT s; ROLLBACK TO s; COMMIT;", 0, True),
        ("SELECT 2", 2, False),
    ]
    assert [part.complete for part in parts("SELECT 'open;")] == [False]
    assert [part.complete for part in parts("BEGIN; INSERT INTO t VALUES (1);")] == [False]
    assert not list(parts(" ; -- nothing\n ;"))


def test_use_and_carets() -> None:
    assert used_namespace("use Shop;") == "shop"
    assert used_namespace('USE "Odd ""one"') == 'Odd "one'
    assert used_namespace("SELECT 1") is None
    assert pointed("a\nbc\td", 2, 3, 4) == "line 6: bc d\n          ^"
    assert pointed("a", 3, 1) == ""


def test_the_prompt(shop: Cli, tmp_path: Path) -> None:
    with terminal(shop.url, "sql", "--format", "csv", env={"XDG_STATE_HOME": str(tmp_path)}) as shown:
        shown.until("default=> ")
        shown.type("SELECT name\r")
        shown.until("default-> ")
        shown.type("FROM shop.items WHERE id = 3;\r")
        shown.until("name\r\nc\r\n")
        shown.type("USE shop;\r")
        shown.until("shop=> ")
        shown.type("SELECT nothing;\r")
        shown.until("column_not_found")
        shown.type("exit\r")
        assert shown.end() == 1
    assert "SELECT name" in (tmp_path / "topics/sql_history").read_text()


def test_following_a_query(topics: Cli) -> None:
    topics("sql", "-c", "CREATE TABLE followed.t (id INT PRIMARY KEY)", "-c", "INSERT INTO followed.t VALUES (1)")
    text = "SELECT id FROM followed.t WHERE id < $1;"
    with topics.start("sql", "--follow", "-c", text, "-p", "5", stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        lines = (json.loads(line) for line in running.stdout)
        assert next(lines) == {"op": "Snapshot", "row": {"id": 1}}
        assert next(lines)["op"] == "CaughtUp"
        topics("sql", "-c", "INSERT INTO followed.t VALUES (7), (2)")
        change = next(lines)
        assert (change["op"], change["row"], change["old"]) == ("Insert", {"id": 2}, None)
        running.kill()
    topics("sql", "-c", "DELETE FROM followed.t; DROP TABLE followed.t CASCADE")
    assert "table_not_found" in topics("sql", "--follow", "-c", text, "-p", "5", code=5).err
    topics("sql", "--after", "x", "-c", "SELECT 1", code=2)
    topics("sql", "--follow", code=2)
    topics("sql", "--follow", "-c", "SELECT 1", "--format", "csv", code=2)
