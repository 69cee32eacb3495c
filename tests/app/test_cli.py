"""The command line as a person meets it: help, exit codes, messages, import and wait-ready."""

import json
import os
import socket
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from support.http import Api
from support.ports import free_port
from support.server import TOPICS, ServerProcess
from topics_server.setting_kinds import shown_default
from topics_server.settings import Settings

WEBHOOKS = Path(__file__).parents[3] / "shared" / "data" / "github-webhooks.ndjson"


def _topics(*arguments: object, code: int = 0, stdin: bytes = b"", env: dict[str, str] | None = None) -> str:
    env = env or {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    done = subprocess.run(
        [TOPICS, *map(str, arguments)], input=stdin, capture_output=True, timeout=60, check=False, env=env
    )
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == code, output
    assert "Traceback" not in output
    return output


def test_help_of_serve_names_every_setting_with_its_default() -> None:
    text = " ".join(_topics("serve", "--help").split())
    for setting in fields(Settings):
        if not setting.metadata["flag"]:
            assert f"--{setting.name.replace('_', '-')}" not in text
            continue
        default = shown_default(setting) or "none"
        assert f"--{setting.name.replace('_', '-')}" in text
        assert f"(default: {default}; {setting.metadata['env']})" in text


@pytest.mark.parametrize("arguments", [["serve", "--port", "-1"], ["serve", "--port", "x"], ["nonsense"], []])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert "usage: topics" in _topics(*arguments, code=2)


def test_a_public_address_without_keys_is_refused(tmp_path: Path) -> None:
    text = _topics("serve", "--host", "0.0.0.0", "--port", "0", "--data-dir", tmp_path / "data", code=1)
    assert "not a loopback address" in text
    assert not (tmp_path / "data").exists(), "refused before the data directory was touched"


def test_a_taken_port_is_refused_without_touching_the_data(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = _topics("serve", "--port", port, "--data-dir", tmp_path / "data", code=1)
        taken_port = "Address already in use; is another server running?"
        assert text == f"topics: can't listen on 127.0.0.1:{port}: {taken_port} TOPICS_PORT sets another port\n"
        assert not (tmp_path / "data").exists()
        text = _topics("serve", "--port", 0, "--grpc-port", port, "--data-dir", tmp_path / "data", code=1)
        says = f"can't listen on 127.0.0.1:{port} for gRPC: {taken_port} TOPICS_GRPC_PORT sets another port\n"
        assert text == f"topics: {says}"


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "can't open the data directory" in _topics("serve", "--port", 0, "--data-dir", tmp_path / "file", code=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> "ServerProcess":
    with ServerProcess(tmp_path_factory.mktemp("cli")) as running:
        yield running


def test_import_reads_lines_tags_them_and_compares(server: ServerProcess, tmp_path: Path) -> None:
    lines = [json.dumps({"event": f"e{i % 3}", "n": i, "text": "é" * i}, ensure_ascii=False) for i in range(25)]
    file = tmp_path / "events.ndjson"
    file.write_text("\n\n".join(lines) + "\n")
    text = _topics(
        "import", file, "--topic", "imp", "--tag-field", "event", "--batch", 4, "--server", server.grpc_target
    )
    assert "appended 25 records to imp: seq 1 to 25" in text
    assert "read back 25 records" in text
    with Api(server.base) as api:
        records = api.diff("imp", from_seq=0, include_tags=True).json()["records"]
        assert [record["$tag"] for record in records] == [f"e{i % 3}" for i in range(25)]
        assert [record["data"]["n"] for record in records] == list(range(25))
    again = _topics("import", "-", "--topic", "imp", "--server", server.grpc_target, stdin=lines[0].encode())
    assert "1 record to imp: seq 26\n" in again


@pytest.mark.skipif(not WEBHOOKS.exists(), reason="the shared data does not lie beside the project")
def test_import_of_real_webhooks(server: ServerProcess) -> None:
    text = _topics("import", WEBHOOKS, "--topic", "gh", "--tag-field", "event", "--server", server.grpc_target)
    lines = [line for line in WEBHOOKS.read_bytes().splitlines() if line]
    assert f"read back {len(lines):,} records, byte for byte identical" in text
    with Api(server.base) as api:
        state = api.state("gh")
        assert (state["count"], state["bytes"]) == (len(lines), sum(map(len, lines)))
        pushes = sum(json.loads(line)["event"] == "push" for line in lines)
        deleted = api.send("POST", "/v0/topics/gh/delete", {"match": "push"}).json()["deleted"]
        assert deleted == pushes > 0


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "no records in"), (b"{not json}\n", "invalid_request"), (b"\xff\xfe\n", "looks like UTF-16 text")],
)
def test_import_of_what_is_not_json_lines_fails(server: ServerProcess, content: bytes, message: str) -> None:
    text = _topics("import", "-", "--topic", "bad", "--server", server.grpc_target, code=1, stdin=content)
    assert message in text
    with Api(server.base) as api:
        assert api.get("bad").status_code == 404, "nothing was created"


def test_import_without_a_file_or_a_server_fails(server: ServerProcess, tmp_path: Path) -> None:
    missing = _topics("import", tmp_path / "no", "--topic", "t", "--server", server.grpc_target, code=1)
    assert "No such file" in missing
    port = free_port()
    assert "unavailable" in _topics("import", "-", "--topic", "t", "--server", f"127.0.0.1:{port}", code=3, stdin=b"1")


def test_import_shows_its_key(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"TOPICS_API_KEYS": "secret:rw"}) as server:
        target = ["import", "-", "--topic", "keyed", "--server", server.grpc_target]
        assert "unauthorized" in _topics(*target, code=4, stdin=b"1")
        text = _topics(*target, "--key-env", "MY_KEY", stdin=b"1", env=os.environ | {"MY_KEY": "secret"})
        assert "read back 1 record," in text


def test_wait_ready(server: ServerProcess) -> None:
    assert _topics("wait-ready", "--url", server.base) == ""
    port = free_port()
    text = _topics("wait-ready", "--url", f"http://127.0.0.1:{port}", "--timeout", 0.3, code=3)
    assert "not ready after 0.3 s" in text


def test_create_makes_a_topic_and_adds_partitions(server: ServerProcess) -> None:
    at = ("--server", server.grpc_target)
    assert _topics("create", "wide", "--partitions", 3, *at) == "wide: created, 3 partitions\n"
    with Api(server.base) as api:
        api.put("narrow", cap_records=7).raise_for_status()
        assert _topics("create", "narrow", *at) == "narrow: already exists, 1 partition\n"
        assert _topics("create", "narrow", "--partitions", 2, *at) == "narrow: 1 partition added, 2 in total\n"
        assert api.client.get("/v0/topics/narrow").json()["config"]["cap_records"] == 7
    assert "topic_exists_incompatible" in _topics("create", "wide", "--partitions", 2, *at, code=1)
    assert "at least 1" in _topics("create", "wide", "--partitions", 0, *at, code=2)


def test_groups_and_their_lag(server: ServerProcess) -> None:
    at = ("--server", server.grpc_target)
    with Api(server.base) as api:
        for topic in ("lag-a", "lag-b"):
            api.client.post(f"/v0/topics/{topic}", json={"records": [{"data": i} for i in range(5)]}).raise_for_status()
        commit = {"positions": [{"topic": "lag-a", "from_seq": 2}, {"topic": "lag-b", "from_seq": 5}]}
        api.client.post("/v0/groups/readers/commit", json=commit).raise_for_status()
    listed = [line.split() for line in _topics("groups", *at).splitlines()]
    assert listed[0] == ["GROUP", "STATE", "MEMBERS", "POSITIONS", "LAG"]
    assert ["readers", "Empty", "0", "2", "3"] in listed
    assert [line.split() for line in _topics("groups", "readers", *at).splitlines()] == [
        ["TOPIC", "PARTITION", "FROM_SEQ", "HEAD_SEQ", "LAG"],
        ["lag-a", "0", "2", "5", "3"],
        ["lag-b", "0", "5", "5", "0"],
    ]
    shown = json.loads(_topics("groups", "readers", "--topic", "lag-a", "--json", *at))
    assert shown == {"topic": "lag-a", "partition": 0, "from_seq": 2, "head_seq": 5, "lag": 3}
    moved = [json.loads(line) for line in _topics("groups", "readers", "--reset", "1", "--json", *at).splitlines()]
    assert [(row["topic"], row["lag"]) for row in moved] == [("lag-a", 4), ("lag-b", 4)]
    moved = json.loads(_topics("groups", "readers", "--reset", "latest", "--topic", "lag-a", "--json", *at))
    assert (moved["from_seq"], moved["lag"]) == (5, 0)
    for bad in (["--reset", "1"], ["readers", "--reset", "x"], ["readers", "--reset", "1", "--delete"]):
        assert _topics("groups", *bad, *at, code=2).startswith("topics groups: ")
    assert _topics("groups", "nobody", *at, code=5).startswith("topics groups: group_not_found")
    assert json.loads(_topics("groups", "readers", "--delete", "--yes", "--json", *at)) == {
        "group": "readers",
        "deleted": True,
    }
    assert all(line.split()[0] != "readers" for line in _topics("groups", *at).splitlines())
