"""The HTTP API as `docs/openapi.yaml` has it, to hold real answers against."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import jsonschema_rs
import yaml  # type: ignore[import-untyped]

FILE: Final = Path(__file__).parents[2] / "docs" / "openapi.yaml"
DOCUMENT: Final[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
NOT_OPERATIONS: Final = {"not_found": 404, "method_not_allowed": 405}
"""Refusals that belong to no operation, and their statuses."""
_ERROR: Final = "#/components/schemas/Error"


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every operation as (method, path template, what the file says)."""
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def find(method: str, target: str) -> tuple[str, dict[str, Any]] | None:
    """The path template and the operation that a request goes to, if there is one; a literal segment wins."""
    segments = urlsplit(f"http://x{target}").path.split("/")
    best: tuple[int, str, dict[str, Any]] | None = None
    for verb, path, operation in operations():
        parts = path.split("/")
        if verb != ("GET" if method == "HEAD" else method) or len(parts) != len(segments):
            continue
        pairs = list(zip(parts, segments, strict=True))
        if all((given if part.startswith("{") else part == unquote(given)) for part, given in pairs):
            literal = sum(not part.startswith("{") for part in parts)
            if best is None or literal > best[0]:
                best = literal, path, operation
    return best and best[1:]


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    """What a reference leads to; anything else as it is."""
    while "$ref" in node:
        at: Any = DOCUMENT
        for part in node["$ref"].removeprefix("#/").split("/"):
            at = at[part]
        node = at
    return node


def answers(operation: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """What an operation may answer, by status."""
    return {int(status): resolved(answer) for status, answer in operation["responses"].items()}


@cache
def _validator(reference: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({"$ref": reference, "components": DOCUMENT["components"]})


@cache
def _inline_validator(text: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({**json.loads(text), "components": DOCUMENT["components"]})


def check_value(schema: dict[str, Any], value: Any) -> None:
    """Raise AssertionError unless the value is as the schema says."""
    plain = set(schema) == {"$ref"}
    validator = _validator(schema["$ref"]) if plain else _inline_validator(json.dumps(schema, sort_keys=True))
    errors = [f"{'/'.join(map(str, error.instance_path))}: {error.message}" for error in validator.iter_errors(value)]
    assert not errors, (errors[:3], str(value)[:500])


def check_answer(method: str, target: str, status: int, headers: Any, body: bytes) -> None:
    """Raise AssertionError unless a whole answer is one that the file knows.

    The answers that are of no operation may come to any request: no such path, no such method, a head too large.
    """
    found = find(method, target)
    kind = headers.get("content-type", "")
    said = (method, target, status, kind, body[:500])
    if found is None or status in (405, 431):
        error = _refusal(method, status, kind, body, said)
        if error is not None and status != 431:
            assert status in (400, 401, 403, 429) or NOT_OPERATIONS[error["code"]] == status, said
        return
    known = answers(found[1])
    assert status in known, said
    answer = known[status]
    if method == "HEAD":
        assert body == b"", said
        return
    content = answer.get("content", {})
    media = next((media for media in content if kind == media or kind.partition(";")[0] == media), None)
    assert media is not None, said
    if media == "application/json":
        value = json.loads(body)
        check_value(content[media]["schema"], value)
        if "x-error-codes" in answer:
            assert value["error"]["code"] in answer["x-error-codes"], said
    if status in (429, 503):
        assert int(headers["retry-after"]) >= 1, said


def _refusal(method: str, status: int, kind: str, body: bytes, said: Any) -> dict[str, Any] | None:
    """The error of a refusal, None for a HEAD, which shows none."""
    assert status >= 400, said
    assert kind == "application/json", said
    if method == "HEAD":
        return None
    value = json.loads(body)
    check_value({"$ref": _ERROR}, value)
    return dict(value["error"])


def check_event(operation: dict[str, Any], name: str, data: Any) -> None:
    """Raise AssertionError unless a stream of the operation may send this event."""
    events = operation["responses"]["200"]["content"]["text/event-stream"]["x-events"]
    assert name in events, (name, data)
    check_value(events[name], data)


def words(schema: Any) -> Iterator[str]:
    """Every description below a part of the file."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name in ("description", "summary") and isinstance(value, str):
                yield value
            else:
                yield from words(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from words(value)


def pattern_of(name: str) -> re.Pattern[str]:
    """The pattern of the path parameter of this name."""
    for _, _, operation in operations():
        for parameter in operation.get("parameters", []):
            if parameter["name"] == name and parameter["in"] == "path":
                return re.compile(parameter["schema"]["pattern"])
    raise LookupError(name)
