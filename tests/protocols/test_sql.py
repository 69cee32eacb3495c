"""SQL over HTTP and gRPC on a real server: the same results and the same errors; consuming and acknowledging."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest
from protocols.cases.sql import CASES, Sql
from protocols.conftest import refusal

from support.http import fresh
from support.server import ServerProcess
from topics_proto.v1 import group_pb2, sql_pb2, sql_service_pb2_grpc
from topics_proto.v1 import sql_service_pb2 as pb

Answer = dict[str, Any]
Runner = Callable[[Sql], Answer]


def over_http(client: httpx.Client) -> Runner:
    def run(request: Sql) -> Answer:
        body: dict[str, Any] = {"sql": request.text}
        if request.params is not None:
            body["params"] = request.params
        if request.param_rows is not None:
            body["param_rows"] = request.param_rows
        if request.namespace:
            body["namespace_id"] = request.namespace
        answer = client.post("/api/sql", json=body)
        found = answer.json()
        if answer.status_code == 200:
            assert found["status"] == "success"
            assert found["took"] > 0
            return {"results": [_plain(result) for result in found["results"]]}
        assert found["status"] == "error"
        detail = found["error"].get("detail", {})
        places = [detail.get(name) for name in ("line", "column", "statement")]
        return {"error": (found["error"]["code"], detail.get("sqlstate")), "place": places}

    return run


def over_grpc(stub: sql_service_pb2_grpc.SqlServiceStub) -> Runner:
    def run(request: Sql) -> Answer:
        rows = [sql_pb2.SqlRow(values=map(_value, row)) for row in request.param_rows or ()]
        message = pb.ExecuteRequest(
            sql=request.text, params=map(_value, request.params or ()), param_rows=rows, namespace_id=request.namespace
        )
        try:
            reply = stub.Execute(message)
        except grpc.RpcError as error:
            refused = refusal(error)
            places = [refused.detail.get(name) for name in ("line", "column", "statement")]
            numbers = [None if place is None else int(place) for place in places]
            return {"error": (refused.reason.lower(), refused.detail.get("sqlstate")), "place": numbers}
        return {"results": [_of_message(result) for result in reply.results]}

    return run


def _value(value: Any) -> sql_pb2.SqlValue:
    if value is None:
        return sql_pb2.SqlValue()
    names = {bool: "bool_value", int: "int_value", float: "double_value", str: "text_value"}
    return sql_pb2.SqlValue(**{names[type(value)]: value})


def _plain(result: Answer) -> Answer:
    assert [column["index"] for column in result["schema"]] == list(range(len(result["schema"])))
    columns = [(column["name"], column["data_type"]) for column in result["schema"]]
    return {"columns": columns, "rows": result["rows"], "count": result["row_count"], "message": result.get("message")}


def _of_message(result: sql_pb2.SqlResult) -> Answer:
    def json_value(value: sql_pb2.SqlValue, data_type: str) -> Any:
        kind = value.WhichOneof("kind")
        if kind is None:
            return None
        found = getattr(value, kind)
        if data_type == "JSON":
            return json.loads(found)
        return base64.b64encode(found).decode() if data_type == "BYTES" else found

    columns = [(column.name, column.data_type) for column in result.schema]
    rows = [
        [json_value(value, data_type) for value, (_, data_type) in zip(row.values, columns, strict=True)]
        for row in result.rows
    ]
    message = result.message if result.HasField("message") else None
    return {"columns": columns, "rows": rows, "count": result.row_count, "message": message}


def named(request: Any, namespace: str) -> Any:
    """The request, or a part of it, with the name of the namespace."""
    match request:
        case Sql():
            return Sql(**{name: named(getattr(request, name), namespace) for name in Sql.__dataclass_fields__})
        case str():
            return request.replace("{n}", namespace)
        case list():
            return [named(each, namespace) for each in request]
    return request


def without_names(answer: Any, namespace: str) -> str:
    return repr(answer).replace(namespace, "{n}")


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base, trust_env=False, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def stub(server: ServerProcess) -> Iterator[sql_service_pb2_grpc.SqlServiceStub]:
    with grpc.insecure_channel(server.grpc_target) as channel:
        yield sql_service_pb2_grpc.SqlServiceStub(channel)


@pytest.fixture(scope="module")
def runners(http: httpx.Client, stub: sql_service_pb2_grpc.SqlServiceStub) -> tuple[Runner, Runner]:
    return over_http(http), over_grpc(stub)


@pytest.mark.parametrize("name", CASES)
def test_both_protocols_answer_alike(runners: tuple[Runner, Runner], name: str) -> None:
    namespaces = [f"n{fresh('').strip('-_')}{i}".replace("-", "_") for i in (0, 1)]
    for request in CASES[name]:
        answers = []
        for run, namespace in zip(runners, namespaces, strict=True):
            asked = named(request, namespace)
            answer = run(asked)
            _check(asked, answer)
            answers.append(without_names(answer, namespace))
        assert answers[0] == answers[1], request


def _check(request: Sql, answer: Answer) -> None:
    assert answer.get("error") == request.error, (request, answer)
    if request.place is not None:
        assert answer["place"][0] == request.place[0]
        assert answer["place"][2] == request.place[2]
    if request.results is not None:
        assert [result["rows"] for result in answer["results"]] == request.results
    if request.counts is not None:
        assert [result["count"] for result in answer["results"]] == request.counts
    if request.types is not None:
        assert [data_type for _, data_type in answer["results"][0]["columns"]] == request.types


# ----------------------------------------------------------------------------------------------- bodies over HTTP


@pytest.fixture
def space() -> str:
    """A namespace that no other test has."""
    return fresh("s").replace("-", "_")


def sql(http: httpx.Client, text: str, **members: Any) -> list[Answer]:
    answer = http.post("/api/sql", json={"sql": text, **members})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def refused_as(answer: httpx.Response, status: int, code: str) -> Answer:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    return answer.json()["error"]


BAD_BODIES = [
    b"",
    b"[]",
    b"1",
    b"{",
    b'{"sql": 1}',
    b'{"sql": null}',
    b'{"params": []}',
    b'{"sql": "SELECT 1", "params": {}}',
    b'{"sql": "SELECT 1", "params": 1}',
    b'{"sql": "SELECT $1", "param_rows": [1]}',
    b'{"sql": "SELECT 1", "sql": "SELECT 2"}',
    b'{"sql": "SELECT 1", "namespace_id": 3}',
    b'{"sql": "SELECT 1", "bigint": "big"}',
    b'{"sql": "\xff"}',
    b'{"sql": "SELECT $1", "params": [NaN]}',
    b'{"sql": "SELECT $1", "params": ["\\ud800"]}',
    b'{"sql": "SELECT $1", "params": [1e999]}',
    b'{"sql": "SELECT $1", "params": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    b'{"sql": "SELECT $1",          "params": [1],                 "params": [2]}',
    b'{"sql": "SELECT 1", "params": [1], "param_rows": [[1]]}',
]


@pytest.mark.parametrize("body", BAD_BODIES)
def test_bad_bodies(http: httpx.Client, body: bytes) -> None:
    answer = http.post("/api/sql", content=body, headers={"Content-Type": "application/json"})
    refused_as(answer, 400, "invalid_request")


def test_bodies_as_they_come(http: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    spaced = b'\n { "unknown" : {"sql": 1},\n "params" : [ 1,\n 2 ] , "sql" : "SELECT $1 + $2 AS s" ,"bigint":null }\n '
    assert http.post("/api/sql", content=spaced, headers=headers).json()["results"][0]["rows"] == [[3]]
    assert http.post("/v1/api/sql", json={"sql": "SELECT 1", "params": None}).json()["results"][0]["rows"] == [[1]]
    refused_as(
        http.post("/api/sql", content=b"{}", headers={"Content-Type": "text/plain"}), 415, "unsupported_media_type"
    )
    refused_as(http.get("/api/sql"), 405, "method_not_allowed")
    refused_as(http.post("/api/other"), 404, "not_found")
    big = sql(http, "SELECT 9007199254740993 AS n", bigint="string")
    assert big[0]["rows"] == [["9007199254740993"]]


def test_an_error_stands_beside_the_results_before_it(http: httpx.Client, space: str) -> None:
    text = f"CREATE TABLE {space}.t (id INT PRIMARY KEY); INSERT INTO {space}.t VALUES (7) RETURNING id; SELECT 1 / 0"
    answer = http.post("/api/sql", json={"sql": text})
    error = refused_as(answer, 400, "division_by_zero")
    assert error["detail"]["statement"] == 2
    found = answer.json()
    assert found["status"] == "error"
    assert [result["rows"] for result in found["results"]] == [[], [[7]]]
    assert sql(http, f"SELECT id FROM {space}.t")[0]["rows"] == [[7]]


# ------------------------------------------------------------------------------------------ consuming, both protocols


@pytest.fixture
def routed(http: httpx.Client, space: str) -> str:
    """A topic with three messages of a table."""
    sql(
        http,
        f"CREATE TABLE {space}.t (id INT PRIMARY KEY, name TEXT); CREATE TOPIC {space}.e;"
        f"ALTER TOPIC {space}.e ADD SOURCE {space}.t ON INSERT WITH (payload = 'full');"
        f"INSERT INTO {space}.t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    )
    return f"{space}.e"


def test_a_page_is_the_same_on_both_protocols(
    http: httpx.Client, stub: sql_service_pb2_grpc.SqlServiceStub, routed: str
) -> None:
    body = {"topic": routed, "group_id": "g", "start": "Earliest", "limit": 2, "timeout_seconds": 0}
    found = http.post("/api/topics/consume", json=body).json()
    assert list(found["messages"][0])[:9] == [
        "topic_id", "partition_id", "offset", "message_id", "source_table", "op", "ts", "payload_mode", "payload",
    ]  # fmt: skip
    reply = stub.Consume(
        pb.SqlServiceConsumeRequest(
            topic=routed, group_id="g", start_at=group_pb2.LOG_END_EARLIEST, limit=2, timeout_seconds=0
        )
    )
    assert (found["next_offset"], found["has_more"]) == (reply.next_offset, reply.has_more) == (2, True)
    for one, other in zip(found["messages"], reply.messages, strict=True):
        assert base64.b64decode(one["payload"]) == other.payload
        assert (one["topic_id"], one["offset"], one["message_id"], one["ts"], one["key"]) == (
            other.topic_id, other.offset, other.message_id, other.ts_ms, other.key,
        )  # fmt: skip
        assert (one["op"], other.op) == ("Insert", sql_pb2.CHANGE_OP_INSERT)
        assert (one["payload_mode"], other.payload_mode) == ("Full", sql_pb2.PAYLOAD_MODE_FULL)
    acked = http.post("/v1/api/topics/ack", json={"topic_id": routed, "group_id": "g", "upto_offset": 1})
    assert acked.json() == {"success": True, "acknowledged_offset": 1}
    again = stub.Ack(pb.SqlServiceAckRequest(topic=routed, group_id="g", upto_offset=0))
    assert (again.success, again.acknowledged_offset) == (True, 1)
    left = stub.Consume(pb.SqlServiceConsumeRequest(topic=routed, group_id="g", timeout_seconds=0))
    assert [message.offset for message in left.messages] == [2]
    replay = stub.Consume(pb.SqlServiceConsumeRequest(topic=routed, group_id="g", start_offset=0, timeout_seconds=0))
    assert [message.offset for message in replay.messages] == [0, 1, 2]
    for request in (
        pb.SqlServiceConsumeRequest(topic=routed, group_id="g", limit=0),
        pb.SqlServiceConsumeRequest(topic=routed, group_id=""),
        pb.SqlServiceConsumeRequest(topic=routed, group_id="g", start_at=group_pb2.LOG_END_UNSPECIFIED),
    ):
        with pytest.raises(grpc.RpcError) as error:
            stub.Consume(request)
        assert refusal(error.value).reason.lower() == "invalid_request"
    with pytest.raises(grpc.RpcError) as error:
        stub.Ack(pb.SqlServiceAckRequest(topic=routed, group_id="g"))
    assert refusal(error.value).reason.lower() == "invalid_request"


def test_claims_are_disjoint_over_both_protocols(
    http: httpx.Client, stub: sql_service_pb2_grpc.SqlServiceStub, routed: str
) -> None:
    place = {"topic": routed, "group_id": "workers"}
    body = {**place, "start": "Earliest", "limit": 1, "timeout_seconds": 0, "claim": {"visibility_seconds": 1}}
    first = http.post("/api/topics/consume", json=body).json()
    assert ([message["offset"] for message in first["messages"]], first["has_more"]) == ([0], True)
    assert list(first["claim"]) == ["claim_id", "from_offset", "to_offset", "visibility_seconds"]
    assert (first["claim"]["from_offset"], first["claim"]["to_offset"], first["claim"]["visibility_seconds"]) == (
        0,
        0,
        1,
    )
    request = pb.SqlServiceConsumeRequest(
        topic=routed, group_id="workers", timeout_seconds=0, claim=sql_pb2.ClaimOptions()
    )
    second = stub.Consume(request)
    assert ([message.offset for message in second.messages], second.claim.visibility_seconds) == ([1, 2], 60)
    ack = pb.SqlServiceAckRequest(topic=routed, group_id="workers", claim_id=second.claim.claim_id)
    acked = stub.Ack(ack)
    assert (acked.success, acked.acknowledged_offset, acked.none_yet) == (True, 0, True)
    request.timeout_seconds = 20
    again = stub.Consume(request)
    assert [message.offset for message in again.messages] == [0], "waited until the claim of the other had ended"
    late = http.post("/api/topics/ack", json={**place, "claim_id": first["claim"]["claim_id"]})
    refused_as(late, 409, "claim_expired")
    assert http.post("/api/topics/ack", json={**place, "upto_offset": 2}).json()["acknowledged_offset"] is None
    done = http.post("/api/topics/ack", json={**place, "claim_id": again.claim.claim_id})
    assert done.json() == {"success": True, "acknowledged_offset": 2}
    for bad in ({"claim": 5}, {"claim": {"visibility_seconds": 0}}, {"claim": {}, "start": {"Offset": 1}}):
        refused_as(http.post("/api/topics/consume", json=body | bad), 400, "invalid_request")
    refused_as(http.post("/api/topics/ack", json={**place, "claim_id": "claim_0_2_x"}), 400, "invalid_request")


def test_names_of_the_topic_must_agree(http: httpx.Client, routed: str) -> None:
    body = {"group_id": "g", "timeout_seconds": 0}
    for names in ({"topic": routed}, {"topic_id": routed}, {"topic": routed, "topic_id": routed}):
        assert http.post("/api/topics/consume", json=body | names).status_code == 200
    for names in ({}, {"topic": routed, "topic_id": "other"}):
        refused_as(http.post("/api/topics/consume", json=body | names), 400, "invalid_request")


# ------------------------------------------------------------------------------------------------ rights and limits


def test_keys_and_their_prefixes(start: Callable[..., ServerProcess]) -> None:
    keys = "root, app-all::app., app-rw:rw:app., app-read:read:app., app-write:write:app."
    server = start(TOPICS_API_KEYS=keys)

    def run(key: str, text: str) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        answer = httpx.post(f"{server.base}/api/sql", json={"sql": text}, headers=headers, trust_env=False)
        found = answer.json()
        if answer.status_code == 200:
            return 200, found["results"][-1]["rows"]
        return answer.status_code, found["error"]["code"]

    table = "(id INT PRIMARY KEY)"
    assert run("", "SELECT 1") == (401, "unauthorized")
    for text in (f"CREATE TABLE app.t {table}", f"CREATE TABLE other.t {table}", "CREATE TOPIC other.e"):
        assert run("root", text) == (200, [])
    assert run("app-all", "CREATE TOPIC app.e; ALTER TOPIC app.e ADD SOURCE app.t ON INSERT") == (200, [])
    forbidden = (403, "forbidden")
    for text in (
        "SELECT * FROM other.t",
        "INSERT INTO other.t VALUES (1)",
        "DROP TABLE other.t",
        "ALTER TOPIC other.e ADD SOURCE app.t ON INSERT",
        "ALTER TOPIC app.e ADD SOURCE other.t ON INSERT",
        "CREATE NAMESPACE another",
        "CONSUME FROM other.e FROM EARLIEST",
        "ACK app.e GROUP 'other' UPTO OFFSET 0",
        "ALTER TOPIC app.e SET ALIAS other.alias",
    ):
        assert run("app-all", text) == forbidden, text
    for text in (  # nothing tells a name that is there from one that is not
        "SELECT * FROM other.nothing",
        "SELECT nothing FROM other.t",
        "EXPLAIN SELECT * FROM other.t",
        "DROP TABLE IF EXISTS other.nothing",
        f"CREATE TABLE IF NOT EXISTS other.t {table}",
        "CONSUME FROM other.nothing FROM EARLIEST",
        "CONSUME FROM nothing FROM EARLIEST",
        "DROP TOPIC other.nothing",
        "DROP NAMESPACE other",
        "DROP NAMESPACE nothing",
    ):
        run("root", text if text.startswith("EXPLAIN") else "SELECT 1")  # its plan is no one else's
        assert run("app-all", text) == forbidden, text
    assert run("app-all", "CONSUME FROM app.nothing FROM EARLIEST") == (404, "topic_not_found")
    assert run("app-all", "USE app; CONSUME FROM nothing FROM EARLIEST") == (404, "topic_not_found")
    assert run("app-all", "USE app; CONSUME FROM e FROM EARLIEST") == (200, [])
    assert run("app-rw", "INSERT INTO app.t VALUES (1), (2)") == (200, [])
    for text in (
        f"CREATE TABLE app.u {table}",
        "DELETE FROM app.t",
        "DROP TOPIC app.e",
        "SELECT * FROM system.settings",
    ):
        assert run("app-rw", text) == forbidden, text
    assert run("app-read", "SELECT count(*) FROM app.t") == (200, [[2]])
    assert run("app-read", "INSERT INTO app.t VALUES (3)") == forbidden
    assert run("app-read", "SELECT 1; INSERT INTO app.t VALUES (3)") == forbidden
    assert run("app-write", "SELECT 1") == forbidden
    names = "SELECT table_id FROM system.tables ORDER BY table_id"
    assert run("app-read", names) == (200, [["app.t"]])
    assert run("root", names) == (200, [["app.t"], ["other.t"]])
    assert run("app-read", "SELECT name FROM system.topics") == (200, [["app.e"]])
    assert run("root", "SELECT value FROM system.settings WHERE name = 'TOPICS_SQL_STATEMENT_TIMEOUT'") == (
        200,
        [["30s"]],
    )
    assert (
        run("root", "SELECT count(*) FROM system.settings WHERE name LIKE '%KEY%' AND name NOT LIKE '%PER_KEY'")[1][0][
            0
        ]
        < 6
    )


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_rows_that_come_together_have_answers_of_their_own(server: ServerProcess, space: str, durability: str) -> None:
    """INSERTs of one turn are one commit; one that is refused leaves the others as they are."""

    async def run() -> list[tuple[int, httpx.Response]]:
        async with httpx.AsyncClient(base_url=server.base, trust_env=False, timeout=30) as client:
            script = (
                f"CREATE TABLE {space}.t (id INT PRIMARY KEY, n INT CHECK (n <> 13)) "
                f"WITH (durability = '{durability}');"
                f"CREATE TOPIC {space}.e; ALTER TOPIC {space}.e ADD SOURCE {space}.t ON INSERT WITH (payload = 'key')"
            )
            assert (await client.post("/api/sql", json={"sql": script})).status_code == 200
            insert = f"INSERT INTO {space}.t VALUES ($1, $2) RETURNING id, n + $2"

            async def one(number: int) -> tuple[int, httpx.Response]:
                body = {"sql": insert, "params": [number % 90, number]}
                return number, await client.post("/api/sql", json=body)

            return await asyncio.gather(*map(one, range(100)))

    taken, written = 0, set()
    for number, answer in asyncio.run(run()):
        if number == 13:
            refused_as(answer, 400, "check_violation")
        elif answer.status_code == 200:
            (result,) = answer.json()["results"]
            assert (result["rows"], result["row_count"]) == ([[number % 90, 2 * number]], 1)
            written.add(number % 90)
        else:
            refused_as(answer, 409, "unique_violation")
            taken += 1
    assert written == set(range(90)) - {13}
    assert taken == 10
    with httpx.Client(base_url=server.base, trust_env=False) as client:
        assert sql(client, f"SELECT count(*) FROM {space}.t")[0]["rows"] == [[89]]
        events = sql(client, f"CONSUME FROM {space}.e FROM EARLIEST LIMIT 1000")[0]["rows"]
        assert [event[2] for event in events] == list(range(89))
        assert {json.loads(event[8])["id"] for event in events} == written
