"""The limits of a write."""

from typing import Any

import pytest
from engine_support import World, code

from topics_service.engine.errors import TopicsError
from topics_service.storage.store import Family


@pytest.mark.parametrize(
    ("datas", "columns", "expected"),
    [
        ((), {}, "invalid_request"),
        ((1,) * 10_001, {}, "batch_too_large"),
        (((1 << 20) + 1,), {}, "record_too_large"),
        (((1 << 20) - 1,), {"metas": [b"{}"]}, "record_too_large"),
        ((1, 1), {"tags": [None, b"t" * 257]}, "invalid_request"),
        ((1, 1), {"nodes": [b"", b"n" * 129]}, "invalid_request"),
        ((1,), {"metas": [b"m" * 16_385]}, "invalid_request"),
    ],
)
def test_over_a_limit(world: World, datas: tuple[int, ...], columns: dict[str, Any], expected: str) -> None:
    with pytest.raises(TopicsError) as error:
        world.append(*datas, **columns)
    assert code(error) == expected
    assert world.rows(Family.TOPICS) == [], "nothing was created"


@pytest.mark.parametrize(
    ("datas", "columns"),
    [
        ((1,) * 10_000, {}),
        ((1 << 20,), {}),
        (((1 << 20) - 2,), {"metas": [b"{}"]}),
        ((1, 1), {"tags": [b"", b"t" * 256]}),
        ((1, 1), {"nodes": [b"", b"n" * 128]}),
        ((1,), {"metas": [b"m" * 16_384]}),
    ],
)
def test_exactly_at_a_limit(world: World, datas: tuple[int, ...], columns: dict[str, Any]) -> None:
    assert world.append(*datas, **columns).count == len(datas)


def test_the_first_bad_record_decides(world: World) -> None:
    with pytest.raises(TopicsError) as error:
        world.append(1, (1 << 20) + 1, 1, tags=[None, None, b"t" * 300])
    assert code(error) == "record_too_large"
    assert "records[1]" in error.value.message
    with pytest.raises(TopicsError) as error:
        world.append(1, (1 << 20) + 1, tags=[b"t" * 300, None])
    assert code(error) == "invalid_request"
