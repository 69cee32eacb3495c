"""JSON schemas of messages.

Unless `forms.py` says otherwise: a member of an answer is always there, except for a field that the proto calls
optional; a member of a request may be left out but not be null. Numbers of 64 bits have the format `int64`, which
generators know, and the bounds that hold.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from topics_openapi.forms import ADDED, ALWAYS, AMOUNT, ANSWERS, REQUESTS, U32, U64, Form, Schema
from topics_openapi.protos import Field, Message, Protos
from topics_service.engine.model import TopicConfig

_INT64: Final[Schema] = {"type": "integer", "format": "int64"}
_SCALARS: Final[dict[int, Schema]] = {
    FieldDescriptorProto.TYPE_STRING: {"type": "string"},
    FieldDescriptorProto.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptorProto.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptorProto.TYPE_INT64: _INT64,
    FieldDescriptorProto.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptorProto.TYPE_SINT32: {"type": "integer", "format": "int32"},
    FieldDescriptorProto.TYPE_UINT32: U32,
    FieldDescriptorProto.TYPE_UINT64: U64,
}
_COMPLETE: Final = frozenset({"TopicConfig", "RouterConfig"})
"""Messages that answers show with every field filled in."""
_DEFAULT: Final = re.compile(r"Default(?: \(absent\))?:? (true|false|\d+)\b")
_TAG_RULES: Final[dict[str, Schema]] = {
    "TagMatch": {
        "description": 'Selects records by tag: `["tag","Eq",X]`, or the bare string X, for the tag X; '
        '`["tag","Glob","X*"]` '
        "for tags that begin with X. Records without a tag never match.",
        "oneOf": [
            {"type": "string"},
            {
                "type": "array",
                "prefixItems": [{"const": "tag"}, {"const": "Eq"}, {"type": "string"}],
                "items": {"type": "string"},
                "maxItems": 3,
                "minItems": 3,
            },
            {
                "type": "array",
                "prefixItems": [{"const": "tag"}, {"const": "Glob"}, {"type": "string", "pattern": "\\*$"}],
                "items": {"type": "string"},
                "maxItems": 3,
                "minItems": 3,
            },
        ],
    },
    "TagRule": {
        "description": 'A tag rule in full: `["tag","Eq",X]` or `["tag","Glob","X*"]`.',
        "type": "array",
        "prefixItems": [{"const": "tag"}, {"type": "string", "enum": ["Eq", "Glob"]}, {"type": "string"}],
        "items": {"type": "string"},
        "maxItems": 3,
        "minItems": 3,
    },
}


class Schemas:
    """Makes schemas; schemas that they refer to are collected in `components`, by name."""

    def __init__(self, protos: Protos) -> None:
        self._protos = protos
        self.components: dict[str, Schema] = {}

    def answer(self, message: str, *, name: str = "", without: frozenset[str] = frozenset()) -> Schema:
        """A reference to the schema of a message in an answer, whose component is called `name` or as the message."""
        return self._component(message, name or message, answer=True, without=without)

    def body(self, message: str, *, without: frozenset[str]) -> Schema:
        """A reference to the schema of a request's body, which lacks the fields `without`."""
        return self._component(message, message, answer=False, without=without)

    def parameter(self, message: str, field: Field) -> Schema:
        """The schema of a field that is a parameter, its description with it."""
        form = REQUESTS.get(f"{message}.{field.proto.name}", Form())
        return self._described(self._value(field, form, answer=False), field.text, message, field, answer=False)

    def is_required(self, message: str, field: Field) -> bool:
        """True if a request needs the field."""
        return REQUESTS.get(f"{message}.{field.proto.name}", Form()).required

    def member_names(self, message: str) -> Iterator[tuple[str, Field]]:
        """The fields of a request by JSON name, as they are in the message."""
        for field in self._protos.messages[message].fields.values():
            yield field.json_name, field

    # ------------------------------------------------------------------------------------------------- components

    def _component(self, message: str, name: str, *, answer: bool, without: frozenset[str] = frozenset()) -> Schema:
        if not answer and name in ("TopicConfig", "TopicPartitions"):  # answers have them, too, and not the same
            name += "Input"
        if name not in self.components:
            self.components[name] = {}  # its place
            self.components[name] = self._object(self._protos.messages[message], answer=answer, without=without)
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, message: Message, *, answer: bool, without: frozenset[str]) -> Schema:
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for name, schema, needed in self._members(message, answer=answer, without=without):
            if name not in properties:
                properties[name] = schema
                if needed:
                    required.append(name)
        made: Schema = {"type": "object", "description": message.text, "properties": properties}
        if required:
            made["required"] = required
        return made

    def _members(
        self, message: Message, *, answer: bool, without: frozenset[str]
    ) -> Iterator[tuple[str, Schema, bool]]:
        forms = ANSWERS if answer else REQUESTS
        for field in message.fields.values():
            form = forms.get(f"{message.name}.{field.proto.name}", Form())
            if form.omit or field.json_name in without:
                continue
            if form.flat:
                yield from self._members(self._protos.messages[field.type_name], answer=answer, without=without)
                continue
            schema = self._described(
                self._value(field, form, answer=answer), field.text, message.name, field, answer=answer
            )
            here = form.null or (not form.absent and (not field.optional or message.name in _COMPLETE))
            yield field.json_name, schema, here if answer else form.required
        for name, schema in ADDED.get(message.name, {}).items():
            if name != "start" or not answer:
                yield name, schema, f"{message.name}.{name}" in ALWAYS

    # ------------------------------------------------------------------------------------------------------ values

    def _value(self, field: Field, form: Form, *, answer: bool) -> Schema:
        schema = form.schema if form.schema is not None else self._typed(field, answer=answer)
        if "$ref" in schema:
            self._refer(schema["$ref"].rpartition("/")[2])
        if form.more:
            schema = schema | form.more
        return _or_null(schema) if form.null else schema

    def _typed(self, field: Field, *, answer: bool) -> Schema:
        owner = field.type_name
        for message in self._protos.messages.values():
            if owner in message.maps and field in message.fields.values():
                key, value = message.maps[owner].field
                inner = Field(value, value.name, "", "")
                names = {"propertyNames": {"pattern": "^[0-9]+$"}} if key.type != key.TYPE_STRING else {}
                return {"type": "object", "additionalProperties": self._single(inner, answer=answer), **names}
        single = self._single(field, answer=answer)
        return {"type": "array", "items": single} if field.repeated else single

    def _single(self, field: Field, *, answer: bool) -> Schema:
        kind = field.proto.type
        if kind == FieldDescriptorProto.TYPE_MESSAGE:
            return self._component(field.type_name, field.type_name, answer=answer)
        if kind == FieldDescriptorProto.TYPE_ENUM:
            return self._refer(field.type_name)
        if kind not in _SCALARS:
            raise ValueError(f"{field.proto.name}: forms.py must say how it shows in JSON")
        if answer and kind in (FieldDescriptorProto.TYPE_UINT32, FieldDescriptorProto.TYPE_UINT64):
            return AMOUNT
        return _SCALARS[kind]

    def _refer(self, name: str) -> Schema:
        """A reference to an enum or a tag rule."""
        if name not in self.components:
            if name in _TAG_RULES:
                self.components[name] = _TAG_RULES[name]
            else:
                enum = self._protos.enums[name]
                lines = [f"- `{value}`: {text}" for value, text in enum.values.items()]
                text = "\n".join([enum.text, "", *lines])
                self.components[name] = {"type": "string", "description": text, "enum": list(enum.values)}
        return {"$ref": f"#/components/schemas/{name}"}

    def _described(self, schema: Schema, text: str, message: str, field: Field, *, answer: bool) -> Schema:
        described = {"description": text, **schema}
        described["description"] = text or schema.get("description", "")
        default = None if answer else _default(message, field)
        if default is not None and (isinstance(default, str) or default >= described.get("minimum", 0)):
            described["default"] = default
        return described


def _default(message: str, field: Field) -> Any:
    if message == "TopicConfig":
        default = getattr(TopicConfig(), field.proto.name)
        derived = field.proto.name in ("type", "durability")  # from the type of the topic, and from `durable`
        return default if isinstance(default, str | int) and not derived else None
    found = _DEFAULT.search(field.text)
    if found is None or field.repeated:
        return None
    if found[1] in ("true", "false"):
        return found[1] == "true" if field.proto.type == FieldDescriptorProto.TYPE_BOOL else None
    return int(found[1])


def _or_null(schema: Schema) -> Schema:
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return schema | {"type": [schema["type"], "null"]}
    if "oneOf" in schema:
        return schema | {"oneOf": [*schema["oneOf"], {"type": "null"}]}
    return {"oneOf": [schema, {"type": "null"}]}
