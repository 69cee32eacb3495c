"""Live queries at a process without the tables: what the loss of the other one looks like."""

from collections.abc import AsyncGenerator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.sql.live import LiveFrame, LiveOpened, LiveRequest
from topics_service.engine.errors import Reason, TopicsError
from topics_shards.shards import LostCallError
from topics_shards.sql import ShardedLive


class _Shards:
    async def stream(self, *_: Any, **__: Any) -> AsyncGenerator[LiveFrame, None]:
        yield LiveOpened(())
        raise LostCallError("the process is gone")


async def test_a_lost_process_ends_the_stream_with_an_error_after_which_it_can_be_resumed() -> None:
    located: Any = SimpleNamespace(shards=_Shards())
    live = ShardedLive(located, lambda _: nullcontext())
    frames = live.follow(LiveRequest(sql="SUBSCRIBE TO t"), principal=UNRESTRICTED)
    assert await anext(frames) == LiveOpened(())
    with pytest.raises(TopicsError) as error:
        await anext(frames)
    assert error.value.reason is Reason.NOT_READY
