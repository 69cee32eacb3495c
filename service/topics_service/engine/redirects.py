"""Topics that do not lie where their name says: at the home of such a name, a row says where the topic is.

A topic made for a *placement group* lies in the group's shard. The row is written before the topic is made, and
removed after it was deleted, so a topic that exists is always found. A row without its topic is only in the way of
one that is made without a group, until that removes it.
"""

from typing import Final

import msgspec
from msgspec import Struct

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.stored_logs import DAMAGE, damaged
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage.store import Family

ROWS: Final = b"redirect\x00"
"""The rows of redirects, in `Family.META`; then the topic's name."""
_END: Final = b"redirect\x01"


class Redirect(Struct, frozen=True, array_like=True):
    """The shard of a topic, for the placement group that it was made for. `token` is that of the last reservation."""

    shard: int
    placement: str
    token: int


decode_redirect: Final = msgspec.msgpack.Decoder(Redirect).decode


class ElsewhereError(TopicsError):
    """The topic lies in another shard, where the call has to go."""

    def __init__(self, name: str, redirect: Redirect) -> None:
        super().__init__(Reason.TOPIC_NOT_FOUND, f'topic "{name}" is in shard {redirect.shard}', {"topic": name})
        self.name = name
        self.redirect = redirect


class Redirects:
    """The redirects of one engine. Methods that write return the ticket to wait for."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._by_name: dict[str, Redirect] = {}

    def load(self) -> None:
        """Take over the rows in the store. Raises StoreOpenError for a damaged one."""
        for key, value in self._writer.store.scan(Family.META, ROWS, _END):
            name = key[len(ROWS) :].decode(errors="replace")
            try:
                self._by_name[name] = decode_redirect(value)
            except DAMAGE as error:
                raise damaged(f'the redirect of topic "{name}"', error) from error

    def find(self, name: str) -> Redirect | None:
        """The redirect of a name, if it has one."""
        return self._by_name.get(name)

    def check(self, name: str) -> None:
        """Raise ElsewhereError if the name has a redirect."""
        redirect = self._by_name.get(name)
        if redirect is not None:
            raise ElsewhereError(name, redirect)

    def reserve(self, name: str, shard: int, placement: str) -> tuple[Redirect, int]:
        """Note that the topic is, or is going to be, in a shard. The reservation of another shard stays: `shard` of the
        result says so then."""
        known = self._by_name.get(name)
        if known is not None and known.shard != shard:
            return known, 0
        redirect = Redirect(shard, placement, 1 if known is None else known.token + 1)
        with Transaction(self._writer) as tx:
            tx.batch.put(Family.META, ROWS + name.encode(), msgspec.msgpack.encode(redirect))
            tx.commit()
        self._by_name[name] = redirect
        return redirect, tx.ticket

    def release(self, name: str, token: int) -> int:
        """Forget a redirect, unless the topic was reserved again since that token was given."""
        known = self._by_name.get(name)
        if known is None or known.token != token:
            return 0
        with Transaction(self._writer) as tx:
            tx.batch.delete(Family.META, ROWS + name.encode())
            tx.commit()
        del self._by_name[name]
        return tx.ticket
