"""Exceptions of calls on the way: those that callers tell apart, by name."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from topics_service.api.running import LostCallError
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.membership.members import GroupError, RefusedError
from topics_service.engine.producers import SequenceError
from topics_service.engine.redirects import ElsewhereError, decode_redirect
from topics_service.storage.recordbatch import InvalidBatchError
from topics_shards.wire.carriers import ErrorForm, pack_error, read_extension, unpack_error

log: Final = logging.getLogger("topics.shards")


_encode: Final = msgspec.msgpack.Encoder().encode


class _Kind(NamedTuple):
    """The code and the message that an exception is carried by, and the exception made of them."""

    parts: Callable[[Any], tuple[str, str]]
    make: Callable[[str, str], Exception]


_KINDS: Final[dict[type[BaseException], tuple[str, _Kind]]] = {
    SequenceError: (
        "sequence",
        _Kind(lambda error: (error.kind, str(error)), lambda kind, text: SequenceError(kind, text)),  # type: ignore[arg-type]
    ),
    InvalidBatchError: (
        "batch",
        _Kind(lambda error: (error.code, str(error)), lambda code, text: InvalidBatchError(code, text)),  # type: ignore[arg-type]
    ),
    RefusedError: (
        "refused",
        _Kind(lambda error: (error.error.name, error.message), lambda name, text: RefusedError(GroupError[name], text)),
    ),
    ElsewhereError: (
        "elsewhere",
        _Kind(
            lambda error: (error.name, _encode(error.redirect).hex()),
            lambda name, redirect: ElsewhereError(name, decode_redirect(bytes.fromhex(redirect))),
        ),
    ),
    LostCallError: ("lost", _Kind(lambda error: ("", str(error)), lambda _, text: LostCallError(text))),
}
_BY_NAME: Final = dict(_KINDS.values())
_decode: Final = msgspec.msgpack.Decoder(ErrorForm, ext_hook=read_extension).decode


def encode_error(error: BaseException, call: str) -> bytes:
    """The bytes of an exception that a call raised. An unexpected one is `internal`, and logged here."""
    known = _KINDS.get(type(error))
    if known is not None:
        name, kind = known
        return _encode(ErrorForm(name, *kind.parts(error)))
    if isinstance(error, TopicsError):
        return _encode(pack_error(error))
    if isinstance(error, asyncio.CancelledError):
        return _encode(ErrorForm("lost", "", f"{call} was broken off"))
    log.error("%s failed", call, exc_info=error)
    return _encode(pack_error(TopicsError(Reason.INTERNAL, "internal error")))


def decode_error(body: bytes | memoryview) -> Exception:
    """The exception; one with a code that this release does not know is `internal`.

    Raises msgspec.DecodeError or ValueError.
    """
    form = _decode(body)
    kind = _BY_NAME.get(form.kind)
    if kind is None:
        return unpack_error(form)
    try:
        return kind.make(form.code, form.message)
    except KeyError:
        return TopicsError(Reason.INTERNAL, form.message)
