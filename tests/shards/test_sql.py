"""SQL over several shards: the topics that it makes lie beside its tables, wherever their names lead."""

import pytest
from shards.world import ShardsWorld, open_shards

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.sql.requests import AckRequest, ConsumeRequest
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest
from topics_service.engine.placement import SQL_SHARD, home_of

COUNT = 3
NAMES = [name for name in (f"app.events{n}" for n in range(20)) if home_of(name, COUNT) != SQL_SHARD][:3]
NAME = NAMES[0]


async def heads(world: ShardsWorld, name: str) -> int:
    return (await world.api.diff(DiffRequest(topic=name))).head_seq


def holders(world: ShardsWorld, name: str) -> list[int]:
    return [shard for shard, engine in enumerate(world.engines) if engine.has_topic(name)]


async def refused(world: ShardsWorld, reason: Reason, text: str) -> TopicsError:
    with pytest.raises(TopicsError) as caught:
        await world.sql(text)
    assert caught.value.reason is reason, caught.value
    return caught.value


async def test_rows_and_their_events_are_one_write_wherever_the_name_leads() -> None:
    async with open_shards(COUNT) as world:
        await world.sql("CREATE TABLE app.items (id INT PRIMARY KEY)")
        await world.sql(f"CREATE TOPIC {NAME}")
        await world.sql(f"ALTER TOPIC {NAME} ADD SOURCE app.items ON INSERT")
        await world.sql("INSERT INTO app.items VALUES (1), (2)")
        assert holders(world, NAME) == [SQL_SHARD]
        assert await heads(world, NAME) == 2
        reply = await world.api.append(AppendRequest(topic=NAME, batch=Batch([b"3"])), principal=UNRESTRICTED)
        assert (reply.first_seq, reply.created) == (3, False)


async def test_calls_find_a_topic_that_another_process_made() -> None:
    async with open_shards(COUNT) as world:
        await world.sql(f"CREATE TOPIC {NAME}")
        world.located.forget(NAME)
        put = await world.api.put_topic(NAME, ConfigInput(cap_records=5), principal=UNRESTRICTED)
        assert not put.created
        assert holders(world, NAME) == [SQL_SHARD]
        assert (await world.api.delete_topic(NAME)).deleted
        world.located.forget(NAME)
        assert not (await world.api.delete_topic(NAME)).deleted


@pytest.mark.parametrize("by", ["sql", "call"])
async def test_a_deleted_topic_leaves_its_name_free(by: str) -> None:
    async with open_shards(COUNT) as world:
        await world.sql(f"CREATE TOPIC {NAME}")
        await (world.sql(f"DROP TOPIC {NAME}") if by == "sql" else world.api.delete_topic(NAME))
        await world.api.append(AppendRequest(topic=NAME, batch=Batch([b"1"])), principal=UNRESTRICTED)
        assert holders(world, NAME) == [home_of(NAME, COUNT)]


async def test_topics_of_other_shards_are_told_from_those_that_are_missing() -> None:
    async with open_shards(COUNT) as world:
        await world.sql("CREATE TABLE app.items (id INT PRIMARY KEY)")
        await world.api.append(AppendRequest(topic=NAME, batch=Batch([b"1"])), principal=UNRESTRICTED)
        await refused(world, Reason.ALREADY_EXISTS, f"CREATE TOPIC {NAME}")
        for text in (
            f"CREATE TOPIC IF NOT EXISTS {NAME}",
            f"ALTER TOPIC {NAME} ADD SOURCE app.items ON INSERT",
            f"DROP TOPIC {NAME}",
            f"CLEAR TOPIC {NAME}",
        ):
            error = await refused(world, Reason.CROSS_SHARD, text)
            assert (error.detail or {})["topic"] == NAME
        await refused(world, Reason.TOPIC_NOT_FOUND, f"CLEAR TOPIC {NAMES[1]}")
        assert await heads(world, NAME) == 1


async def test_a_statement_that_fails_reserves_nothing() -> None:
    async with open_shards(COUNT) as world:
        with pytest.raises(TopicsError):
            await world.sql(f"CREATE TOPIC {NAME} PARTITIONS 1000000")
        await world.api.append(AppendRequest(topic=NAME, batch=Batch([b"1"])), principal=UNRESTRICTED)
        assert holders(world, NAME) == [home_of(NAME, COUNT)]


async def test_places_outlive_a_restart() -> None:
    async with open_shards(COUNT) as world:
        await world.sql(f"CREATE TOPIC {NAME}")
        home = home_of(NAME, COUNT)
        again = Engine(world.engines[home].writer.store, world.clock)
        redirect = again.catalog.redirects.find(NAME)
        assert redirect is not None
        assert redirect.shard == SQL_SHARD


async def test_a_definition_reaches_the_parts_of_its_topic() -> None:
    async with open_shards(3) as world:
        await world.sql("CREATE TOPIC app.news PARTITIONS 2")
        assert await world.located.extend("app.news", 2)
        await world.sql("ALTER TOPIC app.news SET (durability = 'fsync')")
        topics = [engine.catalog.topics["app.news"] for engine in world.engines if engine.has_topic("app.news")]
        assert len(topics) >= 2
        assert {topic.config.durability for topic in topics} == {"fsync"}
        await world.sql("DROP TOPIC app.news")
        assert not any(engine.has_topic("app.news") for engine in world.engines)


async def test_sql_does_not_define_a_topic_of_another_shard_that_it_knows() -> None:
    async with open_shards(3) as world:
        await world.api.put_topic(NAME, ConfigInput(), principal=UNRESTRICTED)
        assert await world.located.extend(NAME, SQL_SHARD)
        for text in (f"DROP TOPIC {NAME}", f"ALTER TOPIC {NAME} SET (durability = 'fsync')"):
            await refused(world, Reason.CROSS_SHARD, text)


async def test_a_consumer_names_a_topic_by_its_alias() -> None:
    async with open_shards(COUNT) as world:
        await world.sql("CREATE TABLE app.items (id INT PRIMARY KEY)")
        await world.sql(f"CREATE TOPIC {NAME} WITH (alias = 'app.feed')")
        await world.sql(f"ALTER TOPIC {NAME} ADD SOURCE app.items ON INSERT")
        await world.sql("INSERT INTO app.items VALUES (1), (2)")
        for name in (NAME, "app.feed"):
            request = ConsumeRequest(topic=name, group=f"of {name}", start="earliest", timeout_seconds=0)
            reply = await world.api.consumers.consume(request, principal=UNRESTRICTED)
            assert [message.offset for message in reply.messages] == [0, 1]
            ack = AckRequest(topic=name, group=f"of {name}", upto_offset=1)
            assert await world.api.consumers.ack(ack, principal=UNRESTRICTED) == 1
        with pytest.raises(TopicsError) as caught:
            await world.api.consumers.consume(
                ConsumeRequest(topic="nothing", group="g", timeout_seconds=0), principal=UNRESTRICTED
            )
        assert caught.value.reason is Reason.TOPIC_NOT_FOUND


async def test_a_topic_with_partitions_in_other_shards_gets_no_events() -> None:
    async with open_shards(COUNT) as world:
        await world.sql("CREATE TABLE app.rows (id BIGINT PRIMARY KEY)")
        local = next(name for name in (f"app.local{n}" for n in range(20)) if home_of(name, COUNT) == SQL_SHARD)
        await world.api.put_topic(local, ConfigInput(), principal=UNRESTRICTED, partition_count=3)
        await refused(world, Reason.CROSS_SHARD, f"ALTER TOPIC {local} ADD SOURCE app.rows ON INSERT")
        await world.api.delete_topic(local)
        await world.api.put_topic(local, ConfigInput(), principal=UNRESTRICTED)
        await world.sql(f"ALTER TOPIC {local} ADD SOURCE app.rows ON INSERT")
        with pytest.raises(TopicsError) as caught:
            await world.api.put_topic(local, ConfigInput(), principal=UNRESTRICTED, partition_count=2)
        assert caught.value.reason is Reason.CROSS_SHARD
        await world.sql("INSERT INTO app.rows VALUES (1)")
        assert await heads(world, local) == 1


async def test_a_topic_is_a_table_as_far_as_it_lies_beside_the_tables() -> None:
    """Topics of CREATE TOPIC are read; of others the partitions that are here, and the rest is refused by name."""
    async with open_shards(COUNT) as world:
        await world.sql(f"CREATE TOPIC {NAME}")
        await world.api.append(AppendRequest(topic=NAME, batch=Batch([b"1"])), principal=UNRESTRICTED)
        assert await world.sql(f'SELECT seq, data FROM topics."{NAME}"') == [[1, "1"]]
        await world.api.append(AppendRequest(topic=NAMES[1], batch=Batch([b"1"])), principal=UNRESTRICTED)
        for text in (f'SELECT * FROM topics."{NAMES[1]}"', f'SELECT count(*), max(seq) FROM topics."{NAMES[1]}" e'):
            error = await refused(world, Reason.CROSS_SHARD, text)
            assert (error.detail or {})["topic"] == NAMES[1]
        spread = next(name for name in (f"wide{n}" for n in range(20)) if home_of(name, COUNT) == SQL_SHARD)
        await world.api.put_topic(spread, ConfigInput(), principal=UNRESTRICTED, partition_count=6)
        await refused(world, Reason.CROSS_SHARD, f'SELECT * FROM topics."{spread}"')
        here = [number for number, _ in world.engines[SQL_SHARD].catalog.visible(spread).numbered()]
        assert 0 < len(here) < 6
        for partition in here:
            request = AppendRequest(topic=spread, partition=partition, batch=Batch([b"1"]))
            await world.api.append(request, principal=UNRESTRICTED)
        numbers = ", ".join(map(str, here))
        text = f'SELECT partition FROM topics."{spread}" WHERE partition IN ({numbers})'
        assert await world.sql(text) == [[number] for number in here]
        (elsewhere, *_) = set(range(6)) - set(here)
        await refused(world, Reason.CROSS_SHARD, f'SELECT * FROM topics."{spread}" WHERE partition = {elsewhere}')
