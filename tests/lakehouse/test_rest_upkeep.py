"""Compaction, maintenance, deletes and queries of tables in S3 behind an Iceberg REST catalog."""

import time
from collections.abc import Iterator

import pytest
from pyarrow.fs import FileSelector
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from support.lake_runs import follow
from support.lake_tables import content, seqs_of
from support.spark import Server, fill, put_topic, rows
from support.weed import Weed
from topics_client.connection import Connection
from topics_lakehouse.catalog import identifier, open_catalog
from topics_lakehouse.compact import Compaction, compact
from topics_lakehouse.config import Config, load
from topics_lakehouse.deletes import sync_deletes
from topics_lakehouse.maintain import Maintenance, maintain, referenced
from topics_lakehouse.query import Lakehouse
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.record_pb2 import TagMatch


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    """A catalog of the module's own."""
    with Weed(tmp_path_factory.mktemp("weed")) as running:
        yield running


def _config(server: Server, weed: Weed, topic: str) -> Config:
    topics = [{"name": topic, "schema": "id bigint, amount double"}]
    return load(None, {"server": server.url, "catalog": weed.properties, "topics": topics})


def _table(config: Config, topic: str) -> Table:
    return open_catalog(config).load_table(identifier(config, topic))


def _stored(table: Table) -> set[str]:
    """Every file below the table's location, as `bucket/path`."""
    io = table.io
    assert isinstance(io, PyArrowFileIO)
    scheme, place, path = io.parse_location(table.location(), io.properties)
    found = io.fs_by_scheme(scheme, place).get_file_info(FileSelector(path, recursive=True))
    return {info.path for info in found if info.is_file}


def test_small_files_and_orphans_go_and_the_content_stays(server: Server, connection: Connection, weed: Weed) -> None:
    put_topic(connection, "upkeep")
    config = _config(server, weed, "upkeep")
    for i in range(6):
        fill(connection, "upkeep", 50, first=50 * i)
        follow(config)
    table = _table(config, "upkeep")
    before = content(table)
    assert compact(table, Compaction(thorough=True)).files_before == 6
    orphan = table.location_provider().new_data_location("orphan.parquet")
    with table.io.new_output(orphan).create() as stream:
        stream.write(b"1234")
    assert maintain(table, Maintenance(orphan_grace_seconds=3600)).files_deleted == 0
    done = maintain(table, Maintenance(keep_snapshots=2, orphan_grace_seconds=0), now=time.time() + 60)
    assert done.snapshots_expired == 5
    assert done.files_deleted >= 6  # manifest lists and the orphan; small files while a snapshot has them
    assert orphan.removeprefix("s3://") not in _stored(table)
    assert _stored(table) == referenced(table)
    assert content(table) == before


def test_deletes_and_a_fresh_query(server: Server, connection: Connection, weed: Weed) -> None:
    put_topic(connection, "asked", partitions=2)
    config = _config(server, weed, "asked")
    for partition in (0, 1):
        fill(connection, "asked", 100, tag=lambda i: f"t{i % 4}", partition=partition)
    follow(config)
    delete = pb.DeleteRecordsRequest(topic="asked", partition=1, match=TagMatch(eq="t3"))
    connection.unary(connection.topics.DeleteRecords, delete, repeatable=True)
    assert sync_deletes(config, open_catalog(config), connection, "asked", timeout=30).rows == 25
    table = _table(config, "asked")
    assert [len(seqs_of(table, partition)) for partition in (0, 1)] == [100, 75]
    fill(connection, "asked", 10, first=100, tag="hot")
    with Lakehouse(config) as session:
        sql = "SELECT tag, count(*) AS n, sum(id)::BIGINT AS ids FROM asked GROUP BY 1 ORDER BY 1"
        found = session.query(sql).to_pylist()
        live = rows(connection, "asked")
        assert {row["tag"]: row["n"] for row in found} == {
            tag: sum(row.tag == tag for row in live) for tag in ("hot", "t0", "t1", "t2", "t3")
        }
        assert found[0]["ids"] == sum(range(100, 110))
        joined = session.query("SELECT count(*) AS n FROM asked AS a JOIN asked AS b USING (partition, seq)")
        assert joined.to_pylist() == [{"n": 185}]
        assert session.query("SELECT count(*) AS n FROM asked_gaps").to_pylist() == [{"n": 0}]
