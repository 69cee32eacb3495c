"""Names on disk: every one that is stored is pinned here as a literal, so renaming code can't change one unnoticed.

A data directory that an earlier version wrote opens and has the content it was made with.
"""

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support import kept_directory
from topics_backup import log as backup_log
from topics_backup import manifest as backup_manifest
from topics_backup import pruning
from topics_service.engine.cluster import cluster_id
from topics_service.engine.engine import Engine
from topics_service.engine.membership import stored
from topics_service.engine.model import AppendRequest, Batch, DiffReply, DiffRequest, TagMatch, TopicConfig
from topics_service.engine.offsets.positions import GroupRow
from topics_service.engine.parts import Pending
from topics_service.engine.placement import Spread
from topics_service.engine.queue.attempts import Attempt
from topics_service.engine.queue.jobs import ClaimRequest
from topics_service.engine.router.router import Arrival, Departure, RouterConfig, RouterRow
from topics_service.engine.tables import catalog, indexing, removal, topic_catalog
from topics_service.engine.tables.expressions import (
    Binary,
    Call,
    Case,
    Cast,
    Column,
    InList,
    IsNull,
    IsTruth,
    JsonGet,
    Like,
    Literal,
    Parameter,
    Unary,
)
from topics_service.engine.tables.model import Alias, Check, ColumnSchema, Index, Namespace, Route, Table, View
from topics_service.engine.tables.types import Type
from topics_service.engine.topic import TopicRow
from topics_service.storage import clean_shutdown, keys, manifest, repair_swap, verify
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family
from topics_service.storage.wal import archive, end_mark

FAMILIES = {
    "META": 0,
    "TOPICS": 1,
    "LOGS": 2,
    "CEILINGS": 3,
    "BLOCKS": 4,
    "TAGS": 5,
    "DELETES": 6,
    "GAPS": 7,
    "IDEMPOTENCY": 8,
    "IDEMPOTENCY_EXPIRY": 9,
    "ROUTERS": 10,
    "ROUTER_COPIES": 11,
    "LEASES": 12,
    "JOBS": 13,
    "PRODUCERS": 14,
    "GROUPS": 15,
    "POSITIONS": 16,
    "ROWS": 17,
    "INDEXES": 18,
    "TABLES": 19,
    "SEGMENTS": 20,
}
FAMILY_NAMES = [
    "default",
    "topics",
    "logs",
    "ceilings",
    "blocks",
    "tags",
    "deletes",
    "gaps",
    "idempotency",
    "idempotency_expiry",
    "routers",
    "router_copies",
    "leases",
    "jobs",
    "producers",
    "groups",
    "positions",
    "rows",
    "indexes",
    "tables",
    "segments",
]
META = {b"boot", b"format", b"kafka_cluster_id", b"next_log", b"next_producer", b"next_topic", b"written_ms"}
FILES = {"CURRENT", "IDENTITY", "LOCK", "LOG", "rocksdict-config.json", "topics-log.json", "topics-wal-end", "archive"}
STORED: list[tuple[type[msgspec.Struct], bool, str]] = [
    (TopicRow, True, "version name topic_id slug rrl config log_ids created_ts kafka_configs placement spread"),
    (Spread, True, "partition_count first step epoch revision shards"),
    (Pending, True, "topic_id epoch revision is_deleted shards"),
    (
        TopicConfig,
        False,
        (
            "type ttl_ms cap_records cap_bytes discard durable durability priority auto_priority auto_create "
            "idempotency_window_ms dedupe_node lease_ms claim_jitter_ms max_deliveries dead_letter leases_durable "
            "retain_until_acked_by"
        ),
    ),
    (RouterRow, True, "version name config created_ts foreign departure arrival"),
    (
        Departure,
        True,
        "token origin shard router config create_dest is_foreign source cursor forwarded created_ts",
    ),
    (Arrival, True, "token origin"),
    (RouterConfig, False, "source dest preserve_node preserve_tag filter allow_cycle guarantee"),
    (TagMatch, False, "op value"),
    (GroupRow, True, "version name created_ts active_ts"),
    (Attempt, True, "delivery ended_at node reason is_told"),
    (stored._Classic, True, "version generation protocol_type protocol leader is_stable members"),
    (stored._ClassicMember, True, "member_id instance_id client session_ms rebalance_ms protocols assignment"),
    (stored._Consumer, True, "version epoch target_epoch assignor topics members matched"),
    (
        stored._ConsumerMember,
        True,
        "member_id instance_id rack client rebalance_ms names regex assignor epoch previous assigned revoking target",
    ),
    (
        Table,
        False,
        (
            "number namespace name columns primary_key versions next_column next_index indexes checks durability "
            "placement created_ms"
        ),
    ),
    (ColumnSchema, False, "id name type not_null default default_text initial"),
    (Type, False, "kind length precision scale"),
    (Check, False, "name expression text"),
    (Index, False, "number name columns unique state constraint"),
    (Namespace, False, "name placement created_ms"),
    (Route, False, "topic table op mode filter filter_text partition_by partition_text tombstones"),
    (Alias, False, "name topic"),
    (View, False, "namespace name text reading_namespace columns tables reads views topics created_ms"),
    (Literal, False, "value type"),
    (Column, False, "column type side"),
    (Parameter, False, "number type"),
    (Unary, False, "op operand type"),
    (Binary, False, "op left right type"),
    (IsNull, False, "operand negated"),
    (IsTruth, False, "operand truth negated"),
    (InList, False, "operand items negated"),
    (Like, False, "operand pattern ignore_case negated escape"),
    (Case, False, "branches otherwise type"),
    (Cast, False, "operand type"),
    (JsonGet, False, "operand key type"),
    (Call, False, "function arguments type"),
    (archive.Line, False, "id first"),
    (end_mark._Facts, False, "boot first first_seq starting manifest"),
    (backup_manifest.File, False, "name size sha256"),
    (backup_manifest.Partition, False, "head_seq earliest_seq count log_id"),
    (backup_manifest.Topic, False, "topic topic_id epoch type durability partitions numbers"),
    (backup_manifest.LogPoint, False, "line number next_seq written_ms"),
    (
        backup_manifest.Manifest,
        False,
        "format id created_ms server_version store_format source bytes new_bytes files topics log shards",
    ),
    (backup_manifest.Part, False, "files topics log"),
    (backup_manifest._Sealed, False, "sha256 backup"),
    (backup_log.Until, False, "ms next_seq holes"),
]
"""Structs that are stored: whether as an array, and the names of their fields. Of an array the order counts, and fields
are read by place; of the others the name is what is on disk."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that today's code has written and closed."""
    directory = tmp_path_factory.mktemp("made") / "data"
    kept_directory.make(directory)
    return directory


def rows(store: RocksStore, family: Family) -> dict[bytes, bytes]:
    return dict(store.scan(family, b"", b"\xff" * 40))


def test_column_families(made: Path) -> None:
    assert {family.name: int(family) for family in Family} == FAMILIES
    assert sorted(manifest.read(made).families) == sorted(FAMILY_NAMES)  # RocksDB gives them numbers of its own


def test_rows_of_the_tag_index(made: Path, tmp_path: Path) -> None:
    assert keys.unindexed(1, 2) == bytes.fromhex("0000000000000001 0000 0000000000000002")
    assert keys.moved(1) == bytes.fromhex("0000000000000001 0000fd")
    assert keys.run(1, 2, 3) == bytes.fromhex("0000000000000001 0000fe 0000000000000002 03")
    assert keys.chunk(1, 2, 3, b"a\0", 4) == bytes.fromhex(
        "0000000000000001 0000ff 03 0000000000000002 6100ff 0001 00000004"
    )
    assert keys.tag(1, b"a\0", 2) == bytes.fromhex("0000000000000001 6100ff 0001 0000000000000002")
    store = RocksStore(Path(shutil.copytree(made, tmp_path / "data")))
    found = list(rows(store, Family.TAGS).items())
    store.close()
    assert any(key[8:11] == b"\0\0\xfe" and value[0] == 1 and len(value) == 16 for key, value in found)
    odd_even = "01000000 02000000 04000000 07000000" + b"evenodd".hex()
    assert any(key[8:12] == b"\0\0\xff\0" and value.startswith(bytes.fromhex(odd_even)) for key, value in found)


def test_keys_of_meta(made: Path, tmp_path: Path) -> None:
    store = RocksStore(Path(shutil.copytree(made, tmp_path / "data")))
    found = rows(store, Family.META)
    store.close()
    assert found.keys() == META
    assert found[b"format"] == b"topics-rocksdb-4"
    assert found[b"boot"] == b"clean"


def test_files_of_a_directory(made: Path) -> None:
    found = {file.name for file in made.iterdir()}
    numbered = {name for name in found if name.endswith((".sst", ".log")) or name.startswith(("MANIFEST-", "OPTIONS-"))}
    assert found - numbered == {*FILES, "topics-files.json"}
    assert [file.suffix for file in (made / "archive").iterdir()] == [".log"]
    sealed, checksum = (made / "topics-files.json").read_bytes().splitlines()
    assert checksum.startswith(b"crc32c ")
    assert json.loads(sealed).keys() == {"current", "files"}
    assert json.loads((made / "topics-log.json").read_bytes()).keys() == {"id", "first"}
    facts = (made / "topics-wal-end").read_bytes()[130 * 8 :]
    assert list(json.loads(facts)) == ["boot", "first", "first_seq", "starting", "manifest"]


def test_files_of_damage_and_repair(tmp_path: Path) -> None:
    clean_shutdown.note_damage(tmp_path, "a reason")
    assert (tmp_path / "topics-damage.txt").read_bytes().startswith(b'"a reason"\ncrc32c ')
    assert repair_swap._MARKER == "topics-repair.json"
    swap = repair_swap.Swap(tmp_path)
    assert swap.work == tmp_path / "repair"
    assert swap.new == tmp_path / "repair" / "new"


@pytest.mark.parametrize(("struct", "is_array", "fields"), STORED, ids=lambda value: getattr(value, "__name__", ""))
def test_stored_fields(struct: type[msgspec.Struct], is_array: bool, fields: str) -> None:
    assert list(struct.__struct_encode_fields__) == fields.split()
    assert struct.__struct_config__.array_like is is_array


def test_kinds_of_definitions() -> None:
    assert catalog.NEXT_TABLE == b"next_table"
    kinds = [
        catalog.NAMESPACE_ROWS, catalog.TABLE_ROWS, catalog.USER_ROWS, topic_catalog.ROUTE_ROWS,
        topic_catalog.ALIAS_ROWS, indexing.BUILD_ROWS, removal.REMOVED_ROWS,
        catalog.VIEW_ROWS,
    ]  # fmt: skip
    assert kinds == [b"namespace\0", b"table\0", b"user\0", b"route\0", b"alias\0", b"build\0", b"removed\0", b"view\0"]


def test_tags_of_memberships() -> None:
    assert stored._Classic.__struct_config__.tag == "classic"
    assert stored._Consumer.__struct_config__.tag == "consumer"


def test_names_of_a_backup() -> None:
    sha = "ab" + "0" * 62
    assert backup_manifest.File("CURRENT", 1, sha).key == f"files/ab/{sha}"
    assert backup_manifest.id_of("backups/20240102T030405006Z-0123ab.json") == "20240102T030405006Z-0123ab"
    piece = backup_log.Piece("line", 1, 2, 3, 4, 5, 6, 7, sha)
    name = (
        "log/line/000000000001-000000000002-000000000003-000000000000000004-000000000000000005-"
        f"00000000000006-00000000000007-{sha}.wal"
    )
    assert piece.key == name
    assert backup_log.piece_of(name) == piece
    assert (backup_log.LOG, backup_log._UNTIL, pruning.LISTS) == ("log/", "until.json", "unneeded/")
    assert backup_manifest.FORMAT == 1


# ---------------------------------------------------------------- a directory of an earlier version


def page(engine: Engine, topic: str, **request: Any) -> DiffReply:
    return engine.diff(DiffRequest(topic=topic, limit=1000, **request))


def datas(reply: DiffReply) -> dict[int, bytes]:
    return {
        part.block.base_seq + i: bytes(part.block.record_data(i))
        for part in reply.slices
        for i in range(part.start, part.stop)
    }


def column(reply: DiffReply, name: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    for part in reply.slices:
        values = getattr(part.block, name)
        found += [None if values is None else values[i] for i in range(part.start, part.stop)]
    return found


def test_the_kept_directory_has_every_kind_of_row(tmp_path: Path) -> None:
    store = RocksStore(kept_directory.unpack(tmp_path))
    empty = {family.name for family in Family if not rows(store, family)}
    found = rows(store, Family.META)
    store.close()
    assert empty == {"GAPS", "ROWS", "INDEXES", "TABLES", "SEGMENTS"}  # seqs that a power cut took; others came later
    assert found.keys() == META


def test_the_kept_directory_opens(tmp_path: Path) -> None:
    _check_everything(kept_directory.unpack(tmp_path))


def _check_everything(directory: Path) -> None:
    store = RocksStore(directory, boot_id="boot-2")
    clock = kept_directory.Clock(kept_directory.START + 100)
    engine = Engine(store, clock, boot_id="boot-2")
    topics = engine.catalog.topics
    assert sorted(topics) == sorted(
        ["plain", "capped", "synced", "parts", "jobs", "jobs-dead", "from", "to", "kafka", "small"]
    )
    _check_records(engine)
    _check_queue(engine, clock)
    _check_router(engine)
    assert engine.groups.topics("readers") == ["parts"]
    position = engine.groups.position("readers", "parts", 2)
    assert position is not None
    assert (position.from_seq, position.leader_epoch, position.metadata) == (1, 4, "note")
    assert topics["parts"].config.retain_until_acked_by == ("readers",)
    assert topics["parts"].identity.partition_count == 3
    assert cluster_id(engine.writer) == rows(store, Family.META)[b"kafka_cluster_id"].decode()
    engine.close()
    store.close()


def test_the_kept_directory_is_of_the_first_format_and_moved_on(tmp_path: Path) -> None:
    directory = kept_directory.unpack(tmp_path)
    with verify.opened(directory) as source:
        assert source.get(Family.META, b"format") == b"topics-rocksdb-1"
    RocksStore(directory, boot_id="boot-2").close()
    with verify.opened(directory) as source:
        assert source.get(Family.META, b"format") == b"topics-rocksdb-4"


@pytest.mark.parametrize(("step", "left"), [("write", b"topics-rocksdb-1"), ("sync", b"topics-rocksdb-4")])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_move_to_the_next_format_that_is_killed_goes_on(tmp_path: Path, step: str, left: bytes, when: str) -> None:
    directory = kept_directory.unpack(tmp_path)
    child = multiprocessing.get_context("spawn").Process(target=_open_and_die, args=(directory, step, when))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    with verify.opened(directory) as source:
        found = source.get(Family.META, b"format")
        assert found == (b"topics-rocksdb-4" if when == "after" else left)
    _check_everything(directory)
    with verify.opened(directory) as source:
        assert source.get(Family.META, b"format") == b"topics-rocksdb-4"


def _open_and_die(directory: Path, step: str, when: str) -> None:
    """Open the directory, and be killed before or after the first write or sync."""
    done = getattr(RocksStore, step)

    def die(*args: Any) -> None:
        if when == "after":
            done(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(RocksStore, step, die)
    RocksStore(directory, boot_id="boot-2")


def _check_records(engine: Engine) -> None:
    plain = page(engine, "plain")
    assert datas(plain) == {1: b'{"n":1}', 3: b'{"n":3}', 4: b'{"n":4}', 5: b"\x00\x01"}
    assert column(plain, "tags") == [b"a", b"a", None, None]
    assert column(plain, "nodes") == [b"web-1", None, None, None]
    assert column(plain, "metas") == [b'{"m":1}', None, None, None]
    again = AppendRequest(topic="plain", batch=Batch(datas=[b"again"]), idempotency_key="once")
    reply, _ = engine.append(again)
    assert (reply.first_seq, reply.deduped) == (5, True)
    capped = page(engine, "capped")
    assert datas(capped) == {4: b"3", 5: b"4"}
    assert capped.tombstone is not None
    assert (capped.tombstone.gap_from, capped.tombstone.gap_to, capped.tombstone.reason) == (1, 3, "cap")
    assert datas(page(engine, "synced")) == {1: b'"durable"'}
    assert [len(datas(page(engine, "parts", partition=number))) for number in range(3)] == [1, 2, 3]
    assert list(datas(page(engine, "small"))) == list(range(1, 301))
    odd = page(engine, "small", filter=TagMatch("Eq", b"odd"))
    assert list(datas(odd)) == list(range(2, 301, 2))
    kafka = page(engine, "kafka")
    assert column(kafka, "tags") == [b"key", None, None]
    assert datas(kafka)[1] == b'{"v":1}'
    assert engine.batches.producers.new_id()[0] > 1


def _check_queue(engine: Engine, clock: kept_directory.Clock) -> None:
    counters = engine.queues.counters("jobs")
    assert (counters.ready, counters.in_flight, counters.delayed, counters.dead_lettered) == (1, 1, 1, 1)
    letters = column(page(engine, "jobs-dead"), "metas")
    assert [json.loads(bytes(letter or b"")) for letter in letters] == [
        {
            "$dead_letter_from": "jobs",
            "$dead_letter_deliveries": "1",
            "$dead_letter_src_seq": "1",
            "$dead_letter_attempts": [
                {"delivery": 1, "ended_at": kept_directory.START, "node": "worker", "reason": "no luck"}
            ],
        }
    ]
    [reply], _ = engine.queues.claim([ClaimRequest(topic="jobs", node="next", max=10)])
    assert [job.seq for job in reply.jobs] == [3]
    clock.now += 1000
    [reply], _ = engine.queues.claim([ClaimRequest(topic="jobs", node="next", max=10)])
    assert [job.seq for job in reply.jobs] == [4]


def _check_router(engine: Engine) -> None:
    assert engine.routers.get("copier").config == RouterConfig(
        source="from", dest="to", filter=TagMatch("Glob", b"x"), guarantee="exactly_once"
    )
    [meta] = column(page(engine, "to"), "metas")
    identity = engine.catalog.topics["from"].identity
    assert json.loads(bytes(meta or b"")) == {
        "k": "v",
        "_topics_router": {
            "idempotency_key": f"router:copier:{identity.topic_id}:{identity.epoch}:1",
            "router": "copier",
            "source_topic": "from",
            "source_topic_id": identity.topic_id,
            "source_epoch": identity.epoch,
            "source_seq": 1,
        },
    }
