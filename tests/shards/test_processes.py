"""`topics serve --processes`: a data directory with shards, through its real doors."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from topics_client import AsyncTopicsClient
from topics_server.errors import StartError
from topics_server.processes.serving import ShardedServer
from topics_server.server import Server
from topics_server.settings import Settings, SettingsError, load
from topics_service import __version__
from topics_service.engine.placement import home_of

NAMES = [f"topic-{number}" for number in range(12)]
assert len({home_of(name, 4) for name in NAMES}) == 4


def settings(path: Path, **others: Any) -> Settings:
    return Settings(data_dir=str(path), port=0, grpc_port=0, drain_seconds=1, processes=1, **others)


async def test_one_process_serves_all_shards_and_keeps_their_data(tmp_path: Path) -> None:
    async with (
        ShardedServer(settings(tmp_path, shards=4)) as server,
        AsyncTopicsClient(f"127.0.0.1:{server.grpc_port}") as client,
    ):
        for name in NAMES:
            assert (await client.append(name, {"n": name})).head_seq == 1
    assert json.loads((tmp_path / "shards.json").read_text()) == {"format": 1, "shards": 4}
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == ["0", "1", "2", "3"]
    async with ShardedServer(settings(tmp_path, shards=8)) as server, httpx.AsyncClient() as http:
        base = f"http://127.0.0.1:{server.http_port}/v0"
        for name in NAMES:
            reply = await http.post(f"{base}/topics/{name}/diff", json={"from_seq": 0})
            assert [record["data"] for record in reply.json()["records"]] == [{"n": name}]
        assert (await http.get(f"{base}/ready")).json() == {
            "status": "ready", "wal_replay_complete": True, "topics": len(NAMES)
        }  # fmt: skip
        counted = (await http.get(f"{base}/metrics", headers={"accept": "application/json"})).json()
        assert (counted["topics"], counted["records_live"], counted["ready"]) == (len(NAMES), len(NAMES), True)
        text = (await http.get(f"{base}/metrics")).text
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        types = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
        assert len(types) == len(set(types))
        assert samples["topics_records_live",] == len(NAMES)
        assert [samples["topics_topic_head_seq", name] for name in NAMES] == [1] * len(NAMES)
        assert samples["topics_http_request_seconds_count", "TopicsService.Diff", "2xx"] == len(NAMES)
        assert samples["topics_ready",] == samples["topics_build_info", __version__] == 1


async def test_a_directory_is_served_as_what_it_is(tmp_path: Path) -> None:
    async with ShardedServer(settings(tmp_path / "many", shards=2)):
        with pytest.raises(StartError, match=r"it is in use by another server|this process has it open"):
            ShardedServer(settings(tmp_path / "many")).open()
    async with Server(settings(tmp_path / "one")):
        pass
    with pytest.raises(StartError, match="has 2 shards: serve it with --processes 1 to 2"):
        Server(settings(tmp_path / "many")).open()
    with pytest.raises(StartError, match="has no shards: topics split"):
        ShardedServer(settings(tmp_path / "one")).open()
    with pytest.raises(StartError, match="has 2 shards, and so at most 2 processes, not 3"):
        ShardedServer(Settings(data_dir=str(tmp_path / "many"), processes=3)).open()
    (tmp_path / "many" / "shards.json").write_text("{")
    with pytest.raises(StartError, match=r"shards\.json is damaged"):
        ShardedServer(settings(tmp_path / "many")).open()


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"TOPICS_PROCESSES": "65"}, "is not a number from 0 to 64"),
        ({"TOPICS_SHARDS": "0"}, "TOPICS_SHARDS must be at least 1"),
        ({"TOPICS_PROCESSES": "2", "TOPICS_BULK_READERS": "1"}, "TOPICS_BULK_READERS is for a data directory without"),
        ({"TOPICS_PROCESSES": "2", "TOPICS_WAL_ARCHIVE_SECONDS": "9"}, "TOPICS_WAL_ARCHIVE_SECONDS is for a data dir"),
        (
            {
                "TOPICS_PROCESSES": "2",
                "TOPICS_CLUSTER_STORE": "s3://bucket",
                "TOPICS_CLUSTER_ETCD": "127.0.0.1:2379",
                "TOPICS_CLUSTER_SECRET_FILE": "/secret",
            },
            "TOPICS_PROCESSES is not for a node of a cluster",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(environment: dict[str, str], error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        load(environment, {})


async def test_statements_reach_the_tables_from_any_shard(tmp_path: Path) -> None:
    async with ShardedServer(settings(tmp_path, shards=4)) as server, httpx.AsyncClient() as http:

        async def sql(text: str) -> Any:
            reply = await http.post(f"http://127.0.0.1:{server.http_port}/api/sql", json={"sql": text})
            assert reply.status_code == 200, reply.text
            return reply.json()

        await sql("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        await sql("INSERT INTO t VALUES (1), (2)")
        assert (await sql("SELECT count(*) AS n FROM t"))["results"][0]["rows"] == [[2]]
