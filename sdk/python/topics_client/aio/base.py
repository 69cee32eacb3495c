"""The connection that every part of the client uses."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from topics_client.address import Address
from topics_client.aio_connection import AsyncConnection
from topics_client.codecs import Codec
from topics_client.connection import DEFAULT_RETRY
from topics_client.positions import Positions, ReadFrom
from topics_client.retry import Retry


class AsyncBase:
    """A connection to one server, opened by the first call."""

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        key: str | None = None,
        timeout: float = 30.0,
        retry: Retry = DEFAULT_RETRY,
        codec: Codec[Any] | None = None,
        read_from: ReadFrom = "owner",
        follow_owners: bool = True,
    ) -> None:
        """`url` is `topics://KEY@HOST:PORT`, `topics+tls://…` or `HOST:PORT`; if omitted, TOPICS_URL, then
        `topics://127.0.0.1:4001`. `key` takes precedence over the key in the URL, which takes precedence over
        TOPICS_API_KEY. Of a cluster it may name several nodes, `HOST:PORT,HOST:PORT`, and be a list of URLs: another
        node is tried when one can't be reached.

        `timeout` is the deadline in seconds of each attempt of a call. While the server is unavailable, idempotent
        calls are retried according to `retry`. `codec` encodes all appended values and is the default for records and
        jobs: see Codec. With `read_from="followers"` pages, topics and long reads come from the node at `url`, whether
        it is the owner or not, with everything in them that this client has written and read before. Calls go straight
        to the node of a cluster that answers named as the owner, unless `follow_owners` is False. Raises ValueError for
        an invalid URL.
        """
        if read_from not in ("owner", "followers"):
            raise ValueError(f"read_from is owner or followers, not {read_from!r}")
        self.codec = codec
        positions = Positions() if read_from == "followers" else None
        self.connection = AsyncConnection(
            Address.parse(url, key=key), timeout=timeout, retry=retry, positions=positions, follow_owners=follow_owners
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.address)!r})"

    @property
    def address(self) -> Address:
        """The address of the server, or of the nodes."""
        return self.connection.address

    async def close(self) -> None:
        """Close the connection and cancel every call on it."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()
