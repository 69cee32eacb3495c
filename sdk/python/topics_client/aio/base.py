"""What every part of the client stands on: its connection."""

from types import TracebackType
from typing import Any, Self

from topics_client.address import Address
from topics_client.aio_connection import AsyncConnection
from topics_client.codecs import Codec
from topics_client.connection import DEFAULT_RETRY
from topics_client.retry import Retry


class AsyncBase:
    """A connection to one server, made with the first call."""

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        timeout: float = 30.0,
        retry: Retry = DEFAULT_RETRY,
        codec: Codec[Any] | None = None,
    ) -> None:
        """`url` is `topics://KEY@HOST:PORT`, `topics+tls://…` or `HOST:PORT`; without it that of TOPICS_URL, else
        `topics://127.0.0.1:4001`. `key` wins over the one in the URL, which wins over TOPICS_API_KEY.

        `timeout` is the deadline of each attempt of a call, in seconds. While the server is unavailable, calls that may
        be made twice are made again as `retry` says. `codec` is for all values that are appended, and for records and
        jobs where nothing else is said: see Codec. Raises ValueError for a URL that is none.
        """
        self.codec = codec
        self.connection = AsyncConnection(Address.parse(url, key=key), timeout=timeout, retry=retry)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.address)!r})"

    @property
    def address(self) -> Address:
        """Where the server is."""
        return self.connection.address

    async def close(self) -> None:
        """End the connection and every call on it."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()
