"""Values of settings: units, refused values and their errors, and ignored variables."""

import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from support.server import TOPICS, ServerProcess
from support.waiting import poll
from topics_client.environment import VARIABLES
from topics_server.settings import UNUSED, Settings, SettingsError, ignored_variables, load

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("memory_bytes", "1GiB", 1 << 30),
        ("memory_bytes", "500MB", 500_000_000),
        ("memory_bytes", "64k", 1 << 16),
        ("memory_bytes", "1.5 MiB", 3 << 19),
        ("memory_bytes", "1048576", 1 << 20),
        ("max_bytes_in_flight_per_key", "1MiB", 1 << 20),
        ("group_retention_ms", "7d", 604_800_000),
        ("max_lag_ms", "250", 250),
        ("max_lag_ms", " 1s ", 1000),
        ("drain_seconds", "30", 30),
        ("drain_seconds", "30s", 30),
        ("wal_archive_seconds", "2d", 172_800),
        ("max_topics", "7", 7),
        ("port", "0", 0),
        ("kafka_port", "9092", "9092"),
        ("log_level", "WARNING", "warning"),
        ("kafka_auto_create", "0", 0),
        ("tracing", "false", False),
        ("memory_bytes", "", 1 << 30),
        ("data_dir", "", "./topics-data"),
    ],
)
def test_a_value_may_have_a_unit_and_else_has_that_of_its_name(name: str, text: str, value: object) -> None:
    settings = load({f"TOPICS_{name.upper()}": text}, {})
    assert getattr(settings, name) == value


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("PORT", "abc", "a port, a number from 0 to 65535"),
        ("PORT", "65536", "a port, a number from 0 to 65535"),
        ("GRPC_PORT", "-1", "a port, a number from 0 to 65535"),
        ("KAFKA_PORT", "9092x", "a port, a number from 0 to 65535"),
        ("KAFKA_ADVERTISED", "PLAINTEXT://kafka:9092", "an address: a host or host:port, without a scheme"),
        ("HOST", "http://127.0.0.1", "an address: a host or host:port, without a scheme"),
        ("HOST", "127.0.0.1:", "an address"),
        ("HOST", "127.0.0.1:port", "an address: its port must be a port, a number from 0 to 65535"),
        ("MAX_TOPICS", "many", "a number of at least 0"),
        ("MAX_TOPICS", "1.5", "a number of at least 0"),
        ("MAX_TOPICS", "9" * 5000, "a number of at least 0"),
        ("MAX_TOPICS", "\u00b2", "a number of at least 0"),
        ("KAFKA_AUTO_CREATE", "yes", "a number from 0 to 1"),
        ("MEMORY_BYTES", "1 gigabyte", "a size such as 65536, 64KiB, 500MB or 2GiB"),
        ("MEMORY_BYTES", "1.5", "a size such as"),
        ("MEMORY_BYTES", "7d", "a size such as"),
        ("MEMORY_BYTES", "9999999TiB", "below 2**63"),
        ("MAX_LAG_MS", "1GiB", "a time such as 500ms, 30s, 5m, 2h or 7d"),
        ("DRAIN_SECONDS", "250ms", "a whole number of seconds, or a time such as 30s"),
        ("PROBE_AUTH", "yes", "1 or true (on), 0 or false (off)"),
        ("LOG_LEVEL", "loud", "one of debug, info, warning, error"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name_with_what_is_expected(name: str, text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as error:
        load({f"TOPICS_{name}": text}, {})
    assert str(error.value).startswith(f"TOPICS_{name}={text[:80]!r}"[:80])
    assert f" is not {expected}" in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("name", ["PORT", "GRPC_PORT", "KAFKA_PORT"])
def test_what_kubernetes_sets_is_ignored_with_a_warning(name: str) -> None:
    env = {f"TOPICS_{name}": "tcp://10.0.0.1:4000"}
    assert load(env, {}) == load({}, {})
    (line,) = ignored_variables(env)
    assert line.startswith(f"TOPICS_{name}=tcp://10.0.0.1:4000 is ignored")
    service = {"PORT": "topics", "GRPC_PORT": "topics-grpc", "KAFKA_PORT": "topics-kafka"}[name]
    assert f"beside a service named {service}; enableServiceLinks: false in the pod's spec switches that off" in line


def test_only_what_somebody_may_rely_on_is_warned_of() -> None:
    injected = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_4000_TCP", "PORT_4000_TCP_ADDR"]
    injected += ["PORT_4000_TCP_PORT", "PORT_4000_TCP_PROTO", "UI_SERVICE_HOST", "UI_PORT_80_TCP"]
    env = {f"TOPICS_{name}": "1" for name in injected} | {"TOPICS_UI_PORT": "tcp://10.0.0.2:80", "OTHER": "1"}
    known = {setting.metadata["env"] for setting in fields(Settings)} | VARIABLES.keys() | UNUSED
    assert ignored_variables(env | dict.fromkeys(known, "1")) == []
    assert ignored_variables({"TOPICS_DATADIR": "s3cret", "TOPICS_QQQ": "s3cret", "TOPICS_API_KEY_FILE": "s3cret"}) == [
        "TOPICS_API_KEY_FILE is no setting and is ignored: did you mean TOPICS_API_KEYS_FILE?",
        "TOPICS_DATADIR is no setting and is ignored: did you mean TOPICS_DATA_DIR?",
        "TOPICS_QQQ is no setting and is ignored: topics serve --help lists all settings",
    ]


def test_no_variable_is_read_that_the_registries_do_not_know() -> None:
    """Else the server would warn of it: `environment.VARIABLES` has those of clients, `Settings` its own."""
    known = {setting.metadata["env"] for setting in fields(Settings)} | VARIABLES.keys() | UNUSED
    read = re.compile(r"(?:environ|getenv|key_env)\b[^\n]{0,40}?[\"'](TOPICS_[A-Z0-9_]+)[\"']")
    code = [*ROOT.glob("sdk/python/**/*.py"), *ROOT.glob("spark_connector/**/*.py"), *ROOT.glob("service/**/*.py")]
    found = {name for file in code for name in read.findall(file.read_text())}
    assert {"TOPICS_URL", "TOPICS_API_KEY"} <= found <= known


def test_a_server_refuses_or_warns_in_its_log(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, env={"TOPICS_PORT": "abc"})
    server.spawn()
    assert server.wait(20) == 1
    assert server.log == "topics: TOPICS_PORT='abc' is not a port, a number from 0 to 65535\n"
    assert not server.data_dir.exists()

    env = {"TOPICS_KAFKA_PORT": "tcp://10.0.0.1:9092", "TOPICS_MEMORY_BYTES": "64MiB", "TOPICS_MAX_TOPIC": 3}
    server = ServerProcess(tmp_path / "second", env=env)
    with server:
        assert re.search(r"WARNING topics\.server: TOPICS_KAFKA_PORT=tcp://10\.0\.0\.1:9092 is ignored", server.log)
        assert "WARNING topics.server: TOPICS_MAX_TOPIC is no setting and is ignored: did you mean TOP" in server.log
        assert server.stop() == 0


def test_flags_take_units_and_are_refused_in_the_same_words(tmp_path: Path) -> None:
    for flag, text, says in (
        ("--port", "x", "argument --port: 'x' is not a port, a number from 0 to 65535; usage: topics serve --help"),
        ("--memory-bytes", "1XB", "argument --memory-bytes: '1XB' is not a size such as 65536, 64KiB, 500MB or 2GiB"),
        ("--log-format", "xml", "argument --log-format: 'xml' is not one of text, json"),
    ):
        done = subprocess.run([TOPICS, "serve", flag, text], capture_output=True, text=True, timeout=30)
        assert done.returncode == 2
        assert says in done.stderr
    files = [tmp_path / "http", tmp_path / "grpc"]
    arguments = ["--port", "0", "--grpc-port", "0", "--port-file", str(files[0]), "--drain-seconds", "1m"]
    arguments += ["--memory-bytes", "64MiB", "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen([TOPICS, "serve", *arguments], stderr=subprocess.PIPE, text=True) as running:
        try:
            poll(files[0].exists, 20, "the port file")
            running.terminate()
            _, log = running.communicate(timeout=20)
        finally:
            running.kill()
    assert running.returncode == 0
    assert "draining for up to 60 s" in log
