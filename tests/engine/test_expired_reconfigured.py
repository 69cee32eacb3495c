"""What has expired never comes back, whatever becomes of the TTL."""

import pytest
from engine_support import World, gap, seqs


@pytest.mark.parametrize("ttl_ms", [0, 1000])
def test_not_even_while_the_longer_ttl_waits_for_its_fsync(ttl_ms: int) -> None:
    world = World()
    world.put(ttl_ms=100)
    world.append(b"1", b"2")
    world.clock.advance(101)
    world.put(ttl_ms=ttl_ms, sync=False)  # nobody has read since
    page = world.diff()
    assert (seqs(page), gap(page)) == ([], (1, 2, "ttl"))
    world.engine.sync()
    page = world.diff()
    assert (seqs(page), gap(page)) == ([], (1, 2, "ttl"))
