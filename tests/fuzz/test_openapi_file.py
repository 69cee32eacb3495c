"""`docs/openapi.yaml` is what its generator writes, is valid, and leaves out no route, error, field or member."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from fuzz.contract import DOCUMENT, FILE, answers, operations, resolved, words

from topics_gateway import (
    group_endpoints,
    queue_endpoints,
    record_endpoints,
    router_endpoints,
    sql_body,
    sql_endpoints,
    watch_endpoints,
)
from topics_gateway.append_schema import BODY_MEMBERS, RECORD_MEMBERS
from topics_gateway.routes import annotated_routes
from topics_gateway.websocket import PATHS
from topics_service.engine.model import ConfigInput

ROOT = Path(__file__).parents[2]
PROTOS = [path.stem for path in (ROOT / "proto" / "topics" / "v1").glob("*.proto")]
SCHEMAS: dict[str, dict[str, Any]] = DOCUMENT["components"]["schemas"]
# Fields that the gateway reads, by schema.
READ = {
    "PutTopicRequest": {*ConfigInput.__struct_fields__, "partition_count", "placement", "zone"},
    "TopicConfigInput": set(ConfigInput.__struct_fields__),
    "AppendRequest": BODY_MEMBERS,
    "AppendRecord": RECORD_MEMBERS,
    "DiffRequest": record_endpoints._DIFF,
    "DeleteRecordsRequest": record_endpoints._DELETE,
    "ClaimRequest": queue_endpoints._CLAIM,
    "FinishedJobs": queue_endpoints._FINISHED,
    "AckRequest": queue_endpoints._SETTLE,
    "NackRequest": queue_endpoints._NACK,
    "ExtendRequest": queue_endpoints._EXTEND,
    "RedriveRequest": queue_endpoints._REDRIVE,
    "PutRouterRequest": router_endpoints._KNOWN,
    "ConsumeRequest": group_endpoints._CONSUME,
    "CommitPositionsRequest": group_endpoints._COMMIT,
    "PositionCommit": group_endpoints._POSITION,
    "ResetPositionsRequest": group_endpoints._RESET,
    "DeletePositionsRequest": group_endpoints._TARGETS,
    "TopicPartitionsInput": group_endpoints._TARGET,
    "CreateWatchRequest": watch_endpoints._WATCH,
    "WatchTopic": watch_endpoints._TOPIC,
    "ExecuteRequest": sql_body._MEMBERS,
    "SubscribeRequest": sql_body._LIVE_MEMBERS,
    "SqlServiceConsumeRequest": sql_endpoints._CONSUME,
    "SqlServiceAckRequest": sql_endpoints._ACK,
    "ClaimOptions": sql_endpoints._CLAIM,
}


def test_it_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "topics_openapi", "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_it_is_valid() -> None:
    schemathesis.openapi.from_path(FILE).validate()
    assert DOCUMENT["openapi"].startswith("3.1.")
    for name, schema in SCHEMAS.items():
        assert jsonschema_rs.meta.is_valid(schema), name
        jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT["components"]})  # its references resolve
    for reference in _references(DOCUMENT):
        resolved({"$ref": reference})
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    linked = {link["operationId"] for _, _, op in operations() for a in answers(op).values() for link in _links(a)}
    assert linked <= set(names)


def test_every_route_is_there_and_no_other() -> None:
    listed = {(method, path) for method, path, _ in operations()}
    assert listed == {(method, path) for _, method, path in annotated_routes()} | {
        ("GET", path.decode()) for path in PATHS
    }


def test_every_error_code_is_documented_with_its_status() -> None:
    lines = (ROOT / "docs" / "errors.md").read_text().splitlines()
    cells = [line.strip("|").split("|") for line in lines if line.startswith("| `")]
    statuses = {row[0].strip(" `"): int(row[1]) for row in cells}
    named = {
        (code, status)
        for _, _, operation in operations()
        for status, answer in answers(operation).items()
        for code in answer.get("x-error-codes", [])
    }
    assert {code for code, _ in named} | {"not_found", "method_not_allowed"} == set(statuses)
    assert all(statuses[code] == status for code, status in named)
    assert set(SCHEMAS["Error"]["properties"]["error"]["properties"]["code"]["enum"]) == set(statuses)


def test_every_refusal_tells_its_codes() -> None:
    for method, path, operation in operations():
        known = answers(operation)
        assert {400, 401, 500} <= set(known), (method, path)
        for status, answer in known.items():
            assert (status >= 400) == bool(answer.get("x-error-codes")), (method, path, status)
            assert ("Retry-After" in answer.get("headers", {})) == (status in (429, 503)), (method, path, status)


@pytest.mark.parametrize("name", sorted(READ))
def test_a_body_has_the_members_that_the_protocol_reads(name: str) -> None:
    assert set(SCHEMAS[name]["properties"]) == READ[name]


def test_every_body_is_compared_with_what_the_protocol_reads() -> None:
    bodies = {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for _, _, operation in operations()
        if "requestBody" in operation
    }
    assert bodies <= set(READ)


def test_every_field_has_a_type_bounds_and_a_description() -> None:
    for name, schema in SCHEMAS.items():
        for member, said in schema.get("properties", {}).items():
            where = f"{name}.{member}"
            assert resolved(said).get("description") or said.get("description") or name == "Error", where
            _typed(said, where)
    for method, path, operation in operations():
        for parameter in operation.get("parameters", []):
            where = f"{method} {path} {parameter['name']}"
            assert parameter["description"], where
            _typed(parameter["schema"], where)


def _typed(schema: dict[str, Any], where: str) -> None:
    schema = resolved(schema)
    if where.endswith(".data"):  # any JSON
        return
    forms = schema.get("oneOf", [schema])
    for form in map(resolved, forms):
        if "oneOf" in form:
            _typed(form, where)
            continue
        kinds = form.get("type", form.get("enum"))
        assert kinds, where
        if "integer" in kinds:
            assert "minimum" in form or "format" in form, where
        if "object" in kinds and "properties" not in form:
            assert "additionalProperties" in form or where.endswith(".detail"), where
        if "array" in kinds:
            assert "items" in form, where


def test_defaults_are_valid() -> None:
    for name, schema in SCHEMAS.items():
        for member, said in schema.get("properties", {}).items():
            if "default" in said:
                value = {**said, "components": DOCUMENT["components"]}
                assert jsonschema_rs.is_valid(value, said["default"]), f"{name}.{member}"


def test_its_texts_are_in_the_words_of_json() -> None:
    files = map(importlib.import_module, [f"topics_proto.v1.{name}_pb2" for name in PROTOS])
    enums = {
        value for file in files for enum in file.DESCRIPTOR.enum_types_by_name.values() for value in enum.values_by_name
    }
    assert "DURABILITY_FSYNC" in enums
    for text in words(DOCUMENT):
        assert not enums & set(re.findall(r"[A-Z_]+", text)), text
        assert not re.search(r"_ts_ms\b", text), text


def test_the_check_notices_a_change(tmp_path: Path) -> None:
    code = "import sys, topics_openapi.__main__ as m, pathlib as p; m.TARGET = p.Path(sys.argv.pop(1)); exit(m.main())"
    other = tmp_path / "openapi.yaml"
    other.write_text(FILE.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    command = [sys.executable, "-c", code, str(other), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "make proto" in done.stderr) == (1, True)


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in _references(value)]
    return [found for value in node for found in _references(value)] if isinstance(node, list) else []


def _links(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return list(answer.get("links", {}).values())
