"""The object `cluster.json`, by which a prefix of a store is a cluster."""

import secrets
from typing import Final

import msgspec
from msgspec import Struct

from topics_cluster.bucket import Bucket

NAME: Final = "cluster.json"
FORMAT: Final = 1
MAX_SHARDS: Final = 64
"""The most shards that a cluster can be made with."""


class IdentityError(Exception):
    """There is no cluster under the prefix, or none that this version can serve; the message says what to do."""


class Identity(Struct, frozen=True, kw_only=True):
    """A cluster: the format of its objects, its number of shards, and its id, which no other has."""

    format: int
    shards: int
    id: str


def encode(identity: Identity) -> bytes:
    """The content of the object."""
    return msgspec.json.encode(identity) + b"\n"


def make(shards: int = 1) -> Identity:
    """A new one."""
    return Identity(format=FORMAT, shards=shards, id=secrets.token_hex(16))


async def create(bucket: Bucket, shards: int = 1) -> bool:
    """Make the prefix a cluster; return False if it is one already. Raises BucketError."""
    return await bucket.create(NAME, [encode(make(shards))])


async def load(bucket: Bucket) -> Identity:
    """Return the identity of the cluster. Raises IdentityError, BucketError."""
    data = await bucket.get(NAME)
    if data is None:
        raise IdentityError("there is no cluster: `topics cluster init` makes one")
    try:
        found = msgspec.json.decode(data, type=Identity)
    except (ValueError, RecursionError) as error:
        raise IdentityError(f"{NAME} is damaged: {error}") from None
    if found.format != FORMAT or not 1 <= found.shards <= MAX_SHARDS:
        raise IdentityError(
            f"the cluster has the format {found.format} and {found.shards} shards, this version knows {FORMAT} and up "
            f"to {MAX_SHARDS}: use a later version of topics"
        )
    return found
