"""The methods that may be called on a shard of another process, each with the bytes of its calls and results.

The other process may run another release. Parameters at the end that have defaults may be more there, or fewer: a call
leaves out those that are not given, and one with a parameter that the other side does not know is refused.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from topics_service.engine.tables.errors import invalid_value
from topics_shards.wire.carriers import ABSENT, Carrier, UncarriableError, carrier_of, read_extension
from topics_shards.wire.origin import OriginForm
from topics_shards.wire.pieces import Packing, Piece, Pieces

DECODE_ERRORS: Final = (msgspec.DecodeError, ValueError, RecursionError)
"""The errors of bytes that are no call, or no result."""
_encode: Final = msgspec.msgpack.Encoder().encode
_NO_PIECES: Final = Pieces(())
_BEFORE: Final = 2  # fields of a call before the arguments


class UnknownArgumentError(ValueError):
    """A call with more arguments than the method has in this release."""


class Call(NamedTuple):
    """A call that was decoded."""

    origin: OriginForm | None
    positional: Sequence[Any]
    named: dict[str, Any]


class RemoteMethod:
    """One method. `is_read` says that it changes nothing, so that it may run twice."""

    def __init__(self, method: Callable[..., object], *, is_read: bool) -> None:
        """Raises UncarriableError if an argument or the result can't be sent."""
        self.method = method
        self.name: str = method.__qualname__
        self.is_read = is_read
        self.is_stream = inspect.isasyncgenfunction(method)
        hints = get_type_hints(method, include_extras=True)
        signature = inspect.signature(method)
        self._names: list[str] = []
        self._defaults: list[Any] = []
        self._packs: list[tuple[int, Any]] = []
        self._unpacks: list[tuple[int, Any]] = []
        self._positional = 0
        fields: list[Any] = [("origin", OriginForm | None), ("pieces", list[Piece])]
        parameters = list(signature.parameters.items())[1:]
        self._required = 1 + max(
            (at for at, (_, each) in enumerate(parameters) if each.default is inspect.Parameter.empty), default=-1
        )
        for name, parameter in parameters:
            if name not in hints:
                raise UncarriableError(f"{self.name}.{name} has no type")
            carrier = carrier_of(hints[name], f"{self.name}.{name}")
            at = len(self._names)
            self._names.append(name)
            self._defaults.append(parameter.default)
            self._positional += parameter.kind is not inspect.Parameter.KEYWORD_ONLY
            if carrier.pack is not None:
                self._packs.append((at, carrier.pack))
            if carrier.unpack is not None:
                self._unpacks.append((at, carrier.unpack))
            fields.append((name, carrier.wire) if at < self._required else (name, carrier.wire, ABSENT))
        form = msgspec.defstruct(
            f"{self.name.replace('.', '')}Call", fields, array_like=True, forbid_unknown_fields=True
        )
        self._decode_call: Callable[[Any], Struct] = msgspec.msgpack.Decoder(form, ext_hook=read_extension).decode
        self._result = carrier_of(_result_of(self, hints.get("return")), f"the result of {self.name}")
        self._decode_result = _decoder(self._result)

    def encode_call(self, origin: OriginForm | None, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """The bytes of a call with these arguments. Raises TypeError as the call itself would, and `invalid_value`."""
        values: list[Any] = [*args]
        given = len(kwargs)
        while given or len(values) < self._required:
            at = len(values)
            if at == len(self._names):
                raise TypeError(f"{self.name} does not take {sorted(kwargs.keys() - set(self._names))}")
            name = self._names[at]
            if name in kwargs:
                given -= 1
                values.append(kwargs[name])
            elif at < self._required:
                raise TypeError(f"{self.name} needs {name}")
            else:
                values.append(self._defaults[at])
        packing = Packing()
        for at, pack in self._packs:
            if at < len(values):
                values[at] = pack(values[at], packing)
        try:
            return _encode([origin, packing.pieces(), *values])
        except OverflowError:  # MessagePack has no others
            raise invalid_value("a number has more than 64 bits", out_of_range=True) from None

    def decode_call(self, body: bytes | memoryview) -> Call:
        """Raises DECODE_ERRORS for bytes that are no call of it, UnknownArgumentError among them."""
        try:
            origin, sent, *values = astuple(self._decode_call(body))
        except msgspec.ValidationError:
            if _length(body) > _BEFORE + len(self._names):
                raise UnknownArgumentError(f"{self.name} has fewer parameters in this release") from None
            raise
        if self._unpacks:
            pieces = Pieces(sent) if sent else _NO_PIECES
            for at, unpack in self._unpacks:
                if values[at] is not ABSENT:
                    values[at] = unpack(values[at], pieces)
        for at in range(self._required, len(values)):
            if values[at] is ABSENT:
                values[at] = self._defaults[at]
        split = self._positional
        return Call(origin, values[:split], dict(zip(self._names[split:], values[split:], strict=True)))

    def encode_result(self, value: Any) -> bytes:
        """The bytes of a result, or of one item of a stream."""
        pack = self._result.pack
        if pack is None:
            return _encode((value,))
        packing = Packing()
        form = pack(value, packing)
        pieces = packing.pieces()
        return _encode((form, pieces) if pieces else (form,))

    def decode_result(self, body: bytes | memoryview) -> Any:
        """Raises DECODE_ERRORS for bytes that are no result of it."""
        found = self._decode_result(body)
        unpack = self._result.unpack
        if unpack is None:
            return found.value
        return unpack(found.value, Pieces(found.pieces) if found.pieces else _NO_PIECES)


def _length(body: bytes | memoryview) -> int:
    """The length of an array of MessagePack, by its first bytes; 0 if it is something else."""
    kind = body[0]
    if kind & 0xF0 == 0x90:
        return kind & 0x0F
    size = {0xDC: 2, 0xDD: 4}.get(kind, 0)
    return int.from_bytes(body[1 : 1 + size])


class _ResultForm(Struct):
    """The fields of what `_decoder` makes, for the type checker."""

    value: Any
    pieces: list[Piece]


def _decoder(carrier: Carrier) -> Callable[[Any], _ResultForm]:
    form = msgspec.defstruct(
        "ResultForm", [("value", carrier.wire), ("pieces", list[Piece], [])], array_like=True, gc=False
    )
    decode: Any = msgspec.msgpack.Decoder(form, ext_hook=read_extension).decode
    return decode  # type: ignore[no-any-return]


def _result_of(method: RemoteMethod, hint: Any) -> Any:
    if not method.is_stream:
        if not inspect.iscoroutinefunction(method.method):
            raise UncarriableError(f"{method.name} is no coroutine function")
        return hint
    if get_origin(hint) is None or not get_args(hint):
        raise UncarriableError(f"{method.name} gives {hint}, and does not say of what")
    return get_args(hint)[0]
