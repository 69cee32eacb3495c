"""Access: SCRAM, keys and tokens as passwords, TLS, and the rights of each."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from support.server import ServerProcess
from support.tls_proxy import certificate
from support.tokens import SECRET, claims, hs256
from support.waiting import poll

KEY = "a-key-of-forty-characters-for-everything"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {
        "TOPICS_SQL_USERS": "ada:ädä's pässword:dba,bob:bobs password:user:app.",
        "TOPICS_API_KEYS": f"{KEY},only-for-reading-of-forty-characters-xyz:read",
        "TOPICS_JWT_SECRET": SECRET,
    }
    with ServerProcess(tmp_path_factory.mktemp("guarded"), postgres=True, env=env) as running:
        yield running


def connect(
    server: ServerProcess, user: str, password: str = "", **more: object
) -> "psycopg.Connection[tuple[object]]":
    return psycopg.connect(host="127.0.0.1", port=server.pg_port, user=user, password=password, autocommit=True, **more)  # type: ignore[arg-type]


def test_a_user_proves_its_password_by_scram(guarded: ServerProcess) -> None:
    with connect(guarded, "ada", "ädä's pässword", require_auth="scram-sha-256") as db:
        assert db.execute("SELECT current_user").fetchone() == ("ada",)
        db.execute("CREATE TABLE app.t (id INT PRIMARY KEY)")
        db.execute("CREATE USER 'eve' WITH PASSWORD 'of a statement' ROLE service")
    with connect(guarded, "eve", "of a statement") as db:
        assert db.execute("SELECT count(*) FROM app.t").fetchone() == (0,)
    with connect(guarded, "bob", "bobs password") as db, pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.execute("DROP TABLE app.t")


@pytest.mark.parametrize(
    ("user", "password"), [("ada", "wrong"), ("ada", ""), ("nobody", "x"), ("nobody", "ädä's pässword"), ("ada", KEY)]
)
def test_wrong_credentials_are_refused(guarded: ServerProcess, user: str, password: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=r"password authentication failed|wrong API key|no password"):
        connect(guarded, user, password)


def test_keys_and_tokens_are_passwords_of_other_names(guarded: ServerProcess) -> None:
    with connect(guarded, "key", KEY, require_auth="password") as db:
        db.execute("CREATE TABLE IF NOT EXISTS app.k (id INT PRIMARY KEY)")
    with connect(guarded, "agent", hs256(claims("service"))) as db:
        assert db.execute("SELECT count(*) FROM app.k").fetchone() == (0,)
    reader = connect(guarded, "key", "only-for-reading-of-forty-characters-xyz")
    with reader as db, pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.execute("INSERT INTO app.k VALUES (1)")


def test_guessing_is_bounded(guarded: ServerProcess) -> None:
    def guess() -> bool:
        with pytest.raises(psycopg.OperationalError) as error:
            connect(guarded, "guessed", "wrong")
        return "too many wrong passwords" in str(error.value)

    assert any(guess() for _ in range(25))


def test_a_user_that_is_dropped_loses_its_connection(guarded: ServerProcess) -> None:
    with connect(guarded, "ada", "ädä's pässword") as db:
        db.execute("CREATE USER 'gone' WITH PASSWORD 'soon gone' ROLE service")
        with connect(guarded, "gone", "soon gone") as other:
            db.execute("DROP USER 'gone'")

            def is_refused() -> bool:
                try:
                    other.execute("SELECT 1")
                except psycopg.OperationalError:
                    return True
                return False

            poll(is_refused, 10, "the end of the connection")


def test_with_tls_a_connection_must_be_in_tls(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    env = {"TOPICS_TLS_CERT_FILE": chain, "TOPICS_TLS_KEY_FILE": key, "TOPICS_SQL_USERS": "ada:a password:dba"}
    server = ServerProcess(tmp_path / "server", postgres=True, env=env)
    files = server.spawn()
    try:
        poll(lambda: all(file.exists() for file in files), 30, "the ports")
        port = int(files[-1].read_text().rpartition(":")[2])
        where = f"host=127.0.0.1 port={port} user=ada password='a password'"
        with psycopg.connect(f"{where} sslmode=verify-ca sslrootcert={chain}") as db:
            assert db.pgconn.ssl_in_use
            assert db.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="TLS only"):
            psycopg.connect(f"{where} sslmode=disable")
    finally:
        server.kill()


def test_the_catalog_shows_what_a_caller_may_see(guarded: ServerProcess) -> None:
    tables = "SELECT schemaname || '.' || tablename FROM pg_tables WHERE tablename IN ('mine', 'secret') ORDER BY 1"
    rights = "SELECT has_table_privilege('app.mine', 'SELECT'), has_table_privilege('app.mine', 'TRUNCATE')"
    with connect(guarded, "ada", "ädä's pässword") as db:
        db.execute("CREATE TABLE app.mine (id INT PRIMARY KEY)")
        db.execute("CREATE TABLE other.secret (id INT PRIMARY KEY, CONSTRAINT small CHECK (id < 5))")
        assert db.execute(tables).fetchall() == [("app.mine",), ("other.secret",)]
        assert db.execute(rights).fetchone() == (True, True)
        assert {("ada",), ("bob",)} <= set(db.execute("SELECT rolname FROM pg_roles").fetchall())
    with connect(guarded, "bob", "bobs password") as db:
        assert db.execute(tables).fetchall() == [("app.mine",)]
        assert db.execute(rights).fetchone() == (True, False)
        assert db.execute("SELECT rolname, rolsuper FROM pg_roles ORDER BY 1").fetchall() == [
            ("bob", False), ("system", True),
        ]  # fmt: skip
        for hidden in (
            "SELECT * FROM pg_namespace WHERE nspname = 'other'",
            "SELECT * FROM information_schema.columns WHERE table_schema = 'other'",
            "SELECT * FROM pg_constraint WHERE conname = 'small'",
            "SELECT * FROM pg_class WHERE relname LIKE 'secret%'",
            "SELECT to_regclass('other.secret') WHERE to_regclass('other.secret') IS NOT NULL",
        ):
            assert db.execute(hidden).fetchall() == [], hidden
