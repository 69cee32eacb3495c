"""Hostile and malformed bytes: decoders raise only MalformedError, and allocate no memory because of a length."""

import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from support.kafka_kio import served
from topics_kafka.protocol import (
    MalformedError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_header,
)
from topics_kafka.protocol.decoding import MAX_ELEMENTS
from topics_kafka.protocol.schema import SCHEMA

GOLDEN = Path(__file__).with_name("golden.txt")
FRAMES: dict[str, dict[tuple[int, int], bytes]] = {"request": {}, "response": {}}
for golden in GOLDEN.read_text(encoding="ascii").splitlines():
    api_key, api_version, message_side, hexed = golden.split()
    FRAMES[message_side][int(api_key), int(api_version)] = bytes.fromhex(hexed)

CLIENT = "golden"
HEADER = 10 + len(CLIENT)
"""The position after the client id in the golden requests."""

HOSTILE = [
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x80",
    b"\0" * 8,
    b"\xfe" * 3,
]


FETCH_12 = "ffffffff 00000001 00000001 00000001 00 00000000 00000000 01 01 01"
"""Fetch v12 up to its tagged fields: no topics, none forgotten, an empty rack."""


def request_frame(key: int, version: int, body: str) -> bytes:
    """A request with this body in hex."""
    api = SCHEMA.api(key, version)
    assert api is not None
    return struct.pack(">hhih", key, version, 1, -1) + (b"\0" if api.flexible(version) else b"") + bytes.fromhex(body)


def mutations(rng: random.Random, frame: bytes, start: int) -> Iterator[bytes]:
    """The frame with one to four faults from `start` on, or with random bytes from there."""
    while True:
        broken = bytearray(frame)
        if rng.random() < 0.1:
            yield bytes(broken[:start]) + rng.randbytes(rng.randint(0, 60))
            continue
        for _ in range(rng.randint(1, 4)):
            at = rng.randint(start, max(start, len(broken)))
            match rng.randrange(6):
                case 0:
                    del broken[at : at + rng.randint(1, 4)]
                case 1:
                    broken[at:at] = rng.randbytes(rng.randint(1, 4))
                case 2:
                    del broken[at:]
                case 3:
                    broken[at : at + 4] = rng.choice(HOSTILE)
                case 4:
                    other = rng.randint(start, max(start, len(broken)))
                    broken[at:at] = broken[other : other + 8]
                case _ if at < len(broken):
                    broken[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        yield bytes(broken)


def feed(rng: random.Random, cases: int) -> tuple[int, int]:
    """Feed `cases` malformed frames to each decoder. Returns the counts (refused, accepted)."""
    refused = accepted = 0
    for key, version in served():
        decoders: tuple[tuple[bytes, int, Callable[[bytes], object]], ...] = (
            (FRAMES["request"][key, version], HEADER, decode_request),
            (FRAMES["response"][key, version], 4, partial(decode_response, key, version)),
        )
        for frame, start, decode in decoders:
            broken = mutations(rng, frame, start)
            for _ in range(cases):
                bad = next(broken)
                try:
                    decode(bad)
                    accepted += 1
                except MalformedError:
                    refused += 1
                except BaseException as error:
                    error.add_note(f"{key} v{version}: {bad.hex()}")
                    raise
    return refused, accepted


def test_broken_frames_are_malformed_or_messages() -> None:
    refused, accepted = feed(random.Random("malformed"), cases=80)
    assert refused > accepted > 1000


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_broken_frames_for_long() -> None:
    end = time.monotonic() + float(os.environ["TOPICS_SOAK_SECONDS"])
    while time.monotonic() < end:
        seed = time.time_ns()
        try:
            feed(random.Random(seed), cases=200)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_random_frames_of_any_api() -> None:
    rng = random.Random("noise")
    for _ in range(4000):
        frame = struct.pack(">hh", rng.randint(-1, 75), rng.randint(-1, 14)) + rng.randbytes(rng.randint(0, 80))
        try:
            decode_request(frame)
        except MalformedError:
            continue


def test_every_truncation_is_malformed() -> None:
    for frame in FRAMES["request"].values():
        for length in range(len(frame)):
            with pytest.raises(MalformedError):
                decode_request(frame[:length])
    for (key, version), frame in FRAMES["response"].items():
        for length in range(len(frame)):
            with pytest.raises(MalformedError):
                decode_response(key, version, frame[:length])


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [(10, 6, "00ff88ffff22666a7f84b9b3f4"), (2, 7, "0000000000ff8e9d824401548f")],
)
def test_what_aborts_kio_is_malformed(key: int, version: int, body: str) -> None:
    with pytest.raises(MalformedError):
        decode_request(request_frame(key, version, body))


HOSTILE_BODIES = {
    "structs: 2^31-1": (1, 4, "ffffffff 00000001 00000001 00000001 00 7fffffff", "length of topics"),
    "numbers: 2^31-1": (9, 1, "0001 61 00000001 0001 61 7fffffff 00000000", "length of partition_indexes"),
    "strings: 2^31-1": (15, 0, "7fffffff 0000", "length of groups"),
    "an array of -2": (3, 0, "fffffffe", "topics is null"),
    "a null array": (3, 0, "ffffffff", "topics is null"),
    "a compact null array": (10, 4, "00 00 00", "coordinator_keys is null"),
    "a compact array of 2^31-2": (10, 4, "00 ffffffff07", "length of coordinator_keys"),
    "an array above 2^31": (10, 4, "00 ffffffff0f", "varint above 31 bits"),
    "a varint of 6 bytes": (10, 4, "00 8080808080 01", "varint above 31 bits"),
    "a varint of ones": (10, 4, "00 ffffffffff01", "varint above 31 bits"),
    "a string longer than the frame": (10, 0, "7fff 61", "length of key"),
    "a null string": (10, 0, "ffff", "length of key"),
    "a compact null string": (10, 3, "00 00 00", "length of key"),
    "bytes longer than the frame": (36, 0, "7fffffff 61", "length of auth_bytes"),
    "null bytes": (36, 0, "ffffffff", "length of auth_bytes"),
    "records longer than the frame": (0, 9, "00ffff00000001 02 0261 02 00000000 ffffffff0700", "length of records"),
    "no UTF-8": (10, 0, "0002 c328", "invalid continuation byte"),
    "UTF-8 of a surrogate": (10, 0, "0003 eda080", "invalid continuation byte"),
    "tags without end": (60, 0, "00 ffffffff07", "index"),
    "a tag longer than the frame": (60, 0, "00 01 63 7f 00", "tagged field longer"),
    "a known tag longer than the frame": (1, 12, f"{FETCH_12} 01 00 7f 02 61", "tagged field longer"),
    "a known tag of another size": (1, 12, f"{FETCH_12} 01 00 03 02 61 62", "size of tagged field cluster_id"),
    "an array at the end": (68, 0, f"{'0261' * 2} 00000000 00 00 00000000 00 00 02", "length of topic_partitions"),
}


@pytest.mark.parametrize("case", HOSTILE_BODIES)
def test_a_hostile_length_takes_no_memory(case: str) -> None:
    key, version, body, reason = HOSTILE_BODIES[case]
    frame = request_frame(key, version, body)
    with pytest.raises(MalformedError, match=reason):
        decode_request(frame)  # compiles the decoder
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError):
            decode_request(frame)
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


def test_hostile_headers() -> None:
    for frame in (b"", b"\0", struct.pack(">hhi", 3, 9, 1), struct.pack(">hhih", 3, 9, 1, 4) + b"abc"):
        with pytest.raises(MalformedError):
            decode_request(frame)
    with pytest.raises(MalformedError):
        decode_request(struct.pack(">hhih", 3, 1, 1, 2) + b"\xc3\x28" + b"\0\0\0\0")  # client id: invalid UTF-8
    with pytest.raises(MalformedError):
        decode_request(struct.pack(">hhih", 3, 9, 1, -1) + b"\xff\xff\xff\xff\x07")  # tags of the header
    with pytest.raises(MalformedError):
        decode_response(3, 9, b"\0\0\0\1\xff\xff\xff\xff\x07")


@pytest.mark.parametrize(("key", "version"), [(0, 2), (0, 14), (1, 3), (4, 0), (18, 5), (68, 2), (-1, 0), (3, -1)])
def test_a_version_that_is_not_served_is_malformed(key: int, version: int) -> None:
    with pytest.raises(MalformedError):
        decode_request(struct.pack(">hhih", key, version, 1, -1) + bytes(50))
    with pytest.raises(MalformedError):
        decode_response(key, version, bytes(50))
    with pytest.raises(MalformedError):
        encode_response(key, version, 1, {})


def test_the_header_of_any_request_can_be_read() -> None:
    assert request_header(struct.pack(">hhi", 18, 99, 12345)) == (18, 99, 12345)
    assert request_header(memoryview(struct.pack(">hhi", 9999, -3, -1) + b"rest")) == (9999, -3, -1)
    for length in range(8):
        with pytest.raises(MalformedError):
            request_header(bytes(length))


def test_the_elements_of_a_message_are_bounded_together() -> None:
    # DescribeGroups: one array of names, an empty one is 1 byte.
    def groups(count: int) -> bytes:
        return b"".join(encode_request(15, 5, 1, None, {"groups": [""] * count}))

    _, body = decode_request(groups(MAX_ELEMENTS))
    assert len(body["groups"]) == MAX_ELEMENTS
    with pytest.raises(MalformedError):
        decode_request(groups(MAX_ELEMENTS + 1))

    # Produce: arrays in an array, each far below the bound.
    topic = {"name": "t", "partition_data": [{"index": 0, "records": None}] * 999}
    fits = {"topic_data": [topic] * (MAX_ELEMENTS // 1000)}
    _, body = decode_request(b"".join(encode_request(0, 9, 1, None, fits)))
    assert len(body["topic_data"]) == MAX_ELEMENTS // 1000
    with pytest.raises(MalformedError):
        decode_request(b"".join(encode_request(0, 9, 1, None, {"topic_data": [topic] * (MAX_ELEMENTS // 1000 + 1)})))


def test_numbers_count_as_elements() -> None:
    """Regression: 14 MB of partitions in OffsetFetch took 2 GB and 8 s: each number is a struct in the response."""

    def offset_fetch(*counts: int) -> bytes:
        topics = [{"name": "t", "partition_indexes": list(range(count))} for count in counts]
        return b"".join(encode_request(9, 7, 1, None, {"group_id": "g", "topics": topics}))

    half = MAX_ELEMENTS // 2
    _, body = decode_request(offset_fetch(half, half - 2))
    assert [len(topic["partition_indexes"]) for topic in body["topics"]] == [half, half - 2]
    for counts in ((MAX_ELEMENTS,), (half, half), (half, half, half)):
        with pytest.raises(MalformedError):
            decode_request(offset_fetch(*counts))


def test_the_end_of_a_request_may_be_followed_by_bytes() -> None:
    for frame in FRAMES["request"].values():
        assert decode_request(frame + b"\x01\xff\0") == decode_request(frame)
    # librdkafka sends Metadata v13 for all topics like this: an array length of 4 bytes instead of a compact one.
    _, body = decode_request(request_frame(3, 13, "00 000000 01 00 00"))
    assert body["topics"] is None
