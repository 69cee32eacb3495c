"""The version of a cluster's log that is final: the one that owners write.

A version becomes final once all nodes can read it, by an object `format/<version>` that is never removed. Until then a
later release writes the version before, so that a node can go back to the release that it came from.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from topics_cluster import objects
from topics_cluster.bucket import Bucket
from topics_cluster.coordinator import Node

PREFIX: Final = "format/"


class FormatError(Exception):
    """The version of the log is not for this release, or not for all nodes; the message says what to do."""


async def final(bucket: Bucket) -> int:
    """The newest version that is final. Raises BucketError."""
    names = [entry.name.removeprefix(PREFIX) for entry in await bucket.list(PREFIX)]
    return max((int(name) for name in names if name.isdecimal()), default=1)


async def written(bucket: Bucket) -> int:
    """The version that this release has to write. Raises FormatError if it can't, BucketError."""
    version = await final(bucket)
    if version not in objects.READABLE:
        other = "later" if version > objects.newest() else "former"
        raise FormatError(
            f"the cluster's log has format {version}, this version of topics reads {shown(objects.READABLE)}: use a "
            f"{other} one"
        )
    return version


async def for_owner(bucket: Bucket) -> int:
    """The version that an owner writes: as `written`, without a request where there is no choice."""
    return objects.newest() if len(objects.READABLE) == 1 else await written(bucket)


async def finalize(bucket: Bucket, nodes: Callable[[], Awaitable[Collection[Node]]]) -> int:
    """Make the newest version of this release final, if all nodes read it. Return it; again if it is final already.

    `nodes` gives those that live. Raises FormatError, which names the nodes that don't read it, and BucketError.
    """
    version = objects.newest()
    if await written(bucket) == version:
        return version
    living = await nodes()
    if not living:
        raise FormatError("no node lives: start all nodes first, so that they tell which formats they read")
    if old := _without(version, living):
        raise FormatError(f"format {version} can't be read by {old}: upgrade all nodes first")
    await bucket.create(f"{PREFIX}{version}", [b"\n"])
    if old := _without(version, await nodes()):  # a node looks for the final version once it is among them
        raise FormatError(f"format {version} is final, and can't be read by {old}, which has just joined: upgrade it")
    return version


def _without(version: int, nodes: Iterable[Node]) -> str:
    """The names and releases of nodes that don't read a version."""
    old = [each for each in nodes if not each.formats[0] <= version <= each.formats[1]]
    return ", ".join(f"{each.name} ({each.version})" for each in sorted(old, key=lambda each: each.name))


def shown(versions: range) -> str:
    """A range of versions in words."""
    return str(versions[0]) if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
