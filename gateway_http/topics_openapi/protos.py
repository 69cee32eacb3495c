"""The protos in the words of JSON."""

import re
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    MethodDescriptorProto,
)
from proto_files import ENUM, FIELD, MESSAGE, METHOD, SERVICE, VALUE, ProtoFile, compiled

_NAMED: Final = re.compile(r"JSON (?:name|member) `([^`]+)`")
_TIME: Final = re.compile(r"\b(\w+_ts)_ms\b")
_SAID_OTHERWISE: Final = re.compile(
    r"""\s*(?:JSON\ (?:name|member)\ `[^`]+`\.
    |Path\ parameter\.|(?:On\ HTTP\ a\ )?[Qq]uery\ parameter\.|On\ HTTP\ a\ member\ of\ the\ body\ beside[^.]*\.
    |An\ explicit\ (?:\w+_UNSPECIFIED|unspecified)\ counts\ as\ absent\.
    |On\ HTTP\ everything\ but\ the\ topic\ is\ a\ query\ parameter\.
    |The\ JSON\ (?:body\ is\ this\ message|reply\ has\ its\ fields[^.]*)\.)""",
    re.VERBOSE,
)


class Field(NamedTuple):
    """A field of a message: its type in the proto, its name in JSON, its comment, its oneof."""

    proto: FieldDescriptorProto
    json_name: str
    text: str
    oneof: str

    @property
    def optional(self) -> bool:
        """True if the proto distinguishes an absent field from its zero value."""
        return self.proto.proto3_optional or bool(self.oneof)

    @property
    def repeated(self) -> bool:
        return self.proto.label == FieldDescriptorProto.LABEL_REPEATED

    @property
    def type_name(self) -> str:
        """The short name of its message or enum; empty for a scalar."""
        return self.proto.type_name.rpartition(".")[2]


class Message(NamedTuple):
    """A message: its fields by their names in the proto, the entries of its maps by the names of their types."""

    name: str
    text: str
    fields: dict[str, Field]
    maps: dict[str, DescriptorProto]


class Enum(NamedTuple):
    """An enum as JSON shows it: its texts with their meanings, without the unspecified one."""

    name: str
    text: str
    values: dict[str, str]


class Rpc(NamedTuple):
    """A call: the short names of its messages, and its comment."""

    proto: MethodDescriptorProto
    service: str
    text: str
    request: str
    response: str


class Protos:
    """The files below `folder`: `messages` and `enums` by short name, `rpcs` by full name, `services` with text."""

    def __init__(self, folder: Path) -> None:
        self.messages: dict[str, Message] = {}
        self.enums: dict[str, Enum] = {}
        self.rpcs: dict[str, Rpc] = {}
        self.services: dict[str, str] = {}
        files = list(compiled(folder))
        self._words = {
            value.name: f'"{_short(enum, value.name)}"'
            for file in files
            for enum in file.descriptor.enum_type
            for value in enum.value[1:]
        }
        for file in files:
            self._read(file)

    def _read(self, file: ProtoFile) -> None:
        for i, message in enumerate(file.descriptor.message_type):
            text = self._text(file, MESSAGE, i)
            fields = {
                f.name: self._field(file, (MESSAGE, i, FIELD, j), message, f) for j, f in enumerate(message.field)
            }
            maps = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
            self.messages[message.name] = Message(message.name, text, fields, maps)
        for i, enum in enumerate(file.descriptor.enum_type):
            values = {
                _short(enum, value.name): self._text(file, ENUM, i, VALUE, j) for j, value in enumerate(enum.value) if j
            }
            self.enums[enum.name] = Enum(enum.name, self._text(file, ENUM, i), values)
        for i, service in enumerate(file.descriptor.service):
            self.services[service.name] = self._text(file, SERVICE, i)
            for j, rpc in enumerate(service.method):
                text = self._text(file, SERVICE, i, METHOD, j)
                request, response = rpc.input_type.rpartition(".")[2], rpc.output_type.rpartition(".")[2]
                name = f"topics.v1.{service.name}.{rpc.name}"
                self.rpcs[name] = Rpc(rpc, service.name, text, request, response)

    def _field(
        self, file: ProtoFile, path: tuple[int, ...], message: DescriptorProto, proto: FieldDescriptorProto
    ) -> Field:
        said = " ".join(file.comment(*path))
        named = _NAMED.search(said)
        json_name = named[1] if named else _TIME.sub(r"\1", proto.name)
        in_oneof = proto.HasField("oneof_index") and not proto.proto3_optional
        oneof = message.oneof_decl[proto.oneof_index].name if in_oneof else ""
        return Field(proto, json_name, self._text(file, *path), oneof)

    def _text(self, file: ProtoFile, *path: int) -> str:
        """The comment at `path`, with enums and times as in JSON, without parts that the file itself shows."""
        text = "\n\n".join(_SAID_OTHERWISE.sub("", paragraph) for paragraph in file.comment(*path))
        text = re.sub(r"\b[A-Z][A-Z0-9_]+\b", lambda match: self._words.get(match[0], match[0]), text)
        return _TIME.sub(r"\1", text).strip()


def _short(enum: EnumDescriptorProto, value: str) -> str:
    """`TOPIC_TYPE_LOG` as JSON says it, `log`."""
    prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum.name).upper()
    return value.removeprefix(f"{prefix}_").lower()
