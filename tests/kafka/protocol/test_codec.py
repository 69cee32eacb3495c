"""Guarantees of the codec beyond the bytes of kio: defaults, nulls, unknown tags, uncopied buffers."""

import random
import struct
import uuid
from collections.abc import Iterator
from itertools import pairwise

import pytest

from support.kafka_kio import served
from topics_kafka.protocol import decode_request, decode_response, encode_request, encode_response, encoding
from topics_kafka.protocol.decoding import min_size
from topics_kafka.protocol.encoding import LARGE, encoder
from topics_kafka.protocol.schema import SCHEMA, Field

TOPIC_ID = uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF)


def joined(pieces: list[bytes | memoryview]) -> bytes:
    return b"".join(pieces)


def fetch_response(records: object) -> dict[str, object]:
    return {
        "responses": [{"topic": "t", "topic_id": TOPIC_ID, "partitions": [{"partition_index": 0, "records": records}]}]
    }


def arrays(fields: tuple[Field, ...]) -> Iterator[Field]:
    for field in fields:
        if field.array:
            yield field
        yield from arrays(field.fields)


class TestHeaders:
    def test_the_header_of_a_request(self) -> None:
        for version, client_id in ((1, "client"), (9, "client"), (9, None), (9, "")):
            frame = joined(encode_request(3, version, -5, client_id, {}))
            header, _ = decode_request(frame)
            assert header == {
                "request_api_key": 3,
                "request_api_version": version,
                "correlation_id": -5,
                "client_id": client_id,
            }

    def test_the_header_of_a_flexible_response_ends_in_tags(self) -> None:
        assert joined(encode_response(3, 8, 7, {}))[:5] == b"\0\0\0\7\0"
        assert joined(encode_response(12, 3, 7, {})) == b"\0\0\0\7" + b"\0\0\0\0" + b"\0\0"
        assert joined(encode_response(12, 4, 7, {})) == b"\0\0\0\7" + b"\0" + b"\0\0\0\0" + b"\0\0" + b"\0"

    def test_the_header_of_api_versions_never_does(self) -> None:
        for version in range(5):
            frame = joined(encode_response(18, version, 7, {"error_code": 35}))
            assert frame[:6] == b"\0\0\0\7" + b"\0\x23"
            assert decode_response(18, version, frame)[1]["error_code"] == 35


class TestDefaults:
    @pytest.mark.parametrize(("key", "version"), list(served()))
    def test_an_empty_dict_is_a_message(self, key: int, version: int) -> None:
        frame = joined(encode_request(key, version, 1, None, {}))
        _, body = decode_request(frame)
        assert joined(encode_request(key, version, 1, None, body)) == frame
        frame = joined(encode_response(key, version, 1, {}))
        _, body = decode_response(key, version, frame)
        assert joined(encode_response(key, version, 1, body)) == frame

    def test_defaults_are_kafkas(self) -> None:
        _, fetch = decode_request(joined(encode_request(1, 17, 1, None, {"topics": [{"partitions": [{}]}]})))
        assert fetch == {
            "cluster_id": None,
            "replica_state": {"replica_id": -1, "replica_epoch": -1},
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 0x7FFFFFFF,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {
                    "topic_id": None,
                    "partitions": [
                        {
                            "partition": 0,
                            "current_leader_epoch": -1,
                            "fetch_offset": 0,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": 0,
                            "replica_directory_id": None,
                        }
                    ],
                }
            ],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        assert decode_request(joined(encode_request(3, 12, 1, None, {})))[1]["allow_auto_topic_creation"] is True

    def test_defaults_are_not_shared(self) -> None:
        frame = joined(encode_request(1, 17, 1, None, {}))
        first, second = decode_request(frame)[1], decode_request(frame)[1]
        first["replica_state"]["replica_id"] = 5
        assert second["replica_state"]["replica_id"] == -1

    def test_one_dict_serves_all_versions(self) -> None:
        partition = {"index": 3, "base_offset": 9, "log_start_offset": 1, "error_message": "no", "current_leader": {}}
        topic = {"name": "t", "topic_id": TOPIC_ID, "partition_responses": [partition]}
        body = {"responses": [topic], "surplus": object()}
        for version in range(3, 14):
            _, decoded = decode_response(0, version, joined(encode_response(0, version, 1, body)))
            (topic_back,) = decoded["responses"]
            (back,) = topic_back["partition_responses"]
            assert (back["index"], back["base_offset"], back["log_append_time"]) == (3, 9, -1)
            assert (topic_back.get("name"), topic_back.get("topic_id")) == (
                ("t", None) if version < 13 else (None, TOPIC_ID)
            )
            assert back.get("log_start_offset") == (1 if version >= 5 else None)
            assert back.get("error_message") == ("no" if version >= 8 else None)


class TestNull:
    def test_null_where_it_is_allowed(self) -> None:
        for version in (1, 8, 9, 13):
            _, body = decode_request(joined(encode_request(3, version, 1, None, {"topics": None})))
            assert body["topics"] is None
            _, body = decode_request(joined(encode_request(3, version, 1, None, {"topics": []})))
            assert body["topics"] == []

    def test_null_where_it_is_not(self) -> None:
        with pytest.raises(ValueError, match="topics is None"):
            encode_request(3, 0, 1, None, {"topics": None})
        with pytest.raises(ValueError, match="topics is None"):
            encode_response(3, 9, 1, {"topics": None})
        with pytest.raises(ValueError, match="name is None"):
            encode_response(3, 9, 1, {"topics": [{"name": None}]})
        with pytest.raises(ValueError, match="auth_bytes is None"):
            encode_response(36, 2, 1, {"auth_bytes": None})
        with pytest.raises(ValueError, match="mechanisms is None"):
            encode_response(17, 1, 1, {"mechanisms": [None]})

    def test_null_and_empty_differ(self) -> None:
        for version in (4, 12):
            for records in (None, b""):
                _, body = decode_response(1, version, joined(encode_response(1, version, 1, fetch_response(records))))
                assert body["responses"][0]["partitions"][0]["records"] == records

    def test_a_nullable_struct(self) -> None:
        given = {"topic_partitions": [{"topic_id": TOPIC_ID, "partitions": [1, 2]}]}
        for assignment in (None, {"topic_partitions": []}, given):
            _, body = decode_response(68, 1, joined(encode_response(68, 1, 1, {"assignment": assignment})))
            assert body["assignment"] == assignment

    def test_the_uuid_of_zeros_is_none(self) -> None:
        body = {"topics": [{"name": "t", "topic_id": uuid.UUID(int=0)}, {"topic_id": None}, {"topic_id": TOPIC_ID}]}
        _, decoded = decode_request(joined(encode_request(3, 12, 1, None, body)))
        assert [topic["topic_id"] for topic in decoded["topics"]] == [None, None, TOPIC_ID]

    def test_a_number_out_of_range(self) -> None:
        with pytest.raises(struct.error):
            encode_response(12, 0, 1, {"error_code": 40_000})


class TestTags:
    def test_unknown_tags_are_skipped_everywhere(self) -> None:
        unknown = bytes.fromhex("02 63 02 abcd ffffffff07 8101") + bytes(129)
        header = struct.pack(">hhih", 10, 4, 1, -1) + unknown
        _, body = decode_request(header + b"\0" + b"\x02\x02k" + unknown)
        assert body == {"key_type": 0, "coordinator_keys": ["k"]}
        # In the struct of an array with a known tag, before and after it.
        partition = struct.pack(">iiqiqi", 1, 2, 3, 4, 5, 6)
        tags = b"\3" + b"\5\1x" + b"\0\x10" + TOPIC_ID.bytes + b"\7\0"
        topic = TOPIC_ID.bytes + b"\x02" + partition + tags + unknown
        start = struct.pack(">hhihxiiibii", 1, 17, 1, -1, 0, 0, 0, 0, 0, 0)
        _, body = decode_request(start + b"\2" + topic + b"\1" + b"\1" + unknown)
        (decoded,) = body["topics"]
        assert decoded["partitions"][0]["replica_directory_id"] == TOPIC_ID
        assert decoded["partitions"][0]["partition_max_bytes"] == 6

    def test_tags_are_written_in_order_and_only_when_they_differ(self) -> None:
        leader, nobody = {"leader_id": 1, "leader_epoch": 2}, {"leader_id": -1, "leader_epoch": -1}
        for partition, tags in (
            ({}, "00"),
            ({"current_leader": nobody, "snapshot_id": {}, "diverging_epoch": None}, "00"),
            ({"current_leader": leader}, "01 01 09 00000001 00000002 00"),
            (
                {"current_leader": leader, "diverging_epoch": {"epoch": 5, "end_offset": 6}},
                "02 00 0d 00000005 0000000000000006 00 01 09 00000001 00000002 00",
            ),
        ):
            body = {"responses": [{"topic": "t", "partitions": [partition]}]}
            frame = joined(encode_response(1, 12, 1, body))
            assert frame.endswith(bytes.fromhex(tags + " 00 00"))  # the tags of the topic and of the message

    def test_a_tagged_number_of_zero_is_written_when_its_default_is_another(self) -> None:
        for epoch in (-1, 0, 7):
            _, body = decode_response(18, 3, joined(encode_response(18, 3, 1, {"finalized_features_epoch": epoch})))
            assert body["finalized_features_epoch"] == epoch


class TestBuffers:
    def test_large_records_are_not_copied(self) -> None:
        for version in (4, 11, 12, 17):
            records = memoryview(bytearray(LARGE))
            pieces = encode_response(1, version, 1, fetch_response(records))
            assert any(piece is records for piece in pieces)
            assert len(pieces) <= 3
            decoded = decode_response(1, version, joined(pieces))[1]
            assert decoded["responses"][0]["partitions"][0]["records"] == records

    def test_records_in_several_buffers(self) -> None:
        big = memoryview(bytes(range(256)) * 64)
        for parts in (
            [],
            [b""],
            [b"ab", b"cd"],
            [b"head", big],
            (b"head", big, b"head2", bytearray(big), b"tail"),
            [big, big],
        ):
            whole = b"".join(parts)
            for version in (4, 12):
                pieces = encode_response(1, version, 1, fetch_response(parts))
                assert joined(pieces) == joined(encode_response(1, version, 1, fetch_response(whole)))
                assert sum(map(len, pieces)) == len(joined(pieces))
                assert all(isinstance(piece, bytes | memoryview) for piece in pieces)
                # Large buffers are separate, and the small ones between them are one piece.
                large = [bytes(piece) == bytes(big) for piece in pieces]
                assert large.count(True) == sum(len(part) == len(big) for part in parts)
                assert all(not (one is two is False) for one, two in pairwise(large))

    def test_small_answers_are_one_piece(self) -> None:
        assert len(encode_response(1, 12, 1, fetch_response(b"small"))) == 1
        assert len(encode_response(3, 12, 1, {"topics": [{"name": "t"}] * 500})) == 1

    def test_records_of_a_large_request_are_views_of_the_frame(self) -> None:
        body = {"topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": bytes(100_000)}]}]}
        for version in (3, 9):
            frame = bytearray(joined(encode_request(0, version, 1, "c", body)))
            for buffer in (frame, memoryview(frame)):
                _, decoded = decode_request(buffer)
                records = decoded["topic_data"][0]["partition_data"][0]["records"]
                assert isinstance(records, memoryview)
                assert len(records) == 100_000
                last = -1 if version == 3 else -4  # three empty tag sections follow the records
                frame[last] += 1
                assert records[-1] == frame[last]
                assert records.obj is frame

    def test_records_of_a_small_request_are_views_too(self) -> None:
        body = {"topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"abc"}]}]}
        frame = joined(encode_request(0, 9, 1, "c", body))
        for buffer in (frame, bytearray(frame), memoryview(frame)):
            records = decode_request(buffer)[1]["topic_data"][0]["partition_data"][0]["records"]
            assert isinstance(records, memoryview)
            assert records == b"abc"

    @pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_151, 2_097_152])
    def test_lengths_at_the_edges_of_a_varint(self, length: int) -> None:
        records = bytes(length)
        _, body = decode_response(1, 12, joined(encode_response(1, 12, 1, fetch_response(records))))
        assert body["responses"][0]["partitions"][0]["records"] == records
        name = "n" * length
        _, body = decode_request(joined(encode_request(10, 3, 1, None, {"key": name})))
        assert body["key"] == name
        if length < 20_000:
            sent = [{"topic": "t", "partitions": list(range(length))}]
            _, body = decode_request(joined(encode_request(1, 12, 1, None, {"forgotten_topics_data": sent})))
            assert body["forgotten_topics_data"] == sent


def test_pieces_are_joined_while_more_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = random.Random(5)
    partitions = [
        {"partition_index": n, "records": bytes([n % 256]) * sizes.choice([0, 3, LARGE - 1, LARGE, LARGE + 1])}
        for n in range(300)
    ]
    body = {"responses": [{"topic": f"t{n}", "partitions": partitions[n * 3 : n * 3 + 3]} for n in range(100)]}
    version, api = 12, SCHEMA.api(1, 12)
    assert api is not None
    for many in (0, 1, 5, 1 << 30):
        monkeypatch.setattr(encoding, "MANY", many)
        pieces: list[encoding.Buffer] = []
        cuts: list[int] = []
        encoder(f"with {many}", api.response(version), api.flexible(version))(body, pieces, cuts)
        out = encoding.gathered(pieces, cuts)
        assert joined(out) == joined(encode_response(1, version, 1, body))[5:]
        large = [partition["records"] for partition in partitions if len(partition["records"]) >= LARGE]
        assert [piece for piece in out if any(piece is each for each in large)] == large, "they are not copied"


def test_a_large_response_is_never_in_many_small_pieces() -> None:
    """Regression: the configs of 30,000 topics, a request of 457 KB, took 800 MB in pieces of ten times their bytes."""

    class Pieces(list[encoding.Buffer]):
        maximum = 0

        def append(self, piece: encoding.Buffer) -> None:
            super().append(piece)
            self.maximum = max(self.maximum, len(self))

    configs = [{"name": "a.config", "value": "-1", "synonyms": [{"name": "b.config", "value": "-1"}]}] * 10
    body = {"results": [{"resource_type": 2, "resource_name": "t", "configs": configs}] * 3000}
    api = SCHEMA.api(32, 4)
    assert api is not None
    pieces = Pieces()
    encoder("many", api.response(4), api.flexible(4))(body, pieces, [])
    assert sum(map(len, pieces)) > 1_000_000
    assert pieces.maximum < encoding.MANY + 1000


def test_the_least_size_of_an_element_is_that_of_an_empty_one() -> None:
    seen = 0
    for key, version in served():
        api = SCHEMA.api(key, version)
        assert api is not None
        flexible = api.flexible(version)
        for field in arrays(api.request(version) + api.response(version)):
            if field.struct:
                pieces: list[bytes | bytearray | memoryview] = []
                encoder("an element", field.fields, flexible)({}, pieces, [])
                assert min_size(field.element, flexible) == len(b"".join(pieces)) > 0
                seen += 1
            elif field.type == "string":
                assert min_size(field.element, flexible) == (1 if flexible else 2)
            else:
                assert min_size(field.element, flexible) == {"int8": 1, "int32": 4, "int64": 8}[field.type]
    assert seen > 500
