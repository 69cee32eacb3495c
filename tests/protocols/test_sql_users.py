"""CREATE, ALTER and DROP USER on a real server: who may, what stays after a restart, what the audit log says."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.server import ServerProcess

USERS = "root:pw-root:system,ops:pw-ops:dba,ann:pw-ann:dba:app.|tmp."


class Caller:
    """Runs statements as a user."""

    def __init__(self, server: ServerProcess, name: str, password: str) -> None:
        self._server = server
        self._auth = (name, password)

    def __call__(self, text: str, **members: Any) -> Any:
        """The rows of the last statement, or the code of the error."""
        answer = httpx.post(
            f"{self._server.base}/api/sql", json={"sql": text, **members}, auth=self._auth, trust_env=False, timeout=30
        )
        found = answer.json()
        return found["results"][-1]["rows"] if answer.status_code == 200 else found["error"]["code"]


@pytest.mark.parametrize("kill", [False, True])
def test_users_of_statements(tmp_path: Path, kill: bool) -> None:
    audit = tmp_path / "audit"
    server = ServerProcess(tmp_path, env={"TOPICS_SQL_USERS": USERS, "TOPICS_AUDIT_LOG": str(audit)})
    with server:
        root, ops, ann = (Caller(server, name, f"pw-{name}") for name in ("root", "ops", "ann"))
        bob = Caller(server, "bob", "secret-1")
        assert bob("SELECT 1") == "unauthorized"
        assert ops("CREATE USER 'bob' WITH PASSWORD 'secret-1' ROLE service") == []
        assert bob("SELECT 1") == [[1]]
        assert ops("CREATE USER 'bob' WITH PASSWORD 'secret-2' ROLE user") == "already_exists"
        for text in (
            "CREATE USER 'eve' WITH PASSWORD 'secret-3' ROLE system",
            "ALTER USER 'bob' SET ROLE system",
            "DROP USER 'root'",
            "ALTER USER 'ops' SET PASSWORD 'secret-4'",
        ):
            assert ops(text) == "forbidden", text
        assert root("ALTER USER 'ops' SET PASSWORD 'secret-4'") == "forbidden", "it is one of the settings"
        assert bob("CREATE USER 'eve' WITH PASSWORD 'secret-3' ROLE user") == "forbidden"
        assert ops("CREATE USER 'eve' WITH PASSWORD 'secret-3' ROLE emperor") in ("invalid_value", "syntax_error")
        assert ops("CREATE USER '' WITH PASSWORD 'secret-3' ROLE user") == "invalid_value"
        assert ops("DROP USER 'nobody'") == "user_not_found"
        assert ops("DROP USER IF EXISTS 'nobody'") == []
        assert ann("CREATE USER 'cid' WITH PASSWORD 'secret-5' ROLE user") == []
        assert ann("DROP USER 'bob'") == "forbidden"
        assert ops("BEGIN; DROP USER 'bob'; COMMIT") == "unsupported_sql"
        names = "SELECT name, role, prefixes, is_read_only FROM system.users ORDER BY name"
        shown = [
            ["ann", "dba", ["app.", "tmp."], True],
            ["bob", "service", None, False],
            ["cid", "user", ["app.", "tmp."], False],
            ["ops", "dba", None, True],
            ["root", "system", None, True],
        ]
        assert root(names) == shown
        assert ann(names) == [shown[0], shown[2]]
        assert bob(names) == "forbidden"
        assert ops("ALTER USER 'bob' SET PASSWORD 'secret-6'") == []
        assert bob("SELECT 1") == "unauthorized"
        if kill:
            server.kill()
        else:
            assert server.stop() == 0
        server.start()
        bob = Caller(server, "bob", "secret-6")
        assert bob("SELECT 1") == [[1]]
        assert root(names) == shown
        assert root("CREATE TABLE app.t (id INT PRIMARY KEY); ALTER USER 'bob' SET PASSWORD 'secret-7'") == []
        assert ops("DROP USER 'bob'") == []
        assert bob("SELECT 1") == "unauthorized"
        assert bob("CREATE TABLE app.u (id INT PRIMARY KEY)") == "unauthorized"
        cid = Caller(server, "cid", "secret-5")
        assert cid("CREATE TABLE app.u (id INT PRIMARY KEY)") == "forbidden"
        assert server.stop() == 0
    text = audit.read_text()
    assert "secret" not in text
    assert "secret" not in server.log
    lines = [line for line in map(json.loads, text.splitlines()) if line["action"].startswith("sql.")]
    found = [(line["action"], line["outcome"], line["key"], line["statement"]) for line in lines]
    assert ("sql.user", "done", "user:ops", "CREATE USER") in found
    assert ("sql.user", "refused", "user:bob", "CREATE USER") in found
    assert ("sql.define", "done", "user:root", "CREATE TABLE") in found
    assert ("sql.define", "refused", "user:cid", "CREATE TABLE") in found
    (made,) = [line for line in lines if line["statement"] == "CREATE TABLE" and line["outcome"] == "done"]
    assert made["names"] == ["app.t"]
