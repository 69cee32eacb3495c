"""Clients with an API key as the password, with and without TLS."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.kafka_clients import Client, Record, refused
from support.kafka_kinds import KINDS, usable
from support.server import ServerProcess

AUTHENTICATION_FAILED, TOPIC_DENIED = 58, 29
KEYS = "sekret-full,sekret-read:read"


class Guarded(NamedTuple):
    """A server with keys and TLS, and its certificate."""

    server: ServerProcess
    certificate: Path

    def connection(self, password: str) -> dict[str, str]:
        """The settings to connect with this password."""
        where = f"localhost:{self.server.kafka_port}"
        return {"bootstrap": where, "ca": str(self.certificate), "user": "anybody", "password": password}


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with keys and no TLS."""
    with ServerProcess(tmp_path_factory.mktemp("keys"), env={"TOPICS_API_KEYS": KEYS}, kafka=True) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("tls")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*make, *names, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    env = {"TOPICS_API_KEYS": KEYS, "TOPICS_KAFKA_TLS_CERT": certificate, "TOPICS_KAFKA_TLS_KEY": key}
    with ServerProcess(directory / "server", env=env | {"TOPICS_KAFKA_ADVERTISED": "localhost"}, kafka=True) as server:
        yield Guarded(server, certificate)


def works(client: Client, topic: str, connection: dict[str, str]) -> None:
    """The client writes and reads with this connection."""
    records = [Record(0, b"k", b"%d" % i) for i in range(5)]
    if "admin" not in KINDS[client.name].lacks:
        client.call("create_topic", topic=topic, partitions=1, connection=connection)
    client.produce(topic, records, connection=connection)
    found = client.read(topic, {0: 0}, connection=connection)
    assert [record.value for record in found.records] == [record.value for record in records]


def test_good_and_bad_passwords(client: Client, open_server: ServerProcess, topic: str) -> None:
    good = {"bootstrap": f"127.0.0.1:{open_server.kafka_port}", "user": "anybody", "password": "sekret-full"}
    works(client, topic, good)
    do = ("offsets", {"partition": 0, "at": "latest"}) if client.name == "kcat" else ("describe_topic", {})
    code = refused(client, do[0], topic=topic, connection=good | {"password": "wrong"}, **do[1])
    assert code == (None if "login error" in KINDS[client.name].lacks else AUTHENTICATION_FAILED)


def test_a_key_without_the_scope(open_server: ServerProcess, topic: str, clients: object) -> None:
    client = clients("confluent-kafka")  # type: ignore[operator]
    good = {"bootstrap": f"127.0.0.1:{open_server.kafka_port}", "user": "anybody", "password": "sekret-full"}
    works(client, topic, good)
    reader = good | {"password": "sekret-read"}
    assert len(client.read(topic, {0: 0}, connection=reader).records) == 5
    records = [{"partition": 0, "key": None, "value": None}]
    assert refused(client, "produce", topic=topic, records=records, acks=-1, connection=reader) == TOPIC_DENIED
    assert refused(client, "delete_topic", topic=topic, connection=reader) == TOPIC_DENIED


@pytest.mark.parametrize("name", KINDS)
def test_tls(guarded: Guarded, topic: str, tmp_path: Path, name: str) -> None:
    connection = guarded.connection("sekret-full")
    with usable(name).start(connection, tmp_path) as client:
        works(client, topic, connection)
