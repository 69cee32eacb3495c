"""Records as lines of text, and back.

Three shapes: the data alone, one line each; the whole record as `/v0` shows it; and that with nothing lost, so that a
file of them can be imported again to the byte.
"""

import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring  # quotes as json.dumps does, without its call
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from topics_cli.lines import BadTextError, json_value
from topics_client.members import unknown_member

if TYPE_CHECKING:
    from topics_client.models import Gap, Record

_LINE_ENDS: Final = bytes.maketrans(
    b"\r\n", b"  "
)  # in JSON they stand between values only, where a space does as well
_SPACE: Final = " \t\r\n"
_scan: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # typeshed lacks it
_IGNORED: Final = frozenset({"$seq", "$ts", "topic"})
_KNOWN: Final = frozenset({"$encoding", "$kind", "$node", "$tag", "$partition", "$meta", "data", "meta"}) | _IGNORED


def base64(data: bytes) -> bytes:
    """The text of bytes, on one line."""
    return binascii.b2a_base64(data, newline=False)


def value_line(record: "Record") -> bytes:
    """The data as one line without its end: JSON as it is, but for line ends between its values, which become spaces;
    bytes as `{"$base64":"…"}`."""
    data = record.data
    if record.binary:
        return b'{"$base64":"%b"}' % base64(data)
    return data.translate(_LINE_ENDS) if b"\n" in data or b"\r" in data else data


def value_lines(records: "Sequence[Record]") -> bytes:
    """The data of many, each with the end of its line: as `value_line`, and much faster for plain JSON."""
    datas = [record.data for record in records if not record.binary]
    joined = b"\n".join(datas)
    if len(datas) == len(records) and b"\r" not in joined and joined.count(b"\n") == len(datas) - 1:
        return joined + b"\n"
    return b"".join([value_line(record) + b"\n" for record in records])


def changed(records: "Sequence[Record]") -> int:
    """The number of records that `value_lines` does not preserve byte for byte."""
    return sum(record.binary or b"\n" in record.data or b"\r" in record.data for record in records)


def whole_line(record: "Record", *, topic: bool = False, partition: bool = False, exact: bool = False) -> bytes:
    """The record as `/v0` shows it, on one line without its end.

    `topic` and `partition` put these in front. With `exact`, JSON with line ends between its values is kept to the
    byte: data as base64 with `"$kind":"json"`, meta as base64 in `$meta`.
    """
    data, meta = record.data, record.meta_data
    pieces = (
        [b'{"topic":%b,"$seq":%d,"$ts":%d' % (text(record.topic), record.seq, record.ts_ms)]
        if topic
        else [b'{"$seq":%d,"$ts":%d' % (record.seq, record.ts_ms)]
    )
    if partition:
        pieces.append(b',"$partition":%d' % record.partition)
    broken = not record.binary and (b"\n" in data or b"\r" in data)
    if record.binary or (exact and broken):
        pieces.append(b',"$encoding":"base64"' if record.binary else b',"$encoding":"base64","$kind":"json"')
        data = b'"%b"' % base64(data)
    elif broken:
        data = data.translate(_LINE_ENDS)
    if record.node is not None:
        pieces.append(b',"$node":' + text(record.node))
    if record.tag is not None:
        pieces.append(b',"$tag":' + text(record.tag))
    pieces.append(b',"data":' + data)
    if meta:
        if b"\n" not in meta and b"\r" not in meta:
            pieces.append(b',"meta":' + meta)
        elif exact:
            pieces.append(b',"$meta":"%b"' % base64(meta))
        else:
            pieces.append(b',"meta":' + meta.translate(_LINE_ENDS))
    pieces.append(b"}")
    return b"".join(pieces)


def text(value: str) -> bytes:
    """A text as JSON."""
    quoted: str = encode_basestring(value)
    return quoted.encode()


def gap_object(gap: "Gap", *, partition: bool = False) -> dict[str, Any]:
    """A gap with the names of a tombstone in `/v0`, and its topic."""
    return {
        "topic": gap.topic,
        **({"partition": gap.partition} if partition else {}),
        "gap_from": gap.first_seq,
        "gap_to": gap.last_seq,
        "reason": gap.reason,
        "missed_estimate": gap.missed_estimate,
        "earliest_seq": gap.earliest_seq,
        "head_seq": gap.head_seq,
    }


def gap_text(gap: "Gap") -> str:
    """A gap in words."""
    if gap.reason == "recreated":
        return f"the topic was deleted and created again; reading continues at seq {gap.earliest_seq}"
    many = gap.last_seq - gap.first_seq + 1
    which = f"seq {gap.first_seq} is" if many == 1 else f"seq {gap.first_seq} to {gap.last_seq} are"
    return f"{which} gone ({gap.reason})"


class Parsed(NamedTuple):
    """A record as it stands in a file."""

    data: bytes
    binary: bool
    tag: str | None
    node: str | None
    meta: bytes
    partition: int | None


def parsed(line: bytes) -> Parsed | None:
    """The record of a line that `whole_line` wrote, or somebody else in the same form; None for the line of a gap.

    Data and meta are taken over to the byte. Raises BadTextError.
    """
    members = _members(line)
    if members.keys() == {"gap"}:
        return None
    if wrong := unknown_member(members, _KNOWN):
        raise BadTextError(1, f"{wrong}; without --with-meta each line is data")
    if "data" not in members:
        raise BadTextError(1, 'it has no "data"; without --with-meta each line is data')
    data, binary = members["data"][1], False
    if "$encoding" in members:
        if members["$encoding"][0] != "base64":
            raise BadTextError(1, '"$encoding" is "base64" or not there')
        data, binary = _from_base64(members, "data"), _member(members, "$kind", str) != "json"
        if not binary:
            json_value(data.strip(_SPACE.encode()))
    meta = members["meta"][1] if "meta" in members else b""
    if "$meta" in members:
        meta = _from_base64(members, "$meta")
    partition = _member(members, "$partition", int)
    return Parsed(data, binary, _member(members, "$tag", str), _member(members, "$node", str), meta, partition)


def _member(members: Mapping[str, tuple[Any, bytes]], name: str, kind: type) -> Any:
    if name not in members:
        return None
    value = members[name][0]
    if type(value) is not kind:
        raise BadTextError(1, f'"{name}" is not {"text" if kind is str else "a whole number"}')
    return value


def _from_base64(members: Mapping[str, tuple[Any, bytes]], name: str) -> bytes:
    try:
        return binascii.a2b_base64(_member(members, name, str), strict_mode=True)
    except ValueError as error:
        if isinstance(error, BadTextError):
            raise
        raise BadTextError(1, f'"{name}" is not base64: {error}') from None


def _members(line: bytes) -> dict[str, tuple[Any, bytes]]:
    """The members of a JSON object: each value, and its own text."""
    if type(json_value(line)) is not dict:  # from here on the text is known to be good
        raise BadTextError(1, "it is not a JSON object")
    found = {}
    whole = line.decode()
    at = _past_space(whole, _past_space(whole, 0) + 1)
    while whole[at] != "}":
        name, at = _scan(whole, at)
        at = _past_space(whole, _past_space(whole, at) + 1)  # a colon
        try:
            value, end = _scan(whole, at)
        except ValueError:  # a number of thousands of digits
            value, end = json.JSONDecoder(parse_int=float).raw_decode(whole, at)
        found[name] = (value, whole[at:end].encode())
        at = _past_space(whole, end)
        if whole[at] == ",":
            at = _past_space(whole, at + 1)
    return found


def _past_space(whole: str, at: int) -> int:
    while whole[at] in _SPACE:
        at += 1
    return at
