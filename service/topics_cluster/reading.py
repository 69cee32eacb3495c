"""Reading a log ahead: the object that is next, while those behind it are on their way."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from topics_cluster import objects
from topics_cluster.bucket import Bucket
from topics_cluster.log import Tail
from topics_net import background


async def contents(bucket: Bucket, tail: Tail, most: int, ready: Callable[[], int]) -> AsyncGenerator[bytes]:
    """The content of each object from `tail.next` on, to the end of the log. Read it by the tail before the next step.

    At first as many are fetched at once as are known to be there (`ready`), then twice as many each time, up to `most`.
    Raises BucketError.
    """
    width = 1
    coming: dict[int, asyncio.Task[bytes | None]] = {}
    try:
        while True:
            wide = max(width, min(ready(), most))
            for number in range(tail.next, tail.next + wide):
                if number not in coming:
                    coming[number] = background.start(bucket.get(objects.name(tail.shard, number)))
            data = await coming.pop(tail.next)
            if data is None:
                return
            yield data
            width = min(2 * width, most)
            for number in [each for each in coming if each < tail.next]:  # those that a fence leaves out
                coming.pop(number).cancel()
    finally:
        for task in coming.values():
            task.cancel()
        await asyncio.gather(*coming.values(), return_exceptions=True)
