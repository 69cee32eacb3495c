"""The APIs of members over the codec, in all versions: classic and `consumer` groups on a real engine."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from support.kafka_groups import FULL, Broker, beat, join, limited, sync, versions
from support.kafka_members import assignment, subscription
from topics_kafka.protocol import SUPPORTED, ApiKey
from topics_service.api.access.auth import Scope
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.writer import Writer


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
async def test_there_is_one_coordinator(broker: Broker, version: int) -> None:
    for kind in (0, 1) if version else (0,):
        body = {"key_type": kind, "coordinator_keys": ["g", "h"]} if version >= 4 else {"key_type": kind, "key": "g"}
        found = await broker.call(ApiKey.FIND_COORDINATOR, version, **body)
        for place in found["coordinators"] if version >= 4 else [found]:
            assert (place["error_code"], place["node_id"], place["host"], place["port"]) == (0, 1, "broker", 9092)
    if version >= 4:
        found = await broker.call(ApiKey.FIND_COORDINATOR, version, key_type=2, coordinator_keys=["g"])
        assert found["coordinators"][0]["error_code"] == 42
        context = broker.connect(limited("mine."))
        body = {"key_type": 0, "coordinator_keys": ["g", "mine.g"]}
        found = await broker.call(ApiKey.FIND_COORDINATOR, version, context, **body)
        assert [place["error_code"] for place in found["coordinators"]] == [30, 0]


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
async def test_a_classic_member_in_every_version(broker: Broker, version: int) -> None:
    joined = await join(broker, version)
    assert (joined["error_code"], joined["generation_id"], joined["protocol_name"]) == (0, 1, "range")
    assert joined["leader"] == joined["member_id"] == joined["members"][0]["member_id"]
    assert bytes(joined["members"][0]["metadata"]) == subscription("t")
    for sync_version in versions(ApiKey.SYNC_GROUP):
        synced = await sync(broker, joined, b"mine", sync_version)
        assert (synced["error_code"], bytes(synced["assignment"])) == (0, b"mine")
    who = {"group_id": "g", "member_id": joined["member_id"], "group_instance_id": None}
    for beat_version in versions(ApiKey.HEARTBEAT):
        assert (await broker.call(ApiKey.HEARTBEAT, beat_version, generation_id=1, **who))["error_code"] == 0
        assert (await broker.call(ApiKey.HEARTBEAT, beat_version, generation_id=2, **who))["error_code"] == 22
    refused = await join(broker, version, member_id="?")
    assert (refused["error_code"], refused["generation_id"], refused["member_id"]) == (25, -1, "?")


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
async def test_leaving_in_every_version(broker: Broker, version: int) -> None:
    joined = await join(broker)
    who = {"member_id": joined["member_id"], "group_instance_id": None, "reason": "done"}
    body = {"members": [{**who, "member_id": "?"}, who]} if version >= 3 else who
    left = await broker.call(ApiKey.LEAVE_GROUP, version, group_id="g", **body)
    assert left["error_code"] == 0
    if version >= 3:
        assert [each["error_code"] for each in left["members"]] == [25, 0]
    again = await broker.call(ApiKey.LEAVE_GROUP, version, group_id="g", **body)
    assert (again["members"][1] if version >= 3 else again)["error_code"] == 25


async def test_a_join_waits_for_the_others(broker: Broker) -> None:
    first = await join(broker)
    await sync(broker, first, b"")
    task = asyncio.create_task(join(broker))
    await asyncio.sleep(0)
    who = {"group_id": "g", "member_id": first["member_id"], "group_instance_id": None, "generation_id": 1}
    while (await broker.call(ApiKey.HEARTBEAT, 4, **who))["error_code"] == 0:
        await asyncio.sleep(0)
    assert not task.done()
    again = await join(broker, member_id=first["member_id"])
    second = await task
    assert again["generation_id"] == second["generation_id"] == 2
    assert (again["leader"], len(again["members"]), second["members"]) == (first["member_id"], 2, [])


async def test_a_join_whose_connection_is_gone_is_not_answered(broker: Broker) -> None:
    first = await join(broker)
    task = asyncio.create_task(join(broker, 3))  # before version 4 a client can't return as this member
    membership = broker.membership
    while len(membership.describe("g").members) == 1:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(membership.describe("g").members) == 1
    assert (await join(broker, member_id=first["member_id"]))["generation_id"] == 2


async def test_sessions_end_by_themselves(broker: Broker, eventually: Callable[..., Any]) -> None:
    await join(broker, session_timeout=50)
    assert not broker.membership.is_empty("g")
    await eventually(lambda: broker.membership.is_empty("g"))


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_HEARTBEAT))
async def test_a_consumer_member_in_every_version(broker: Broker, version: int) -> None:
    await broker.put("t", 3)
    topic_id = broker.topic_id("t")
    reply = await beat(broker, "" if version == 0 else "m", version=version)
    member_id = reply["member_id"]
    assert (reply["error_code"], reply["member_epoch"], reply["heartbeat_interval"]) == (0, 1, 1_000)
    assert reply["assignment"] == {"topic_partitions": [{"topic_id": topic_id, "partitions": [0, 1, 2]}]}
    owned = [{"topic_id": topic_id, "partitions": [0, 1, 2]}]
    nothing = dict.fromkeys(("subscribed_topic_names", "topic_partitions")) | {"rebalance_timeout": -1}
    assert (await beat(broker, member_id, 1, version, topic_partitions=owned))["error_code"] == 0
    assert (await beat(broker, member_id, 1, version, **nothing))["assignment"] is None
    assert (await beat(broker, member_id, 7, version))["error_code"] == 110
    assert (await beat(broker, member_id, 0, version, server_assignor="?"))["error_code"] == 112
    await broker.put("t", 4)
    reply = await beat(broker, member_id, 1, version, **nothing)
    assert reply["assignment"]["topic_partitions"][0]["partitions"] == [0, 1, 2, 3]
    left = await beat(broker, member_id, -1, version)
    assert (left["error_code"], left["member_epoch"]) == (0, -1)
    if version >= 1:
        assert (await beat(broker, "", version=1))["error_code"] == 42


async def test_patterns_find_only_what_the_key_may_see(broker: Broker) -> None:
    for name in ("mine.a", "mine.b", "other"):
        await broker.put(name)
    context = broker.connect(limited("mine.", "g"))
    more = {"subscribed_topic_names": [], "subscribed_topic_regex": ".*", "topic_partitions": []}
    reply = await broker.call(
        ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, context, **{**FULL, **more}, group_id="g", member_id="m", member_epoch=0
    )
    assert {each["topic_id"] for each in reply["assignment"]["topic_partitions"]} == {
        broker.topic_id("mine.a"),
        broker.topic_id("mine.b"),
    }
    refused = await broker.call(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        context,
        **{**FULL, **more, "subscribed_topic_names": ["other"]},
        group_id="g",
        member_id="n",
        member_epoch=0,
    )
    assert refused["error_code"] == 29
    assert (await beat(broker, subscribed_topic_regex="("))["error_code"] == 128


async def test_groups_of_others_are_refused(broker: Broker) -> None:
    strangers = broker.connect(limited("mine.")), broker.connect(limited("g", scopes=frozenset({Scope.WRITE})))
    for context in strangers:
        calls = [
            (ApiKey.JOIN_GROUP, {"session_timeout": 1, "rebalance_timeout": 1, "member_id": "", "protocol_type": "x"}),
            (ApiKey.SYNC_GROUP, {"generation_id": 1, "member_id": "m", "assignments": []}),
            (ApiKey.HEARTBEAT, {"generation_id": 1, "member_id": "m"}),
            (ApiKey.LEAVE_GROUP, {"members": []}),
            (ApiKey.CONSUMER_GROUP_HEARTBEAT, {**FULL, "member_id": "m", "member_epoch": 0}),
        ]
        for api, body in calls:
            defaults = {"group_instance_id": None, "protocols": [], "protocol_name": None, "reason": None}
            defaults |= {"subscribed_topic_names": None, "topic_partitions": None}
            response = await broker.call(api, SUPPORTED[api][1], context, group_id="g", **{**defaults, **body})
            assert response["error_code"] == 30


async def test_a_restart_is_not_noticed_by_members(broker: Broker) -> None:
    await broker.put("t", 2)
    joined = await join(broker, group="classic")
    await sync(broker, joined, b"mine", group="classic")
    await beat(broker)
    broker.restart()
    who = {"group_id": "classic", "member_id": joined["member_id"], "group_instance_id": None, "generation_id": 1}
    assert (await broker.call(ApiKey.HEARTBEAT, 4, **who))["error_code"] == 0
    assert bytes((await sync(broker, joined, b"", group="classic"))["assignment"]) == b"mine"
    owned = [{"topic_id": broker.topic_id("t"), "partitions": [0, 1]}]
    assert (await beat(broker, epoch=1, topic_partitions=owned))["error_code"] == 0
    assert (await beat(broker, "n"))["assignment"] == {"topic_partitions": []}


async def test_a_second_listener_has_the_same_groups(broker: Broker) -> None:
    assert broker.api.serve_members(broker.settings.groups) is broker.membership is broker.engine.groups.coordinator


async def test_what_cannot_be_stored_is_not_told(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.put("t", 1)
    await beat(broker)

    def fail(_self: Writer) -> None:
        raise TopicsError(Reason.THROTTLED, "the disk is slow")

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "check", fail)
        patch.setattr(broker.engine.groups, "put_state", lambda *_: fail(broker.engine.writer))
        for _ in range(2):
            assert (await beat(broker, "n"))["error_code"] == 14
        assert (await beat(broker, epoch=1, topic_partitions=[]))["error_code"] == 14
    reply = await beat(broker, "n")
    assert (reply["error_code"], reply["member_epoch"]) == (0, 2)
    broker.restart()
    assert len(broker.membership.describe("g").members) == 2


async def test_the_end_of_the_server_ends_held_joins(broker: Broker) -> None:
    await join(broker)
    task = asyncio.create_task(join(broker))
    while len(broker.membership.describe("g").members) == 1:
        await asyncio.sleep(0)
    broker.membership.close()
    assert (await task)["error_code"] == 16
    assert (await join(broker))["error_code"] == 16
    assert (await beat(broker))["error_code"] == 16


async def test_names_that_no_group_can_have(broker: Broker) -> None:
    assert (await join(broker, group=""))["error_code"] == 24
    assert (await join(broker, group="x" * 256))["error_code"] == 24
    assert (await join(broker, group="groß und klein"))["error_code"] == 0


async def test_too_many_groups(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.engine.groups, "_limits", replace(broker.engine.limits, max_groups=1))
    assert (await join(broker))["error_code"] == 0
    assert (await join(broker, group="h"))["error_code"] == 81


async def test_other_protocols_see_the_members(broker: Broker) -> None:
    joined = await join(broker)
    await sync(broker, joined, assignment({"t": [0, 1]}))
    membership = broker.engine.groups.describe("g").membership
    assert (membership.state, membership.protocol_type) == ("Stable", "consumer")
    member = membership.members[0]
    assert (member.member_id, member.client_id, member.client_host) == (joined["member_id"], "client", "/127.0.0.1")
    assert member.partitions == (("t", 0), ("t", 1))
    with pytest.raises(TopicsError) as caught:
        broker.engine.groups.delete("g")
    assert caught.value.reason is Reason.GROUP_NOT_EMPTY
    await broker.call(ApiKey.LEAVE_GROUP, 1, group_id="g", member_id=joined["member_id"])
    broker.engine.groups.delete("g")
    assert broker.membership.describe("g") is None
    assert (await join(broker))["error_code"] == 0
    assert broker.engine.groups.find("g") is not None
