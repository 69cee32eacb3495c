"""Values of the API as MessagePack: what each type is on the way, made once from its annotation.

Most types are msgspec's own. Others travel as something that is: blocks as pieces of the message, batches of records as
columns, callers as bytes that are made once for each, errors by their reason.
"""

import types
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from decimal import Decimal
from enum import Enum
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import NODEFAULT, Raw, Struct, UnsetType
from msgspec.structs import asdict, astuple

from topics_service.api.access.auth import ANONYMOUS, UNRESTRICTED, Principal
from topics_service.engine.batches import FetchPart
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import Batch, Slice
from topics_service.engine.queue.jobs import Job, JobView
from topics_service.storage.joined import Joined
from topics_shards.wire.pieces import Packing, Pieces

T = TypeVar("T", bound=Struct)

_DECIMAL: Final = 1  # the number of MessagePack's extension
_SCALARS: Final = (type(None), bool, int, float, str, bytes)
_PLAIN: Final = frozenset(_SCALARS)
_FEW: Final = 8  # records
_MAX_CALLERS: Final = 1024
_MAX_DEPTH: Final = 64  # of values without a type

ABSENT: Final = object()
"""The value of a field that was not sent: its sender runs a release without it, or means the default."""


class UncarriableError(TypeError):
    """A type that can't be sent to another process; the message says which, and where it is."""


class Carrier(NamedTuple):
    """The form of a type on the way: the type that msgspec carries, and the ways there and back.

    None means that the value is the same.
    """

    wire: Any
    pack: Callable[[Any, Packing], Any] | None = None
    unpack: Callable[[Any, Pieces], Any] | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether values are carried as they are."""
        return self.pack is None and self.unpack is None


# ------------------------------------------------------------------ values without a type


def plain(value: Any, packing: Packing | None = None, depth: int = 0) -> Any:
    """A value of JSON, SQL or protobuf: decimals become an extension, since MessagePack has none."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is Decimal:
        return msgspec.msgpack.Ext(_DECIMAL, str(value).encode())
    if depth > _MAX_DEPTH:
        raise ValueError("a value that is nested too deeply")
    if kind is list or kind is tuple:
        return [each if type(each) in _PLAIN else plain(each, None, depth + 1) for each in value]
    if kind is dict:
        return {name: plain(each, None, depth + 1) for name, each in value.items()}
    return value


def read_extension(code: int, data: memoryview) -> object:
    """The value of an extension of MessagePack. Raises ValueError."""
    if code != _DECIMAL:
        raise ValueError(f"the extension {code} is unknown")
    try:
        return Decimal(bytes(data).decode("ascii"))
    except ArithmeticError:
        raise ValueError("a decimal that is none") from None


# ------------------------------------------------------------------ callers and errors


class Callers:
    """Callers as bytes, and back: each is encoded once, and the same bytes give the same object."""

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Principal).decode
        self._packed: OrderedDict[int, tuple[Principal, bytes]] = OrderedDict()  # by id: equal ones may differ
        self._known: OrderedDict[bytes, Principal] = OrderedDict()
        for principal in (UNRESTRICTED, ANONYMOUS):
            self._known[self.pack(principal)] = principal

    def pack(self, principal: Principal) -> bytes:
        """The bytes of a caller."""
        held = self._packed.get(id(principal))
        if held is not None:
            return held[1]
        packed = self._encode(principal)
        self._packed[id(principal)] = principal, packed
        if len(self._packed) > _MAX_CALLERS:
            self._packed.popitem(last=False)
        return packed

    def unpack(self, packed: bytes) -> Principal:
        """The caller of these bytes. Raises msgspec.DecodeError."""
        principal = self._known.get(packed)
        if principal is None:
            principal = self._known[packed] = self._decode(packed)
            if len(self._known) > _MAX_CALLERS:
                self._known.popitem(last=False)
        return principal


CALLERS: Final = Callers()
_REASONS: Final = {reason.code: reason for reason in Reason}


class ErrorForm(Struct, array_like=True):
    """An error on the way: `kind` is that of the registry of `errors`; the rest is of a TopicsError, or what it has."""

    kind: str
    code: str
    message: str
    detail: dict[str, Any] | None = None
    retry_after_ms: int | None = None


def pack_error(error: TopicsError, _: Packing | None = None) -> ErrorForm:
    """A TopicsError as it is carried."""
    detail = None if error.detail is None else plain(dict(error.detail))
    return ErrorForm("topics", error.reason.code, error.message, detail, error.retry_after_ms)


def unpack_error(form: ErrorForm, _: Pieces | None = None) -> TopicsError:
    """A TopicsError that was carried; one with a reason that this version does not know is `internal`."""
    error = TopicsError(_REASONS.get(form.code, Reason.INTERNAL), form.message, form.detail)
    error.retry_after_ms = form.retry_after_ms
    return error


# ------------------------------------------------------------------ records


class BatchForm(Struct, array_like=True):
    """A batch on the way. Of a few records `datas` are bytes: JSON as it was sent would be taken for MessagePack. Of
    many they are one piece, and `sizes` are there."""

    datas: list[bytes]
    sizes: bytes
    tags: list[bytes | None] | None = None
    nodes: list[bytes | None] | None = None
    metas: list[bytes | None] | None = None
    kinds: bytes | None = None


def _pack_batch(batch: Batch, _: Packing) -> BatchForm:
    datas: Any = batch.datas
    if len(datas) <= _FEW:
        return BatchForm(list(map(bytes, datas)), b"", batch.tags, batch.nodes, batch.metas, batch.kinds)
    joined = datas.data if type(datas) is Joined else b"".join(datas)
    sizes = array("Q", batch.sizes).tobytes()
    return BatchForm([joined], sizes, batch.tags, batch.nodes, batch.metas, batch.kinds)


def _unpack_batch(form: BatchForm, _: Pieces) -> Batch:
    if not form.sizes:
        return Batch(form.datas, form.tags, form.nodes, form.metas, form.kinds)
    sizes = array("Q", form.sizes).tolist()
    return Batch(Joined(b"".join(form.datas), sizes), form.tags, form.nodes, form.metas, form.kinds, sizes)


def _pack_slice(part: Slice, packing: Packing) -> list[object]:
    place: list[object] = [0, part.start, part.stop]
    packing.want(part.block, part.start, part.stop, place)
    return place


def _unpack_slice(place: tuple[int, int, int], pieces: Pieces) -> Slice:
    _, start, stop = place
    block, shift = pieces.at(*place)
    return Slice(block.columns(), start - shift, stop - shift)


def _pack_part(part: FetchPart, packing: Packing) -> list[object]:
    place: list[object] = [0, part.start, part.stop, part.dead]
    packing.want(part.block, part.start, part.stop, place)
    return place


def _unpack_part(place: tuple[int, int, int, tuple[int, ...]], pieces: Pieces) -> FetchPart:
    number, start, stop, dead = place
    block, shift = pieces.at(number, start, stop)
    return FetchPart(block, start - shift, stop - shift, tuple([each - shift for each in dead]) if shift else dead)


def _position_carrier(cls: type[Struct], path: str) -> Carrier:
    """The carrier of a struct with a `block` and a `position` in it, which are its first fields."""
    rest = _Fields(cls, path, leaving_out=2)

    def pack(value: Any, packing: Packing) -> list[object]:
        block, position, *others = astuple(value)
        place: list[object] = [0, position, rest.pack(others, packing)]
        packing.want(block, position, position + 1, place)
        return place

    def unpack(place: tuple[int, int, Any], pieces: Pieces) -> Any:
        number, position, others = place
        block, shift = pieces.at(number, position, position + 1)
        return cls(block=block.columns(), position=position - shift, **rest.unpack(others, pieces))

    return Carrier(tuple.__class_getitem__((int, int, rest.form)), pack, unpack)


class _Fields:
    """The fields of a struct, carried as another struct whose fields have the types of the way."""

    def __init__(self, cls: type[Struct], path: str, leaving_out: int = 0) -> None:
        hints = get_type_hints(cls, include_extras=True)
        fields = msgspec.structs.fields(cls)[leaving_out:]
        carriers = [carrier_of(hints[field.name], f"{path}.{field.name}") for field in fields]
        self.is_plain = all(carrier.is_plain for carrier in carriers)
        self._changed = [(at, each.pack) for at, each in enumerate(carriers) if each.pack is not None]
        self._changed_back = [
            (field.name, each.unpack) for field, each in zip(fields, carriers, strict=True) if each.unpack is not None
        ]
        defaults = []
        for field, carrier in zip(fields, carriers, strict=True):
            given: Any = (field.name, carrier.wire)
            if carrier.is_plain and field.default is not NODEFAULT:
                given = (*given, field.default)
            elif carrier.is_plain and field.default_factory is not NODEFAULT:
                given = (*given, msgspec.field(default_factory=field.default_factory))
            elif not field.required:
                given = (*given, ABSENT)
            defaults.append(given)
        self.form: Any = msgspec.defstruct(f"{cls.__name__}Form", defaults, kw_only=True)
        self._names = [field.name for field in fields]

    def pack(self, values: Sequence[object], packing: Packing) -> Struct:
        """The form of the values of the fields."""
        named: dict[str, object] = dict(zip(self._names, values, strict=True))
        for at, pack in self._changed:
            named[self._names[at]] = pack(values[at], packing)
        return cast("Struct", self.form(**named))

    def unpack(self, form: Struct, pieces: Pieces) -> dict[str, Any]:
        """The fields by name."""
        named = asdict(form)
        for name, unpack in self._changed_back:
            if named[name] is ABSENT:
                del named[name]
            else:
                named[name] = unpack(named[name], pieces)
        return named


# ------------------------------------------------------------------ types


_SPECIAL: Final[dict[Any, Carrier]] = {
    Any: Carrier(Any, plain),
    Principal: Carrier(bytes, lambda principal, _: CALLERS.pack(principal), lambda packed, _: CALLERS.unpack(packed)),
    TopicsError: Carrier(ErrorForm, pack_error, unpack_error),
    Reason: Carrier(str, lambda reason, _: reason.code, lambda code, _: _REASONS.get(code, Reason.INTERNAL)),
    Batch: Carrier(BatchForm, _pack_batch, _unpack_batch),
    Slice: Carrier(tuple[int, int, int], _pack_slice, _unpack_slice),
    FetchPart: Carrier(tuple[int, int, int, tuple[int, ...]], _pack_part, _unpack_part),
}
_made: Final[dict[type, Carrier]] = {}


def carrier_of(hint: Any, path: str) -> Carrier:
    """The carrier of a type. Raises UncarriableError, which names the `path` to it."""
    if hint in _SPECIAL:
        return _SPECIAL[hint]
    origin = get_origin(hint)
    if origin is Annotated:
        return carrier_of(get_args(hint)[0], path)
    if hint in _SCALARS or hint in (None, Decimal, UnsetType) or origin is Literal:
        return Carrier(hint)
    if origin is Union or origin is types.UnionType:
        return _of_union(hint, path)
    if origin is not None:
        return _of_collection(origin, hint, path)
    if isinstance(hint, type):
        return _of_class(hint, path)
    raise UncarriableError(f"{path}: {hint} can't be sent to another process")


def _of_class(cls: type, path: str) -> Carrier:
    made = _made.get(cls)
    if made is not None:
        return made
    if cls in (Job, JobView):
        carrier = _position_carrier(cls, path)
    elif issubclass(cls, Struct):
        carrier = _of_struct(cls, path)
    elif issubclass(cls, Enum) and all(isinstance(each.value, int | str) for each in cls):
        carrier = Carrier(cls)
    elif is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        for name, hint in get_type_hints(cls).items():
            if not carrier_of(hint, f"{path}.{name}").is_plain:
                raise UncarriableError(f"{path}.{name}: a {cls.__name__} can't hold {hint}; a Struct can")
        carrier = Carrier(cls)
    else:
        raise UncarriableError(f"{path}: {cls.__qualname__} can't be sent to another process")
    _made[cls] = carrier
    return carrier


def _of_struct(cls: type[T], path: str) -> Carrier:
    fields = _Fields(cls, path)
    if fields.is_plain:
        return Carrier(cls)

    def pack(value: T, packing: Packing) -> Struct:
        return fields.pack(astuple(value), packing)

    def unpack(form: Struct, pieces: Pieces) -> T:
        return cls(**fields.unpack(form, pieces))

    return Carrier(fields.form, pack, unpack)


def _of_union(hint: Any, path: str) -> Carrier:
    members = get_args(hint)
    inner = [each for each in members if each is not types.NoneType]
    if len(inner) == 1:
        carrier = carrier_of(inner[0], path)
        if carrier.is_plain:
            return Carrier(hint)
        return Carrier(carrier.wire | None, _optional(carrier.pack), _optional(carrier.unpack))
    carriers = [carrier_of(each, path) for each in inner]
    if all(carrier.is_plain for carrier in carriers) or set(inner) <= {*_SCALARS, Decimal}:
        try:
            msgspec.msgpack.Decoder(hint)
        except TypeError:  # several kinds of texts
            if set(inner) <= {*_SCALARS, Decimal}:
                return _SPECIAL[Any]
        else:
            return Carrier(hint)
    return _of_choice(inner, carriers, path, optional=len(inner) < len(members))


def _of_choice(members: Sequence[Any], carriers: Sequence[Carrier], path: str, *, optional: bool) -> Carrier:
    """The carrier of one of several classes: their number and, as MessagePack of its own, the value."""
    numbers = {get_origin(each) or each: number for number, each in enumerate(members)}
    if len(numbers) < len(members) or not all(isinstance(each, type) for each in numbers):
        raise UncarriableError(f"{path}: a value does not tell which of {list(members)} it is")
    decoders = [msgspec.msgpack.Decoder(carrier.wire, ext_hook=read_extension).decode for carrier in carriers]

    def pack(value: Any, packing: Packing) -> tuple[int, object]:
        number = numbers[type(value)]
        pack_one = carriers[number].pack
        return number, value if pack_one is None else pack_one(value, packing)

    def unpack(form: tuple[int, Raw], pieces: Pieces) -> Any:
        number, raw = form
        if not 0 <= number < len(decoders):
            raise ValueError(f"there is no choice {number}")
        value, unpack_one = decoders[number](raw), carriers[number].unpack
        return value if unpack_one is None else unpack_one(value, pieces)

    wire = tuple[int, Raw]
    return Carrier(wire | None, _optional(pack), _optional(unpack)) if optional else Carrier(wire, pack, unpack)


def _of_collection(origin: Any, hint: Any, path: str) -> Carrier:
    arguments = get_args(hint)
    if origin in (dict, Mapping):
        key, value = (carrier_of(each, path) for each in arguments)
        if not key.is_plain:
            raise UncarriableError(f"{path}: {arguments[0]} can't be a key")
        wire = dict.__class_getitem__((arguments[0], value.wire))
        return Carrier(wire, _each_value(value.pack), _each_value(value.unpack))
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return _of_tuple([carrier_of(each, path) for each in arguments])
    if origin not in (list, tuple, Sequence, set, frozenset):
        raise UncarriableError(f"{path}: {hint} can't be sent to another process")
    carrier = carrier_of(arguments[0], path)
    if carrier.is_plain:
        return Carrier(hint)
    if origin in (set, frozenset):
        raise UncarriableError(f"{path}: {arguments[0]} can't be in a set")
    wire = list.__class_getitem__(carrier.wire)
    if carrier is _SPECIAL[Any]:
        return Carrier(wire, plain, None)
    return Carrier(wire, _each(carrier.pack, list), _each(carrier.unpack, tuple if origin is tuple else list))


def _of_tuple(carriers: Sequence[Carrier]) -> Carrier:
    wire = tuple.__class_getitem__(tuple(carrier.wire for carrier in carriers))
    if all(carrier.is_plain for carrier in carriers):
        return Carrier(wire)
    packs, unpacks = [each.pack for each in carriers], [each.unpack for each in carriers]

    def pack(values: Sequence[Any], packing: Packing) -> list[Any]:
        return [value if to is None else to(value, packing) for value, to in zip(values, packs, strict=True)]

    def unpack(values: Sequence[Any], pieces: Pieces) -> tuple[Any, ...]:
        return tuple(value if to is None else to(value, pieces) for value, to in zip(values, unpacks, strict=True))

    return Carrier(wire, pack, unpack)


def _optional(convert: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any] | None:
    return None if convert is None else lambda value, within: None if value is None else convert(value, within)


def _each(convert: Callable[[Any, Any], Any] | None, kind: type) -> Callable[[Any, Any], Any] | None:
    return None if convert is None else lambda values, within: kind([convert(value, within) for value in values])


def _each_value(convert: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any] | None:
    if convert is None:
        return None
    return lambda values, within: {name: convert(value, within) for name, value in values.items()}
