"""Streams that survive a restart of the server, for commands that otherwise fail at once without one."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from topics_client.errors import UnavailableError
    from topics_client.retry import Retry

Item_co = TypeVar("Item_co", covariant=True)


class Stream(Protocol[Item_co]):
    """The streams of a client's `read` and `watch`."""

    def batches(self) -> Iterator[Sequence[Item_co]]:
        """The items in the groups in which they come; again after an error, those behind it."""


def reconnecting(
    stream: Stream[Item_co],
    retry: "Retry",
    *,
    broken: "Callable[[UnavailableError], Any]" = lambda error: None,
    back: Callable[[], Any] = lambda: None,
) -> Iterator[Sequence[Item_co]]:
    """The batches of `stream`, over breaks no longer than `retry` allows; `broken` is called once for each, and `back`
    with the first batch behind it. An error before the first batch is raised at once.

    The client itself is to make its calls once.
    """
    from topics_client.errors import UnavailableError
    from topics_client.retry import Patience

    patience = Patience(retry)
    began = gone = False
    while True:
        try:
            for batch in stream.batches():
                began = True
                if gone:
                    gone = False
                    patience.renew()
                    back()
                yield batch
            return
        except UnavailableError as error:
            if not began:
                raise
            if not gone:
                gone = True
                broken(error)
            if not patience.waited(error):
                raise
