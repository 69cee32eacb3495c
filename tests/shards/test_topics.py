"""Topics over several shards."""

from shards.world import open_shards

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.model import AppendRequest, Batch, DiffRequest
from topics_service.engine.placement import home_of


async def test_a_topic_lives_in_its_home() -> None:
    async with open_shards(3) as world:
        for name in ("a", "b", "c", "d"):
            await world.api.append(AppendRequest(topic=name, batch=Batch([b"1"])), principal=UNRESTRICTED)
            assert (await world.api.diff(DiffRequest(topic=name))).head_seq == 1
            assert [engine.has_topic(name) for engine in world.engines] == [home_of(name, 3) == n for n in range(3)]
