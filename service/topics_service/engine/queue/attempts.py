"""Failed deliveries of a job: a short history, kept with its lease and copied to its dead letter."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

REASON_BYTES: Final = 4096
"""Most bytes of a reason, as UTF-8."""
_KEPT: Final = 8
_OLD_REASON_BYTES: Final = 512  # the newest has its reason whole
_LETTER_BYTES: Final = 8192
_CUT: Final = "…"


class Attempt(Struct, frozen=True, gc=False, array_like=True):
    """A failed delivery: its number, the time it ended (ms), the node that held it, and the reason.

    The reason is the worker's if it `is_told`; else it is the server's text for the cause, empty for a nack without a
    reason.
    """

    delivery: int
    ended_at: int
    node: str
    reason: str
    is_told: bool = False


Attempts = tuple[Attempt, ...]
"""Oldest first."""

_decode = msgspec.json.Decoder(Attempts).decode


def remembered(attempts: Attempts, newest: Attempt) -> Attempts:
    """The history with one more: at most 8, of which only the newest keeps a long reason."""
    last = attempts[-1:]
    if last and len(last[0].reason) * 4 > _OLD_REASON_BYTES:
        last = (msgspec.structs.replace(last[0], reason=_cut(last[0].reason, _OLD_REASON_BYTES)),)
    return (*attempts[-_KEPT + 1 : -1], *last, newest)


def is_told(attempts: Attempts) -> bool:
    """Return whether a worker has given a reason; without one the history is not shown."""
    return any(attempt.is_told for attempt in attempts)


def encode(attempts: Attempts) -> bytes:
    """The stored form."""
    return msgspec.json.encode(attempts)


def decode(text: bytes) -> Attempts:
    """A history from its stored form. Raises ValueError."""
    return _decode(text)


def for_letter(attempts: Attempts) -> bytes | None:
    """A JSON array for a dead letter's meta, of at most 8 KiB; None if no worker has given a reason."""
    if not is_told(attempts):
        return None
    shown = _shown(attempts)
    while len(shown) > _LETTER_BYTES and len(attempts) > 1:
        attempts = attempts[1:]
        shown = _shown(attempts)
    if len(shown) > _LETTER_BYTES:  # escapes take up to six bytes for one
        shown = _shown([msgspec.structs.replace(attempts[0], reason=_cut(attempts[0].reason, _LETTER_BYTES // 8))])
    return shown


def members(attempt: Attempt) -> dict[str, int | str]:
    """An attempt as JSON shows it."""
    return {
        "delivery": attempt.delivery, "ended_at": attempt.ended_at, "node": attempt.node, "reason": attempt.reason
    }  # fmt: skip


def _shown(attempts: Sequence[Attempt]) -> bytes:
    return msgspec.json.encode([members(attempt) for attempt in attempts])


def _cut(text: str, max_bytes: int) -> str:
    """A text cut to a number of bytes."""
    raw = text.encode()
    if len(raw) <= max_bytes:
        return text
    return raw[: max_bytes - len(_CUT.encode())].decode(errors="ignore") + _CUT
