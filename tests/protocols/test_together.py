"""Many clients that write a record at a time, and ack a job at a time, at both protocols at once."""

import asyncio
from typing import Any

import grpc
import httpx
import pytest

from support.http import Api, ok
from support.server import ServerProcess
from topics_proto.v1 import queue_service_pb2, queue_service_pb2_grpc, record_pb2, topics_service_pb2_grpc
from topics_proto.v1 import topics_service_pb2 as pb

CLIENTS, EACH = 24, 20


def batches(api: Api) -> int:
    return int(api.send("GET", "/v0/metrics", headers={"accept": "application/json"}).json()["wal"]["batches"])


async def over_http(base: str, topic: str, client: int) -> dict[int, str]:
    """The records written, by seq."""
    done = {}
    async with httpx.AsyncClient(base_url=base, trust_env=False, verify=False) as http:
        for n in range(EACH):
            text = f"http-{client}-{n}"
            reply = (await http.post(f"/v0/topics/{topic}", json={"records": [{"data": text}]})).json()
            assert reply["first_seq"] == reply["last_seq"] <= reply["head_seq"], reply
            done[reply["first_seq"]] = text
    return done


async def over_grpc(target: str, topic: str, client: int) -> dict[int, str]:
    """The same."""
    done = {}
    async with grpc.aio.insecure_channel(target) as channel:
        stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
        for n in range(EACH):
            text = f"grpc-{client}-{n}"
            record = record_pb2.AppendRecord(data=f'"{text}"'.encode())
            reply = await stub.Append(pb.AppendRequest(topic=topic, records=[record]))
            done[reply.first_seq] = text
    return done


@pytest.mark.parametrize("durability", ["disk", "fsync", "ephemeral"])
async def test_each_append_has_the_seq_it_was_told(server: ServerProcess, durability: str) -> None:
    with Api(server.base) as api:
        topic = api.make(durability=durability)
        api.append(topic, "first")
        before = batches(api)
        found = await asyncio.gather(
            *(over_http(server.base, topic, client) for client in range(CLIENTS)),
            *(over_grpc(server.grpc_target, topic, client) for client in range(CLIENTS // 4)),
        )
        told = {seq: text for each in found for seq, text in each.items()}
        count = EACH * (CLIENTS + CLIENTS // 4)
        assert sorted(told) == list(range(2, count + 2)), "each has a seq of its own, without a hole"
        page = ok(api.diff(topic, from_seq=1, limit=1000))
        assert {record["$seq"]: record["data"] for record in page["records"]} == told
        for each in found:
            assert list(each) == sorted(each), "a client's appends are in its order"
        if durability != "ephemeral":  # whose records are not written to the log
            assert 0 < batches(api) - before < count, "some went together"


async def ack(base: str, topic: str, node: str, jobs: list[dict[str, Any]]) -> list[tuple[int, list[int]]]:
    """Ack one job after the other."""
    done = []
    async with httpx.AsyncClient(base_url=base, trust_env=False, verify=False) as http:
        for job in jobs:
            body = {"node": node, "seqs": [job["$seq"]], "lease_ids": [job["lease_id"]]}
            reply = (await http.post(f"/v0/topics/{topic}/ack", json=body)).json()
            done.append((reply["acked"], reply["skipped"]))
    return done


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_each_job_is_acked_by_its_holder_and_once(server: ServerProcess, durability: str) -> None:
    with Api(server.base) as api:
        topic = api.make(type="queue", durability=durability)
        api.append(topic, *range(CLIENTS * EACH))
        held = [
            ok(api.send("POST", f"/v0/topics/{topic}/claim", {"node": f"w{client}", "max": EACH}))["claimed"]
            for client in range(CLIENTS)
        ]
        # Each acks its own, and another acks them too: under the right lease id, but another name.
        found = await asyncio.gather(
            *(ack(server.base, topic, f"w{client}", jobs) for client, jobs in enumerate(held)),
            *(ack(server.base, topic, f"w{client + 1}", jobs) for client, jobs in enumerate(held[:8])),
        )
        assert found[:CLIENTS] == [[(1, [])] * EACH] * CLIENTS
        assert found[CLIENTS:] == [[(0, [job["$seq"]]) for job in jobs] for jobs in held[:8]]
        state = api.state(topic)
        assert (state["count"], state["queue"]["ready"], state["queue"]["in_flight"]) == (0, 0, 0)
        async with grpc.aio.insecure_channel(server.grpc_target) as channel:
            stub = queue_service_pb2_grpc.QueueServiceStub(channel)
            claimed = await stub.Claim(queue_service_pb2.ClaimRequest(topic=topic, node="w", max=1))
        assert not claimed.claimed
