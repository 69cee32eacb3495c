"""The codec against kio, which is made from Kafka's own message definitions: the same bytes for the same messages."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from support.kafka_kio import Maker, message, request, response, served
from topics_kafka.protocol import (
    SUPPORTED,
    ApiKey,
    ErrorCode,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from topics_kafka.registry import APIS

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).with_name("golden.txt")
ROUNDS = 12

versions = pytest.mark.parametrize(("key", "version"), list(served()), ids=lambda value: str(value))


@versions
def test_requests_are_the_bytes_of_kio(key: int, version: int) -> None:
    maker = Maker(random.Random(f"request {key} {version}"))
    for turn in range(ROUNDS):
        client_id = maker.rng.choice([None, "", "client-ä"])
        entity, frame = request(maker, key, version, turn, client_id)
        body = message(entity)
        assert b"".join(encode_request(key, version, turn, client_id, body)) == frame
        header = {
            "request_api_key": key,
            "request_api_version": version,
            "correlation_id": turn,
            "client_id": client_id,
        }
        for buffer in (frame, bytearray(frame), memoryview(frame)):
            assert decode_request(buffer) == (header, body)


@versions
def test_responses_are_the_bytes_of_kio(key: int, version: int) -> None:
    maker = Maker(random.Random(f"response {key} {version}"))
    for turn in range(ROUNDS):
        entity, frame = response(maker, key, version, turn)
        body = message(entity)
        assert b"".join(encode_response(key, version, turn, body)) == frame
        for buffer in (frame, bytearray(frame), memoryview(frame)):
            assert decode_response(key, version, buffer) == (turn, body)


def test_golden_bytes_are_read_and_written_unchanged() -> None:
    seen = set()
    for line in GOLDEN.read_text(encoding="ascii").splitlines():
        key, version, side, hexed = line.split()
        api, frame = (int(key), int(version)), bytes.fromhex(hexed)
        seen.add((*api, side))
        if side == "request":
            header, body = decode_request(frame)
            again = encode_request(*api, header["correlation_id"], header["client_id"], body)
        else:
            correlation_id, body = decode_response(*api, frame)
            again = encode_response(*api, correlation_id, body)
        assert b"".join(again) == frame, line[:40]
    assert seen == {(*api, side) for api in served() for side in ("request", "response")}


def test_the_schema_is_up_to_date() -> None:
    script = ROOT / "gateway_kafka" / "generate_schema.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_codec_does_not_import_kio() -> None:
    code = "import sys, topics_kafka.protocol as p; p.encode_response(18, 4, 1, {}); assert 'kio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_error_codes_are_kafkas() -> None:
    for code in ErrorCode:
        assert KioErrorCode(code).name == code.name.lower()


def test_every_api_has_a_key_and_a_range() -> None:
    assert set(ApiKey) == set(SUPPORTED)
    assert dict(SUPPORTED) == {key: api.versions for key, api in APIS.items()}
    assert APIS[ApiKey.PRODUCE].versions == (3, 13)
    assert APIS[ApiKey.PRODUCE].advertised == (0, 13)
    assert {key for key, api in APIS.items() if api.advertised != api.versions} == {ApiKey.PRODUCE}


def test_the_ranges_that_were_measured_with_clients() -> None:
    measured = (
        "0:3-13 1:4-17 2:1-11 3:0-13 8:2-10 9:1-10 10:0-6 11:0-9 12:0-4 13:0-5 14:0-5 15:0-6 16:0-5 17:0-1 18:0-4"
        " 19:2-7 20:1-6 21:0-2 22:0-5 23:2-4 29:1-3 30:1-3 31:1-3 32:1-4 33:0-2 35:1-4 36:0-2 37:0-3 42:0-2 43:0-2"
        " 44:0-1 45:0-1 46:0-0 47:0-0 48:0-1 49:0-1 50:0-0 51:0-0 55:0-2 60:0-2 61:0-0 65:0-0"
        " 66:0-2 68:0-1 69:0-1 74:0-1 75:0-0"
    )
    assert " ".join(f"{key}:{first}-{last}" for key, (first, last) in SUPPORTED.items()) == measured
