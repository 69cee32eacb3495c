"""SASL: PLAIN with API keys, SCRAM with users, OAUTHBEARER with tokens, with and without TLS."""

import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.kafka_wire import ClosedError, Wire
from support.server import ServerProcess
from topics_kafka.protocol import ApiKey

from .conftest import KEYS, SECRETS
from .test_frames import closed

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


@pytest.fixture
def wire(keyed: ServerProcess) -> Iterator[Wire]:
    """A connection to the server with keys, before authentication."""
    with Wire(keyed.kafka_port) as connection:
        yield connection


def token(wire: Wire, data: bytes, version: int = 2) -> int:
    """Send SaslHandshake and SaslAuthenticate. Returns the error code."""
    assert wire.call(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")["error_code"] == 0
    return int(wire.call(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=data)["error_code"])


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("user", ["", "any", "ü"])
def test_any_user_with_a_key(version: int, user: str, wire: Wire) -> None:
    assert token(wire, f"\0{user}\0{SECRETS['read']}".encode(), version) == 0
    assert wire.call(ApiKey.METADATA, topics=[])["controller_id"] == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\0user\0wrong",
        b"\0user\0",
        b"\0user",
        b"",
        b"\0user\0sekret-full\0",
        b"other\0user\0sekret-full",
        b"\0sekret-full\0user",
        b"\0\xff\0\xff\xfe",
    ],
)
def test_wrong_credentials_are_told_and_the_connection_ends(data: bytes, wire: Wire, keyed: ServerProcess) -> None:
    before = closed(keyed, SECRETS["full"]).get("credentials", 0)
    assert token(wire, data) == 58
    assert wire.is_closed()
    assert closed(keyed, SECRETS["full"])["credentials"] == before + 1
    assert not any(secret in keyed.log for secret in SECRETS.values())


def test_acting_for_oneself_is_fine(wire: Wire) -> None:
    assert token(wire, f"user\0user\0{SECRETS['full']}".encode()) == 0


def test_other_mechanisms(wire: Wire) -> None:
    for version, mechanism in [(1, "GSSAPI"), (1, "SCRAM-SHA-1"), (1, ""), (0, "SCRAM-SHA-256"), (0, "OAUTHBEARER")]:
        answer = wire.call(ApiKey.SASL_HANDSHAKE, version, mechanism=mechanism)
        assert (answer["error_code"], answer["mechanisms"]) == (33, MECHANISMS)
    assert token(wire, f"\0u\0{SECRETS['full']}".encode()) == 0


def test_a_token_without_a_handshake(wire: Wire) -> None:
    answer = wire.call(ApiKey.SASL_AUTHENTICATE, auth_bytes=f"\0u\0{SECRETS['full']}".encode())
    assert answer["error_code"] == 34
    assert wire.is_closed()


def test_versions_are_told_before_authentication(wire: Wire) -> None:
    software = {"client_software_name": "x", "client_software_version": "1"}
    assert wire.call(ApiKey.API_VERSIONS, 3, **software)["error_code"] == 0
    assert wire.authenticate(SECRETS["full"])["error_code"] == 0


def test_authentication_again(wire: Wire) -> None:
    for _ in range(3):
        assert wire.authenticate(SECRETS["read"])["error_code"] == 0
        assert wire.call(ApiKey.METADATA, topics=[])["controller_id"] == 1
    answer = wire.authenticate(SECRETS["full"])
    assert (answer["error_code"], answer["error_message"]) == (58, "a connection can't change its API key")
    assert wire.is_closed()


def test_the_old_handshake_with_a_bare_token(keyed: ServerProcess) -> None:
    with Wire(keyed.kafka_port) as wire:
        assert wire.call(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN")["error_code"] == 0
        wire.write_frame(f"\0any\0{SECRETS['full']}".encode())
        assert wire.read_frame() == b""
        assert wire.call(ApiKey.METADATA, topics=[])["controller_id"] == 1
    with Wire(keyed.kafka_port) as wire:
        wire.call(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN")
        wire.write_frame(b"\0any\0wrong-key")
        with pytest.raises(ClosedError):
            wire.read_frame()


def test_a_server_without_keys_takes_any_credentials(server: ServerProcess) -> None:
    with Wire(server.kafka_port) as wire:
        assert wire.authenticate("whatever")["error_code"] == 0
        assert wire.call(ApiKey.METADATA, topics=[])["controller_id"] == 1
        assert wire.authenticate("something else")["error_code"] == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate of localhost, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[ServerProcess]:
    """A server with keys and TLS."""
    env = {
        "TOPICS_API_KEYS": ",".join(KEYS.values()),
        "TOPICS_KAFKA_TLS_CERT": certificate[0],
        "TOPICS_KAFKA_TLS_KEY": certificate[1],
    }
    with ServerProcess(tmp_path_factory.mktemp("encrypted"), env=env, kafka=True) as process:
        yield process


def test_tls(encrypted: ServerProcess, certificate: tuple[Path, Path]) -> None:
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    with Wire(encrypted.kafka_port, tls=trust) as wire:
        assert wire.authenticate(SECRETS["full"])["error_code"] == 0
        names = [f"t.{number}" + "x" * 200 for number in range(500)]
        made = wire.call(ApiKey.METADATA, topics=[{"name": name} for name in names], allow_auto_topic_creation=True)
        assert [topic["error_code"] for topic in made["topics"]] == [0] * 500
        for _ in range(20):  # responses of some 150 KB
            assert len(wire.call(ApiKey.METADATA, topics=None)["topics"]) >= 500
        frame = b"".join(wire.request(ApiKey.METADATA, 13, 5, {"topics": []})) + bytes(3 << 20)
        for _ in range(5):
            wire.write_frame(frame)
        for _ in range(5):
            assert wire.receive(ApiKey.METADATA, 13, 5)["topics"] == []
    with Wire(encrypted.kafka_port, tls=trust) as wire:
        assert wire.authenticate("wrong")["error_code"] == 58


def test_who_does_not_trust_or_encrypt_gets_nowhere(encrypted: ServerProcess, certificate: tuple[Path, Path]) -> None:
    with pytest.raises(ssl.SSLError):
        Wire(encrypted.kafka_port, tls=ssl.create_default_context())
    with Wire(encrypted.kafka_port) as plain:
        plain.send(ApiKey.API_VERSIONS, 0, {})
        assert plain.is_closed()
    old = ssl.create_default_context(cafile=str(certificate[0]))
    with Wire(encrypted.kafka_port, tls=old) as wire:
        assert wire.authenticate(SECRETS["full"])["error_code"] == 0


def test_a_stop_does_not_wait_for_the_goodbye_of_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    env = {"TOPICS_KAFKA_TLS_CERT": certificate[0], "TOPICS_KAFKA_TLS_KEY": certificate[1]}
    with ServerProcess(tmp_path, env=env, kafka=True) as server, Wire(server.kafka_port, tls=trust) as wire:
        wire.call(ApiKey.METADATA, topics=[])
        assert server.stop(6) == 0
        assert "cutting" not in server.log


def test_a_certificate_that_can_not_be_read_is_told(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nonsense")
    for cert, key in ((bad, certificate[1]), (certificate[0], tmp_path / "missing.pem"), (certificate[0], bad)):
        env = {"TOPICS_KAFKA_TLS_CERT": cert, "TOPICS_KAFKA_TLS_KEY": key}
        server = ServerProcess(tmp_path / "server", env=env, kafka=True)
        server.spawn()
        assert server.wait(20) == 1
        assert "TOPICS_KAFKA_TLS_CERT" in server.log
        assert not server.data_dir.exists(), "refused before the data directory was touched"


def test_each_connection_has_its_own_principal(login: Callable[[str], Wire]) -> None:
    read, full = login("read"), login("full")
    asked = {"topics": [{"name": "t.own", "num_partitions": 1, "replication_factor": 1}]}
    assert read.call(ApiKey.CREATE_TOPICS, **asked)["topics"][0]["error_code"] == 29
    assert full.call(ApiKey.CREATE_TOPICS, **asked)["topics"][0]["error_code"] == 0
    assert read.call(ApiKey.CREATE_TOPICS, **asked)["topics"][0]["error_code"] == 29
