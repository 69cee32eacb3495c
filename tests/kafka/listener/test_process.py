"""Settings, start and stop of the Kafka port."""

import signal
import socket
from pathlib import Path

import pytest

from support.kafka_wire import ClosedError, Wire
from support.server import ServerProcess
from support.waiting import poll
from topics_kafka.protocol import ApiKey
from topics_server.settings import SettingsError, load, split_host


def test_there_is_no_port_unless_it_is_set(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        assert "Kafka" not in server.log
    assert load({}, {}).kafka_port == ""
    assert load({}, {"kafka_port": "9092"}).kafka_port == "9092"


@pytest.mark.parametrize(
    "env",
    [
        {"TOPICS_KAFKA_PORT": "x"},
        {"TOPICS_KAFKA_PORT": "-1"},
        {"TOPICS_KAFKA_PORT": "65536"},
        {"TOPICS_KAFKA_ADVERTISED": "host:port"},
        {"TOPICS_KAFKA_TLS_KEY": "key.pem"},
        {"TOPICS_KAFKA_PORT": "0", "TOPICS_HOST": "0.0.0.0"},
    ],
)
def test_settings_that_are_refused(env: dict[str, str]) -> None:
    with pytest.raises(SettingsError):
        load(env, {})


def test_the_settings_of_the_listener() -> None:
    settings = load({"TOPICS_MEMORY_BYTES": str(1 << 30), "TOPICS_KAFKA_NODE_ID": str(1 << 40)}, {})
    assert settings.kafka.frame_bytes == 256 << 20
    assert settings.kafka.node_id == (1 << 31) - 1
    assert settings.kafka.auto_create
    assert not load({"TOPICS_KAFKA_AUTO_CREATE": "0"}, {}).kafka.auto_create


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("", "", ""),
        ("broker", "broker", ""),
        ("broker:9", "broker", "9"),
        ("::1", "::1", ""),
        ("[::1]", "::1", ""),
        ("[::1]:9", "::1", "9"),
    ],
)
def test_advertised_addresses(text: str, host: str, port: str) -> None:
    assert split_host(text) == (host, port)


def test_a_taken_port_is_refused_without_touching_the_data(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = ServerProcess(tmp_path, env={"TOPICS_KAFKA_PORT": port}, kafka=True)
        server.spawn()
        assert server.wait(20) == 1
    assert f"can't listen on 127.0.0.1:{port}" in server.log
    assert not server.data_dir.exists()


def test_a_stop_ends_idle_connections_at_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, kafka=True) as server, Wire(server.kafka_port) as wire:
        wire.call(ApiKey.METADATA, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        server.signal(signal.SIGTERM)
        with pytest.raises(ClosedError):
            wire.read_frame()
        assert server.wait(20) == 0
        with pytest.raises(ConnectionRefusedError):
            Wire(server.kafka_port)


def test_a_stop_ends_a_long_poll_with_its_answer(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, kafka=True) as server, Wire(server.kafka_port) as wire, Wire(server.kafka_port) as two:
        wire.call(ApiKey.METADATA, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
        asked = {
            "max_wait": 60_000,
            "min_bytes": 1,
            "max_bytes": 1000,
            "topics": [{"topic": "t", "partitions": partitions}],
        }
        number = wire.send(ApiKey.FETCH, 12, asked)

        def in_flight() -> bool:
            with socket.create_connection(("127.0.0.1", server.http_port), 10) as sock:
                sock.sendall(b"GET /v0/metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                text = b"".join(iter(lambda: sock.recv(65536), b""))
            return b"\ntopics_kafka_requests_in_flight 1" in text

        poll(in_flight, what="the fetch to wait")
        server.signal(signal.SIGTERM)
        (topic,) = wire.receive(ApiKey.FETCH, 12, number)["responses"]
        assert not topic["partitions"][0]["records"]
        assert two.is_closed()
        assert server.wait(20) == 0


def test_a_killed_server_keeps_its_topics(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, kafka=True) as server:
        with Wire(server.kafka_port) as wire:
            names = [{"name": f"t{number}"} for number in range(20)]
            made = wire.call(ApiKey.METADATA, topics=names, allow_auto_topic_creation=True)["topics"]
        server.kill()
        server.start()
        with Wire(server.kafka_port) as wire:
            found = wire.call(ApiKey.METADATA, topics=names, allow_auto_topic_creation=False)["topics"]
    assert found == made
