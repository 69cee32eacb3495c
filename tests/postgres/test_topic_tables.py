"""Topics as tables on a real server: records of every protocol, over HTTP, gRPC and the PostgreSQL protocol alike."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import psycopg
import pytest

from support.http import Api
from support.server import ServerProcess
from support.sql import Sql, error_of
from topics_proto.v1 import record_pb2, sql_service_pb2_grpc, topics_service_pb2_grpc
from topics_proto.v1 import sql_service_pb2 as sql_pb
from topics_proto.v1 import topics_service_pb2 as pb

KEYS = "full,reader:read:app.,other:read:shop.,writer:write"


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    with Api(server.base) as made:
        yield made


def test_records_of_v0_and_grpc_are_rows(server: ServerProcess, api: Api, db: psycopg.Connection[Any]) -> None:
    """JSON, bytes, tags, nodes and metas come through psql's protocol in text and binary as they were written."""
    name = api.make("mixed.v1", partition_count=3)
    body = [{"data": {"a": [1, "ü"]}, "tag": "k1", "node": "n1", "meta": {"h": 1}}, {"data": None}]
    assert api.write(name, body, partition=1).status_code == 200
    with grpc.insecure_channel(server.grpc_target) as channel:
        stub: Any = topics_service_pb2_grpc.TopicsServiceStub(channel)
        record = record_pb2.AppendRecord(data=b"\x00\xff", kind=record_pb2.RECORD_KIND_BINARY)
        stub.Append(pb.AppendRequest(topic=name, partition=2, records=[record]))
    text = f'SELECT partition, seq, "offset", tag, node, data, meta FROM topics."{name}" ORDER BY partition, seq'
    wanted = [
        (1, 1, 0, "k1", "n1", {"a": [1, "ü"]}, {"h": 1}), (1, 2, 1, None, None, None, None),
        (2, 1, 0, None, None, {"$base64": base64.b64encode(b"\x00\xff").decode()}, None),
    ]  # fmt: skip
    for binary in (False, True):
        cursor = db.cursor(binary=binary)
        assert cursor.execute(text).fetchall() == wanted
        assert cursor.description is not None
        assert [column.type_code for column in cursor.description] == [23, 20, 20, 25, 25, 3802, 3802]
    (first,) = db.execute(f'SELECT min(ts) FROM topics."{name}"').fetchall()[0]
    assert db.execute(f'SELECT count(*) FROM topics."{name}" WHERE ts >= %s', (first,)).fetchone() == (3,)
    assert db.execute(f'SELECT count(*) FROM topics."{name}" WHERE ts < %s', (first,)).fetchone() == (0,)


def test_losses_are_told_on_every_protocol(server: ServerProcess, api: Api, db: psycopg.Connection[Any]) -> None:
    name = api.make("capped", cap_records=3)
    api.append(name, *range(10))
    gap = {"topic": name, "partition": 0, "from_seq": 1, "to_seq": 7, "reason": "cap"}
    text = f'SELECT seq FROM topics."{name}" ORDER BY seq'
    for query in (text, f'SELECT seq FROM topics."{name}" e JOIN (VALUES (1)) v ON true ORDER BY seq'):
        result = Sql(api).run(query)
        assert result["rows"] == [[8], [9], [10]]
        assert result["gaps"] == [gap]
        with grpc.insecure_channel(server.grpc_target) as channel:
            stub: Any = sql_service_pb2_grpc.SqlServiceStub(channel)
            (lost,) = stub.Execute(sql_pb.ExecuteRequest(sql=query)).results[0].gaps
        assert (lost.topic, lost.from_seq, lost.to_seq, lost.reason) == (name, 1, 7, record_pb2.GAP_REASON_CAP)
        notices: list[str] = []
        db.add_notice_handler(lambda diagnostic, notices=notices: notices.append(diagnostic.message_primary or ""))
        assert db.execute(query).fetchall() == [(8,), (9,), (10,)]
        assert notices == [f'records 1 to 7 of topic "{name}", partition 0, were lost (cap)']
    assert "gaps" not in Sql(api).run(f"{text} DESC LIMIT 3")
    assert "gaps" not in Sql(api).run(f'SELECT seq FROM topics."{name}" WHERE seq > 7')


def test_a_large_topic_is_read_in_pages(server: ServerProcess, api: Api, db: psycopg.Connection[Any]) -> None:
    """A result beyond the bound of HTTP comes over the PostgreSQL protocol, and COPY writes it out."""
    name = api.make("large", partition_count=2)
    for partition in (0, 1):
        for _ in range(8):
            api.append(name, *range(1000), partition=partition)
    text = f'SELECT partition, seq FROM topics."{name}"'
    error_of(Sql(api).send(text), "result_too_large", 413)
    wanted = [(partition, seq) for partition in (0, 1) for seq in range(1, 8001)]
    assert db.execute(text).fetchall() == wanted
    with db.cursor() as cursor, cursor.copy(f"COPY ({text}) TO STDOUT") as copy:
        assert sum(bytes(part).count(b"\n") for part in copy) == 16_000
    assert db.execute(f'SELECT count(*), sum(seq) FROM topics."{name}"').fetchone() == (16_000, 8000 * 8001)


def test_a_view_is_read_by_every_client(api: Api, db: psycopg.Connection[Any], namespace: str) -> None:
    name = api.make("viewed")
    api.append(name, {"user": "ada", "n": 2}, {"user": "bob", "n": 3})
    assert (
        db.execute(
            f"CREATE VIEW v AS SELECT data ->> 'user' AS who, CAST(data ->> 'n' AS INT) AS n FROM topics.\"{name}\""
        ).statusmessage
        == "CREATE VIEW"
    )
    assert db.execute("SELECT who, n FROM v WHERE n > %s", (2,)).fetchall() == [("bob", 3)]
    assert Sql(api).rows(f"SELECT sum(n) AS n FROM {namespace}.v") == [{"n": 5}]
    assert db.execute("DROP VIEW v").statusmessage == "DROP VIEW"


def test_keys_read_the_topics_of_their_prefixes(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"TOPICS_API_KEYS": KEYS}, postgres=True) as server:
        allowed = {"full": True, "reader": True, "other": False, "writer": False}
        with httpx.Client(base_url=server.base, trust_env=False) as client:
            made = client.put("/v0/topics/app.t", json={}, headers={"Authorization": "Bearer full"})
            assert made.status_code in (200, 201)
            for key, may in allowed.items():
                body = {"sql": 'SELECT count(*) FROM topics."app.t"'}
                reply = client.post("/api/sql", json=body, headers={"Authorization": f"Bearer {key}"})
                assert reply.status_code == (200 if may else 403), (key, reply.text)
        with grpc.insecure_channel(server.grpc_target) as channel:
            stub: Any = sql_service_pb2_grpc.SqlServiceStub(channel)
            for key, may in allowed.items():
                metadata = (("authorization", f"Bearer {key}"),)
                request = sql_pb.ExecuteRequest(sql='SELECT count(*) FROM topics."app.t"')
                if may:
                    stub.Execute(request, metadata=metadata)
                else:
                    with pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"):
                        stub.Execute(request, metadata=metadata)
        for key, may in allowed.items():
            where = f"host=127.0.0.1 port={server.pg_port} user=key password={key} dbname=shop"
            with psycopg.connect(where, autocommit=True) as connection:
                if may:
                    assert connection.execute('SELECT count(*) FROM topics."app.t"').fetchone() == (0,)
                else:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute('SELECT count(*) FROM topics."app.t"')
