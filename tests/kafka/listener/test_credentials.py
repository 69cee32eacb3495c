"""SCRAM and OAUTHBEARER, by clients of Kafka and by hand."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from support.kafka_wire import Wire
from support.server import ServerProcess
from support.tokens import SECRET, claims, hs256
from topics_kafka.protocol import ApiKey
from topics_service.api.access import scram
from topics_service.api.access.passwords import MAX_FAILURES
from topics_service.api.access.verifiers import verifier

PASSWORD = "ädä's pässword"
KEY = "a-key-of-forty-characters-for-everything"
SCRAM = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {
        "TOPICS_SQL_USERS": f"ada:{PASSWORD}:dba,bob:bobs password:user:app.",
        "TOPICS_API_KEYS": KEY,
        "TOPICS_JWT_SECRET": SECRET,
    }
    with ServerProcess(tmp_path_factory.mktemp("guarded"), kafka=True, env=env) as running:
        yield running


def librdkafka(server: ServerProcess, mechanism: str, **more: Any) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": f"127.0.0.1:{server.kafka_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            **{name.replace("sasl_", "sasl."): value for name, value in more.items()},
        }
    )


@pytest.mark.parametrize("mechanism", SCRAM)
def test_librdkafka_proves_a_password(guarded: ServerProcess, mechanism: str) -> None:
    admin = librdkafka(guarded, mechanism, sasl_username="ada", sasl_password=PASSWORD)
    assert len(admin.list_topics(timeout=10).brokers) == 1
    wrong = librdkafka(guarded, mechanism, sasl_username="eve", sasl_password="another")  # tries more than 20 times
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=1)


@pytest.mark.parametrize("mechanism", SCRAM)
async def test_aiokafka_proves_a_password(guarded: ServerProcess, mechanism: str) -> None:
    options: Any = {
        "bootstrap_servers": f"127.0.0.1:{guarded.kafka_port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    async with AIOKafkaProducer(sasl_plain_username="ada", sasl_plain_password=PASSWORD, **options) as producer:
        found = await producer.send_and_wait("app.scram", b"proved")
        assert found.offset >= 0
    wrong = AIOKafkaProducer(sasl_plain_username="bob", sasl_plain_password="x", **options)
    with pytest.raises(KafkaConnectionError):
        await wrong.start()
    await wrong.stop()


class _Provider(AbstractTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


async def test_clients_with_tokens(guarded: ServerProcess) -> None:
    token = hs256(claims("service"))
    options: Any = {
        "bootstrap_servers": f"127.0.0.1:{guarded.kafka_port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
    }
    async with AIOKafkaProducer(sasl_oauth_token_provider=_Provider(token), **options) as producer:
        assert (await producer.send_and_wait("app.token", b"by aiokafka")).offset == 0

    def librdkafka_token(_config: str) -> tuple[str, float]:
        return token, time.time() + 600

    admin = librdkafka(guarded, "OAUTHBEARER", oauth_cb=librdkafka_token)
    admin.poll(1)
    assert "app.token" in (await asyncio.to_thread(admin.list_topics, timeout=10)).topics


def begin(wire: Wire, mechanism: str) -> None:
    assert wire.call(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)["error_code"] == 0


def step(wire: Wire, data: bytes) -> dict[str, Any]:
    return dict(wire.call(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=data))


def test_a_token_by_hand(guarded: ServerProcess) -> None:
    with Wire(guarded.kafka_port) as wire:
        begin(wire, "OAUTHBEARER")
        answer = step(wire, b"n,,\1auth=Bearer " + hs256(claims("service")).encode() + b"\1traceId=7\1\1")
        assert (answer["error_code"], answer["auth_bytes"]) == (0, b"")
        assert 0 < answer["session_lifetime"] <= 24 * 3600 * 1000
        assert wire.call(ApiKey.METADATA, topics=[])["controller_id"] == 1
    with Wire(guarded.kafka_port) as wire:
        begin(wire, "OAUTHBEARER")
        assert step(wire, b"n,,\1auth=Bearer " + KEY.encode() + b"\1\1")["error_code"] == 0, "keys are bearers too"


def test_a_wrong_token_is_told_in_two_steps(guarded: ServerProcess) -> None:
    with Wire(guarded.kafka_port) as wire:
        begin(wire, "OAUTHBEARER")
        answer = step(wire, b"n,,\1auth=Bearer wrong\1\1")
        assert (answer["error_code"], answer["auth_bytes"]) == (0, b'{"status":"invalid_token"}')
        answer = step(wire, b"\1")
        assert (answer["error_code"], answer["error_message"]) == (58, "wrong credentials")
        assert wire.is_closed()


def test_a_wrong_token_authenticates_nobody_in_between(guarded: ServerProcess) -> None:
    with Wire(guarded.kafka_port) as wire:
        begin(wire, "OAUTHBEARER")
        step(wire, b"n,,\1auth=Bearer wrong\1\1")
        wire.send(ApiKey.METADATA, 12, {"topics": []})
        assert wire.is_closed()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1",
        b"n,,",
        b"n,,\1auth=Basic x\1\1",
        b"p,,\1auth=Bearer x\1\1",
        b"n,,\1auth=Bearer x",
        b"n,,\1\1",
        b"\xff",
    ],
)
def test_messages_that_are_none_of_oauthbearer(guarded: ServerProcess, data: bytes) -> None:
    with Wire(guarded.kafka_port) as wire:
        begin(wire, "OAUTHBEARER")
        assert step(wire, data)["error_code"] == 58
        assert wire.is_closed()


@pytest.mark.parametrize(
    "data",
    [b"", b"n,,", b"n,,n=,r=x", b"n,,n=ada", b"n,,n=ada,r=", b"p=tls-unique,,n=ada,r=x", b"n,,n=a=2Xda,r=x", b"\xff",
     b"n,,n=ada,r=" + b"x" * 5000],
)  # fmt: skip
def test_first_messages_that_are_none_of_scram(guarded: ServerProcess, data: bytes) -> None:
    with Wire(guarded.kafka_port) as wire:
        begin(wire, "SCRAM-SHA-256")
        answer = step(wire, data)
        assert (answer["error_code"], answer["auth_bytes"]) == (58, b"")
        assert wire.is_closed()


def test_an_unknown_user_gets_as_far_as_a_known_one(guarded: ServerProcess) -> None:
    salts = set()
    for _ in range(2):
        with Wire(guarded.kafka_port) as wire:
            begin(wire, "SCRAM-SHA-512")
            first = step(wire, b"n,,n=nobody,r=nonce")
            assert first["error_code"] == 0
            nonce, salt, cost = first["auth_bytes"].tobytes().decode().split(",")
            salts.add(salt)
            assert cost == "i=16384"
            last = step(wire, f"c=biws,{nonce},p=".encode() + b"A" * 86 + b"==")
            assert (last["error_code"], last["error_message"]) == (58, "wrong credentials")
            assert wire.is_closed()
    assert len(salts) == 1, "the salt of an unknown user does not change either"


def test_guesses_are_bounded(guarded: ServerProcess) -> None:
    messages = set()
    for _ in range(MAX_FAILURES + 1):
        with Wire(guarded.kafka_port) as wire:
            begin(wire, "SCRAM-SHA-256")
            nonce = step(wire, b"n,,n=guessed,r=nonce")["auth_bytes"].tobytes().decode().partition(",")[0]
            last = step(wire, f"c=biws,{nonce},p=".encode() + b"A" * 43 + b"=")
            assert last["error_code"] == 58
            messages.add(last["error_message"])
    assert messages == {"wrong credentials", "too many wrong passwords for this user from this address"}


def test_a_server_without_authentication_can_prove_nobody(server: ServerProcess) -> None:
    with Wire(server.kafka_port) as wire:
        begin(wire, "OAUTHBEARER")
        assert step(wire, b"n,,\1auth=Bearer whatever\1\1")["error_code"] == 0
    with Wire(server.kafka_port) as wire:
        begin(wire, "SCRAM-SHA-256")
        nonce = step(wire, b"n,,n=ada,r=nonce")["auth_bytes"].tobytes().decode().partition(",")[0]
        assert step(wire, f"c=biws,{nonce},p=".encode() + b"A" * 43 + b"=")["error_code"] == 58


def test_names_with_signs_of_the_syntax() -> None:
    assert scram.user_of(b"n,,n=a=2Cb=3Dc,r=x") == "a,b=c"
    kept = verifier("secret")
    exchange = scram.Exchange(scram.SHA_256, kept, "a,b=c", b"key", nonce="server")
    assert exchange.first(b"n,a=me,n=a=2Cb=3Dc,r=client").startswith(b"r=clientserver,s=")
