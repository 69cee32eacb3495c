"""What a person reads of a server that starts, that can't, and that stops."""

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.http import Api
from support.server import TOPICS, ServerProcess
from topics_cli import COMMANDS, parser
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import StoreOpenError

ROOT = Path(__file__).parents[2]


def test_a_directory_in_use_names_the_server_that_has_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        second = ServerProcess(tmp_path / "second", data_dir=server.data_dir)
        second.spawn()
        assert second.wait(20) == 1
        assert second.log == (
            f"topics: can't open the data directory {server.data_dir}: it is in use by another server "
            f"(process {server.pid}), and takes one at a time\n"
        )
        assert server.stop() == 0


def test_a_directory_that_this_process_has_is_told_apart(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "data")
    try:
        with pytest.raises(StoreOpenError, match=r"data: this process has it open already$"):
            RocksStore(tmp_path / "data")
    finally:
        store.close()


def test_the_log_counts_as_people_do_and_tells_the_end(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, env={"TOPICS_API_KEYS": "one"})
    headers = {"Authorization": "Bearer one"}
    for number, (ready, saved) in enumerate(
        (("0 topics", "1 topic"), ("1 topic", "2 topics"), ("2 topics", "2 topics"))
    ):
        start = len(server.log)
        with server:
            with Api(server.base) as api:
                if number < 2:
                    body = {"records": [{"data": 1}]}
                    api.client.post(f"/v0/topics/t{number}", json=body, headers=headers).raise_for_status()
                else:
                    config = {"durability": "ephemeral"}
                    api.client.put("/v0/topics/e", json=config, headers=headers).raise_for_status()
            server.signal(signal.SIGTERM)
            assert server.wait(20) == 0
        log = server.log[start:]
        assert f"INFO topics.server: ready with {ready}\n" in log
        assert "authentication is on, with 1 API key\n" in log
        gone = "; the records of 1 ephemeral topic are gone" if number == 2 else ""
        assert re.search(rf" INFO topics\.server: stopped after \d\.\d s: {saved} saved{gone}\n\Z", log), log


@pytest.mark.parametrize("protocol", ["", "GRPC_", "KAFKA_"])
def test_a_port_file_that_cannot_be_written_is_named(tmp_path: Path, protocol: str) -> None:
    server = ServerProcess(tmp_path, env={f"TOPICS_{protocol}PORT_FILE": "/no/such/folder/port"}, kafka=True)
    server.spawn()
    assert server.wait(20) == 1
    last = server.log.splitlines()[-1]
    assert last == f"topics: TOPICS_{protocol}PORT_FILE /no/such/folder/port: No such file or directory"
    assert "Traceback" not in server.log


def test_a_body_may_be_larger_than_grpc_can_count(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"TOPICS_MAX_BODY_BYTES": "4GiB"}) as server, Api(server.base) as api:
        api.append("t", 1)
        assert server.stop() == 0


def arguments_of(command: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All of a command, and of its actions."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from arguments_of(each)
        else:
            yield action


@pytest.mark.parametrize("name", COMMANDS)
def test_no_argument_is_refused_in_the_names_of_python(name: str) -> None:
    """Else argparse says "invalid _count value"."""
    command = parser(name)
    for action in arguments_of(command):
        if not callable(action.type):
            continue
        for text in ("?", "", "-1", "1e999", "\u00b2"):
            with contextlib.suppress(argparse.ArgumentTypeError):
                action.type(text)


def test_lines_of_grpc_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """Not where a client speaks TLS to a port without, or is hung up on: neither side."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "GRPC_"))}
    config = tmp_path / "lakehouse.toml"
    with ServerProcess(tmp_path) as server:
        url = f"topics+tls://{server.grpc_target}"
        config.write_text(f'server = "{url}"\nwarehouse = "{tmp_path}/tables"\n[[topics]]\nname = "t"\n')
        for command in (["ls", "--server", url], ["lakehouse", "status", "--topic", "t", "--config", str(config)]):
            done = subprocess.run([str(TOPICS), *command], env=env, capture_output=True, text=True, timeout=60)
            assert done.returncode in (1, 3), done
            assert f"{url}: there is no TLS at that port" in done.stdout + done.stderr
            assert not re.search(r"^[IWEF]\d{4} ", done.stdout + done.stderr, re.MULTILINE), done
        with socket.create_connection(("127.0.0.1", int(server.grpc_target.rpartition(":")[2])), 10) as stranger:
            stranger.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300))
            stranger.settimeout(10)
            with contextlib.suppress(OSError):
                while stranger.recv(1 << 10):
                    pass
        assert server.stop() == 0
        assert all(re.match(r"\d{4}-\d\d-\d\d ", line) for line in server.log.splitlines()), server.log


def test_a_base_install_lists_the_settings_and_says_what_is_missing() -> None:
    """Without the packages of the extra `server`."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["server"]
    named = {re.split(r"[<>=;]", each)[0].strip() for each in extra}
    assert {"msgspec", "uvloop"} <= named
    code = f"""
import sys
from importlib.metadata import packages_distributions
missing = {{name for name, found in packages_distributions().items() if {named!r} & set(found)}} - {{"google"}}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from topics_cli import main
sys.exit(main(sys.argv[1:]))
"""
    listed = subprocess.run([sys.executable, "-c", code, "serve", "--help"], capture_output=True, text=True, timeout=60)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "--memory-bytes SIZE" in listed.stdout
    refused = [sys.executable, "-c", code, "serve", "--port", "0", "--memory-bytes", "1GiB"]
    done = subprocess.run(refused, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("topics serve: the extra [server] is not installed (")
