"""Offsets over the codec in all versions, and group administration."""

from typing import Any
from uuid import uuid4

import pytest

from support.kafka_groups import Broker, beat, join, sync, versions
from support.kafka_members import subscription
from topics_kafka.protocol import ApiKey, Message
from topics_service.api.access.auth import ALL_SCOPES, Principal

NONE = -1


async def commit(
    broker: Broker,
    offsets: dict[tuple[Any, int], int],
    version: int = 9,
    *,
    member_id: str = "",
    epoch: int = NONE,
    **more: Any,
) -> dict[tuple[Any, int], int]:
    """Commit. Returns the error codes by topic (or its id) and partition."""
    key = "topic_id" if version >= 10 else "name"
    metadata = more.pop("metadata", "note")
    context = more.pop("context", None)
    topics = [
        {
            key: topic,
            "partitions": [
                {
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_leader_epoch": 0,
                    "committed_metadata": metadata,
                    "commit_timestamp": NONE,
                }
            ],
        }
        for (topic, partition), offset in offsets.items()
    ]
    body = {"group_id": "g", "generation_id_or_member_epoch": epoch, "member_id": member_id, "group_instance_id": None}
    response = await broker.call(
        ApiKey.OFFSET_COMMIT, version, context, **{**body, "retention_time": NONE, **more}, topics=topics
    )
    return {
        (topic[key], partition["partition_index"]): partition["error_code"]
        for topic in response["topics"]
        for partition in topic["partitions"]
    }


async def fetch(
    broker: Broker,
    asked: dict[Any, list[int]] | None,
    version: int = 9,
    *,
    group: str = "g",
    context: Any = None,
    **more: Any,
) -> tuple[int, dict[tuple[Any, int], tuple[int, str, int]]]:
    """The error code, and offset, metadata and error code by topic (or its id) and partition."""
    key = "topic_id" if version >= 10 else "name"
    topics = None if asked is None else [{key: topic, "partition_indexes": ps} for topic, ps in asked.items()]
    one = {"group_id": group, "topics": topics, "member_id": None, "member_epoch": NONE, **more}
    body: Message = {"groups": [one]} if version >= 8 else {"group_id": group, "topics": topics}
    response = await broker.call(ApiKey.OFFSET_FETCH, version, context, **body, require_stable=False)
    found = response["groups"][0] if version >= 8 else response
    return found.get("error_code", 0), {
        (topic[key], p["partition_index"]): (p["committed_offset"], p["metadata"], p["error_code"])
        for topic in found["topics"]
        for p in topic["partitions"]
    }


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
async def test_what_is_asked_for_many_times_is_told_once(broker: Broker, version: int) -> None:
    await broker.put("t", 2, records=5)
    await commit(broker, {("t", 0): 3})
    key, topic = ("topic_id", broker.topic_id("t")) if version >= 10 else ("name", "t")
    topics = [{key: topic, "partition_indexes": indexes} for indexes in ([0] * 1_000, [1, 0, 1], [0])]
    one = {"group_id": "g", "topics": topics, "member_id": None, "member_epoch": NONE}
    body: Message = {"groups": [one]} if version >= 8 else one
    response = await broker.call(ApiKey.OFFSET_FETCH, version, **body, require_stable=False)
    found = response["groups"][0] if version >= 8 else response
    told = [(p["partition_index"], p["committed_offset"]) for each in found["topics"] for p in each["partitions"]]
    assert told == [(0, 3), (1, -1)]


async def test_a_group_that_is_named_many_times_is_described_once(broker: Broker) -> None:
    await broker.put("t")
    await join(broker)
    response = await broker.call(ApiKey.DESCRIBE_GROUPS, 5, groups=["g", "x"] * 99, include_authorized_operations=False)
    assert [group["group_id"] for group in response["groups"]] == ["g", "x"]
    body = {"group_ids": ["g", "x"] * 99, "include_authorized_operations": False}
    response = await broker.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, **body)
    assert [group["group_id"] for group in response["groups"]] == ["g", "x"]
    one = {"topics": None, "member_id": None, "member_epoch": NONE}
    groups = [{"group_id": name, **one} for name in ("g", "x", "g")]
    response = await broker.call(ApiKey.OFFSET_FETCH, 9, groups=groups, require_stable=False)
    assert [(group["group_id"], group["error_code"]) for group in response["groups"]] == [("g", 42), ("x", 42)]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
async def test_commits_of_every_version(broker: Broker, version: int) -> None:
    await broker.put("t", 2, records=5)
    name = broker.topic_id("t") if version >= 10 else "t"
    assert await commit(broker, {(name, 0): 3, (name, 1): 5}, version) == {(name, 0): 0, (name, 1): 0}
    position = broker.engine.groups.position("g", "t", 0)
    assert (position.from_seq, position.metadata, position.leader_epoch) == (3, "note", 0 if version >= 6 else NONE)
    broker.restart()
    assert broker.engine.groups.position("g", "t", 1).from_seq == 5


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
async def test_fetches_of_every_version(broker: Broker, version: int) -> None:
    await broker.put("t", 2, records=5)
    await broker.put("other", 1)
    await commit(broker, {("t", 1): 4})
    t, other = (broker.topic_id(name) if version >= 10 else name for name in ("t", "other"))
    code, found = await fetch(broker, {t: [0, 1], other: [0]}, version)
    assert code == 0
    assert found == {(t, 0): (NONE, "", 0), (t, 1): (4, "note", 0), (other, 0): (NONE, "", 0)}
    if version >= 2:
        assert await fetch(broker, None, version) == (0, {(t, 1): (4, "note", 0)})
        assert await fetch(broker, None, version, group="nobody") == (0, {})
    context = broker.connect(Principal("key1", ALL_SCOPES, ("x",)))
    code, found = await fetch(broker, {t: [0]}, version, context=context)
    assert (code or found[t, 0][2]) == 30


async def test_topics_that_do_not_exist(broker: Broker) -> None:
    await broker.put("t", 1, records=2)
    unknown = uuid4()
    assert await commit(broker, {("t", 0): 1, ("t", 1): 1, ("u", 0): 1}) == {("t", 0): 0, ("t", 1): 3, ("u", 0): 3}
    assert await commit(broker, {(unknown, 0): 1, (broker.topic_id("t"), 0): 2}, 10) == {
        (unknown, 0): 100,
        (broker.topic_id("t"), 0): 0,
    }
    assert (await fetch(broker, {"u": [0]}))[1] == {("u", 0): (NONE, "", 0)}
    assert (await fetch(broker, {unknown: [0]}, 10))[1] == {(unknown, 0): (NONE, "", 100)}
    old = broker.topic_id("t")
    await broker.api.delete_topic("t")
    await broker.put("t", 1)
    assert (await fetch(broker, {old: [0]}, 10))[1] == {(old, 0): (NONE, "", 100)}
    assert (await fetch(broker, {"t": [0]}))[1] == {("t", 0): (NONE, "", 0)}


async def test_offsets_that_cannot_be(broker: Broker) -> None:
    await broker.put("t", 1, records=2)
    assert await commit(broker, {("t", 0): -1}) == {("t", 0): 1}
    assert await commit(broker, {("t", 0): 1}, metadata="x" * 4_097) == {("t", 0): 12}
    assert await commit(broker, {("t", 0): 1}, metadata="\U0001f600" * 2_049) == {("t", 0): 12}
    assert await commit(broker, {("t", 0): 1}, group_id="") == {("t", 0): 24}
    assert await fetch(broker, None, group="g") == (0, {})
    assert await commit(broker, {("t", 0): 2}, metadata=None) == {("t", 0): 0}
    assert (await fetch(broker, None))[1] == {("t", 0): (2, "", 0)}


async def test_metadata_is_measured_as_java_does(broker: Broker) -> None:
    await broker.put("t", 1, records=2)
    for metadata in ("ä" * 4_096, "\U0001f600" * 2_048):
        assert await commit(broker, {("t", 0): 1}, metadata=metadata) == {("t", 0): 0}
        assert (await fetch(broker, None))[1] == {("t", 0): (1, metadata, 0)}
        broker.restart()
        assert (await fetch(broker, None))[1] == {("t", 0): (1, metadata, 0)}


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
async def test_a_position_beyond_the_end_is_kept(broker: Broker, version: int) -> None:
    """Committed without membership, by a member of a classic group, and by one of a `consumer` group."""
    await broker.put("t", 2, records=2)
    t = broker.topic_id("t") if version >= 10 else "t"
    joined = await join(broker, group="classic")
    await sync(broker, joined, b"", group="classic")
    await beat(broker, group_id="modern")
    members: dict[str, dict[str, Any]] = {
        "nobody": {},
        "classic": {"member_id": joined["member_id"], "epoch": joined["generation_id"]},
        "modern": {"member_id": "m", "epoch": 1},
    }
    for group, who in members.items():
        code = 35 if group == "modern" and version < 9 else 0  # UNSUPPORTED_VERSION: without member epochs
        codes = await commit(broker, {(t, 0): 500, (t, 1): (1 << 63) - 1}, version, group_id=group, **who)
        assert codes == {(t, 0): code, (t, 1): code}
        kept = {} if code else {("t", 0): (500, "note", 0), ("t", 1): ((1 << 63) - 1, "note", 0)}
        assert await fetch(broker, None, group=group) == (0, kept)
    broker.restart()
    assert (await fetch(broker, {"t": [0, 1]}, group="nobody"))[1]["t", 0] == (500, "note", 0)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
async def test_commits_of_strangers(broker: Broker, version: int) -> None:
    """Commits to a group that does not exist, and to one with positions but without members."""
    await broker.put("t", 1, records=5)
    t = broker.topic_id("t") if version >= 10 else "t"
    missing = 69 if version >= 9 else 22
    for member_id, epoch, code in (("m", 0, missing), ("m", 3, missing), ("", 3, missing), ("m", NONE, 0)):
        codes = await commit(broker, {(t, 0): 1}, version, member_id=member_id, epoch=epoch, group_id="g")
        assert codes == {(t, 0): code}
    for member_id, epoch, code in (("m", 0, 25), ("", 3, 25), ("m", NONE, 0), ("", NONE, 0)):
        codes = await commit(broker, {(t, 0): 2}, version, member_id=member_id, epoch=epoch, group_id="g")
        assert codes == {(t, 0): code}


async def test_anybody_may_read_what_is_no_consumer_group(broker: Broker) -> None:
    await broker.put("t", 1, records=5)
    await commit(broker, {("t", 0): 3})
    for group, found in (("g", {("t", 0): (3, "note", 0)}), ("nobody", {("t", 0): (NONE, "", 0)})):
        for who in ({"member_id": "x"}, {"member_id": "x", "member_epoch": 1}, {"member_id": "", "member_epoch": 1}):
            assert await fetch(broker, {"t": [0]}, group=group, **who) == (0, found)


async def test_groups_without_a_name(broker: Broker) -> None:
    for version in versions(ApiKey.LEAVE_GROUP):
        members = [{"member_id": "m", "group_instance_id": None, "reason": None}]
        left = await broker.call(ApiKey.LEAVE_GROUP, version, group_id="", member_id="m", members=members)
        assert left["error_code"] == 24
        assert not left.get("members")
    assert await broker.call(ApiKey.OFFSET_DELETE, 0, group_id="", topics=[]) == {
        "error_code": 24, "throttle_time": 0, "topics": [],
    }  # fmt: skip
    body = {"group_ids": [""], "include_authorized_operations": False}
    (group,) = (await broker.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, **body))["groups"]
    assert group["error_code"] == 24


async def test_a_sync_names_its_protocol(broker: Broker) -> None:
    joined = await join(broker)
    body = {"group_id": "g", "generation_id": 1, "member_id": joined["member_id"], "group_instance_id": None}
    for kind, name in ((None, None), ("consumer", None), (None, "range"), ("", "")):
        more = {"protocol_type": kind, "protocol_name": name, "assignments": []}
        assert (await broker.call(ApiKey.SYNC_GROUP, 5, **body, **more))["error_code"] == 23
    assert (await sync(broker, joined, b""))["error_code"] == 0


async def test_topics_and_groups_of_others(broker: Broker) -> None:
    for name in ("t", "mine"):
        await broker.put(name, 1, records=1)
    context = broker.connect(Principal("key1", ALL_SCOPES, ("mine", "g")))
    assert await commit(broker, {("t", 0): 1, ("mine", 0): 1}, context=context) == {("t", 0): 29, ("mine", 0): 0}
    await commit(broker, {("t", 0): 1})
    assert (await fetch(broker, None, context=context))[1] == {("mine", 0): (1, "note", 0)}
    assert (await fetch(broker, {"t": [0]}, context=context))[1] == {("t", 0): (NONE, "", 29)}
    assert await commit(broker, {("mine", 0): 1}, context=context, group_id="h") == {("mine", 0): 30}


async def test_only_members_of_this_generation_commit(broker: Broker) -> None:
    await broker.put("t", 1, records=5)
    joined = await join(broker)
    who = {"member_id": joined["member_id"], "epoch": 1}
    assert await commit(broker, {("t", 0): 1}, **who) == {("t", 0): 27}
    await sync(broker, joined, b"")
    assert await commit(broker, {("t", 0): 1}, **who) == {("t", 0): 0}
    assert await commit(broker, {("t", 0): 2}) == {("t", 0): 25}
    assert await commit(broker, {("t", 0): 2}, member_id=who["member_id"], epoch=2) == {("t", 0): 22}
    assert (await fetch(broker, None))[1] == {("t", 0): (1, "note", 0)}


async def test_members_of_consumer_groups_commit_with_their_epoch(broker: Broker) -> None:
    await broker.put("t", 1, records=5)
    await beat(broker)
    assert await commit(broker, {("t", 0): 1}, member_id="m", epoch=1) == {("t", 0): 0}
    assert await commit(broker, {("t", 0): 1}, member_id="m", epoch=2) == {("t", 0): 113}
    await broker.put("t", 2)
    owned = [{"topic_id": broker.topic_id("t"), "partitions": [0]}]
    assert (await beat(broker, epoch=1, topic_partitions=owned))["member_epoch"] == 2
    assert await commit(broker, {("t", 0): 2}, member_id="m", epoch=1) == {("t", 0): 0}  # its own since then
    assert set((await commit(broker, {("t", 0): 2, ("t", 1): 0}, member_id="m", epoch=1)).values()) == {113}
    assert await fetch(broker, {"t": [0]}, member_id="m", member_epoch=2) == (0, {("t", 0): (2, "note", 0)})
    assert await fetch(broker, {"t": [0]}, member_id="m", member_epoch=1) == (113, {})
    assert await fetch(broker, {"t": [0]}, member_id="x", member_epoch=1) == (25, {})


async def delete_offsets(broker: Broker, **asked: list[int]) -> Message:
    topics = [
        {"name": name, "partitions": [{"partition_index": p} for p in partitions]} for name, partitions in asked.items()
    ]
    response: Message = await broker.call(ApiKey.OFFSET_DELETE, 0, group_id="g", topics=topics)
    return response


async def test_offsets_are_deleted_where_nobody_reads(broker: Broker) -> None:
    for name in ("t", "u"):
        await broker.put(name, 2, records=5)
    assert (await delete_offsets(broker, t=[0]))["error_code"] == 69
    await commit(broker, {("t", 0): 1, ("t", 1): 1, ("u", 0): 1})
    joined = await join(broker)
    await sync(broker, joined, b"")
    response = await delete_offsets(broker, t=[0, 2], u=[0, 1, 2], v=[0])
    assert response["error_code"] == 0
    codes = [[p["error_code"] for p in topic["partitions"]] for topic in response["topics"]]
    assert codes == [[86, 3], [0, 0, 3], [3]]
    assert set((await fetch(broker, None))[1]) == {("t", 0), ("t", 1)}
    await broker.call(ApiKey.LEAVE_GROUP, 1, group_id="g", member_id=joined["member_id"])
    await delete_offsets(broker, t=[0])
    assert set((await fetch(broker, None))[1]) == {("t", 1)}


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
async def test_lists_of_every_version(broker: Broker, version: int) -> None:
    await broker.put("t", 1, records=5)
    await commit(broker, {("t", 0): 1}, group_id="bare")
    await join(broker, group="classic")
    await beat(broker, group_id="consumer")
    everything = {"states_filter": [], "types_filter": []}
    found = await broker.call(ApiKey.LIST_GROUPS, version, **everything)
    assert [(each["group_id"], each["protocol_type"]) for each in found["groups"]] == [
        ("bare", ""),
        ("classic", "consumer"),
        ("consumer", "consumer"),
    ]
    if version >= 4:
        states = [each["group_state"] for each in found["groups"]]
        assert states == ["Empty", "CompletingRebalance", "Stable"]
        found = await broker.call(ApiKey.LIST_GROUPS, version, states_filter=["stable"], types_filter=[])
        assert [each["group_id"] for each in found["groups"]] == ["consumer"]
    if version >= 5:
        found = await broker.call(ApiKey.LIST_GROUPS, version, states_filter=[], types_filter=["Classic"])
        assert [(each["group_id"], each["group_type"]) for each in found["groups"]] == [
            ("bare", "classic"),
            ("classic", "classic"),
        ]
    context = broker.connect(Principal("key1", ALL_SCOPES, ("b",)))
    found = await broker.call(ApiKey.LIST_GROUPS, version, context, **everything)
    assert [each["group_id"] for each in found["groups"]] == ["bare"]


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
async def test_descriptions_of_every_version(broker: Broker, version: int) -> None:
    await broker.put("t", 1, records=5)
    await commit(broker, {("t", 0): 1}, group_id="bare")
    joined = await join(broker)
    await sync(broker, joined, b"mine")
    await beat(broker, group_id="consumer")
    names = ["g", "bare", "consumer", "nobody"]
    asked = {"groups": names, "include_authorized_operations": True}
    found = (await broker.call(ApiKey.DESCRIBE_GROUPS, version, **asked))["groups"]
    assert [group["group_id"] for group in found] == names
    assert [group["group_state"] for group in found] == ["Stable", "Empty", "Dead", "Dead"]
    assert [group["error_code"] for group in found] == ([0, 0, 69, 69] if version >= 6 else [0] * 4)
    assert (found[0]["protocol_type"], found[0]["protocol_data"]) == ("consumer", "range")
    member = found[0]["members"][0]
    assert (member["client_id"], member["client_host"]) == ("client", "/127.0.0.1")
    assert (bytes(member["member_metadata"]), bytes(member["member_assignment"])) == (subscription("t"), b"mine")
    context = broker.connect(Principal("key1", ALL_SCOPES, ("x",)))
    found = (await broker.call(ApiKey.DESCRIBE_GROUPS, version, context, **asked))["groups"]
    assert {group["error_code"] for group in found} == {30}


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_DESCRIBE))
async def test_descriptions_of_consumer_groups(broker: Broker, version: int) -> None:
    await broker.put("t", 2)
    await join(broker, group="classic")
    await beat(broker, instance_id="i", rack_id="r")
    body = {"group_ids": ["g", "classic", "nobody"], "include_authorized_operations": False}
    found = (await broker.call(ApiKey.CONSUMER_GROUP_DESCRIBE, version, **body))["groups"]
    assert [group["error_code"] for group in found] == [0, 69, 69]
    group = found[0]
    assert (group["group_state"], group["group_epoch"], group["assignment_epoch"]) == ("Stable", 1, 1)
    assert group["assignor_name"] == "uniform"
    member = group["members"][0]
    parts = [{"topic_id": broker.topic_id("t"), "topic_name": "t", "partitions": [0, 1]}]
    assert member["assignment"] == member["target_assignment"] == {"topic_partitions": parts}
    assert (member["member_id"], member["instance_id"], member["rack_id"], member["member_epoch"]) == ("m", "i", "r", 1)
    assert member["subscribed_topic_names"] == ["t"]


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
async def test_deletes_of_every_version(broker: Broker, version: int) -> None:
    await broker.put("t", 1, records=5)
    await commit(broker, {("t", 0): 1}, group_id="bare")
    await join(broker)
    found = await broker.call(ApiKey.DELETE_GROUPS, version, groups_names=["bare", "g", "nobody", "bare"])
    assert [each["error_code"] for each in found["results"]] == [0, 68, 69]
    assert broker.engine.groups.find("bare") is None
    context = broker.connect(Principal("key1", ALL_SCOPES, ("x",)))
    found = await broker.call(ApiKey.DELETE_GROUPS, version, context, groups_names=["g"])
    assert found["results"][0]["error_code"] == 30
