"""Groups that have members, over HTTP and in messages: they are reported, and their positions are protected."""

import httpx

from topics_proto.v1 import group_pb2
from topics_service.api.grpc.groups import state_message
from topics_service.engine.engine import Engine
from topics_service.engine.offsets.positions import Member, Membership

MEMBERS = (
    Member(member_id="m-1", client_id="c", client_host="/127.0.0.1", partitions=(("t", 0), ("u", 1), ("t", 2))),
    Member(member_id="m-2"),
)


class Joined:
    """A coordinator of one group."""

    def is_empty(self, group: str) -> bool:
        return group != "g"

    def membership(self, group: str) -> Membership:
        if self.is_empty(group):
            return Membership()
        return Membership(state="Stable", protocol_type="consumer", members=MEMBERS)


async def test_members_are_reported_and_protected(client: httpx.AsyncClient, engine: Engine) -> None:
    engine.groups.coordinator = Joined()
    await client.post("/v0/topics/t", json={"records": [{"data": 1}]})
    for group in ("free", "g"):
        assert (await client.post(f"/v0/groups/{group}/commit", json={"topic": "t", "from_seq": 1})).status_code == 200
    body = (await client.get("/v0/groups/g")).json()
    assert (body["state"], body["protocol_type"]) == ("Stable", "consumer")
    assigned = [{"topic": "t", "partitions": [0, 2]}, {"topic": "u", "partitions": [1]}]
    assert body["members"] == [
        {"member_id": "m-1", "client_id": "c", "client_host": "/127.0.0.1", "assignment": assigned},
        {"member_id": "m-2", "client_id": "", "client_host": "", "assignment": []},
    ]
    lines = (await client.get("/v0/groups")).json()["groups"]
    assert [(line["group"], line["state"], line["members"]) for line in lines] == [
        ("free", "Empty", 0),
        ("g", "Stable", 2),
    ]
    message = state_message(engine.groups.describe("g"))
    assert (message.state, [member.member_id for member in message.members]) == ("Stable", ["m-1", "m-2"])
    assert list(message.members[0].assignment) == [
        group_pb2.TopicPartitions(topic="t", partitions=[0, 2]), group_pb2.TopicPartitions(topic="u", partitions=[1]),
    ]  # fmt: skip
    for group, status in (("g", 409), ("free", 200)):
        for method, path, json in (
            ("POST", "/reset", {"to": 0}), ("POST", "/positions/delete", {"topic": "t"}), ("DELETE", "", None),
        ):  # fmt: skip
            reply = await client.request(method, f"/v0/groups/{group}{path}", json=json)
            assert reply.status_code == status
            if status == 409:
                error = reply.json()["error"]
                assert (error["code"], error["detail"]) == ("group_not_empty", {"group": "g"})
