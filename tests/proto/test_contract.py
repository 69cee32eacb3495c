"""The contract as data: routes, comments, enums and error reasons, read from the descriptors."""

import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc_tools
import pytest
from google.api import annotations_pb2
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor

from topics_proto.v1 import errors_pb2

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
NAMES = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.glob("topics/v1/*.proto"))

# The endpoint table of the API document, row by row, and what we add to it. `None`: the row has no RPC.
ENDPOINTS = {
    ("PUT", "/v0/topics/:topic"): "TopicsService.PutTopic",
    ("GET", "/v0/topics/:topic"): "TopicsService.GetTopic",
    ("GET", "/v0/topics"): "TopicsService.ListTopics",
    ("DELETE", "/v0/topics/:topic"): "TopicsService.DeleteTopic",
    ("POST", "/v0/topics/:topic"): "TopicsService.Append",
    ("POST", "/v0/topics/:topic/diff"): "TopicsService.Diff",
    ("POST", "/v0/topics/:topic/delete"): "TopicsService.DeleteRecords",
    ("PUT", "/v0/routers/:router"): "RouterService.PutRouter",
    ("GET", "/v0/routers/:router"): "RouterService.GetRouter",
    ("GET", "/v0/routers"): "RouterService.ListRouters",
    ("DELETE", "/v0/routers/:router"): "RouterService.DeleteRouter",
    ("GET", "/v0/groups"): "GroupService.ListGroups",
    ("GET", "/v0/groups/:group"): "GroupService.GetGroup",
    ("DELETE", "/v0/groups/:group"): "GroupService.DeleteGroup",
    ("POST", "/v0/groups/:group/consume"): "GroupService.Consume",
    ("POST", "/v0/groups/:group/commit"): "GroupService.CommitPositions",
    ("GET", "/v0/groups/:group/positions"): "GroupService.FetchPositions",
    ("POST", "/v0/groups/:group/reset"): "GroupService.ResetPositions",
    ("POST", "/v0/groups/:group/positions/delete"): "GroupService.DeletePositions",
    ("POST", "/v0/watch"): "WatchService.CreateWatch",
    ("GET", "/v0/watch/:wid"): "WatchService.OpenWatch",
    ("GET", "/v0/ws"): None,
    ("POST", "/v0/topics/:topic/claim"): "QueueService.Claim",
    ("POST", "/v0/topics/:topic/ack"): "QueueService.Ack",
    ("POST", "/v0/topics/:topic/nack"): "QueueService.Nack",
    ("POST", "/v0/topics/:topic/extend"): "QueueService.Extend",
    ("GET", "/v0/topics/:topic/work"): "QueueService.Work",
    ("POST", "/v0/topics/:topic/redrive"): "QueueService.Redrive",
    ("GET", "/v0/topics/:topic/jobs"): "QueueService.ListJobs",
    **{
        ("POST", f"{version}{path}"): f"SqlService.{rpc}"
        for path, rpc in (
            ("/api/sql", "Execute"),
            ("/api/sql/subscribe", "Subscribe"),
            ("/api/topics/consume", "Consume"),
            ("/api/topics/ack", "Ack"),
        )
        for version in ("", "/v1")
    },
    ("GET", "/v0/health"): "AdminService.GetHealth",
    ("GET", "/healthz"): "AdminService.GetHealth",
    ("GET", "/v0/ready"): "AdminService.GetReady",
    ("GET", "/readyz"): "AdminService.GetReady",
    ("GET", "/v0/metrics"): "AdminService.GetMetrics",
}

# Error codes of the API document and, last, of the frames of long-lived connections.
HTTP_STATUS = {
    "invalid_request": 400,
    "batch_too_large": 400,
    "record_too_large": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "topic_not_found": 404,
    "router_not_found": 404,
    "group_not_found": 404,
    "partition_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "router_cycle": 409,
    "topic_exists_incompatible": 409,
    "topic_not_empty": 409,
    "group_not_empty": 409,
    "not_a_queue": 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "topic_full": 422,
    "throttled": 429,
    "internal": 500,
    "not_ready": 503,
    "shutting_down": 503,
    "invalid_json": 400,
    "unsupported_message": 400,
    "server_shutting_down": 503,
    "zone_not_found": 404,
    # Those of SQL.
    "syntax_error": 400,
    "unsupported_sql": 400,
    "invalid_value": 400,
    "column_not_found": 400,
    "function_not_found": 400,
    "division_by_zero": 400,
    "transaction_error": 400,
    "not_null_violation": 400,
    "check_violation": 400,
    "cross_shard": 400,
    "table_not_found": 404,
    "namespace_not_found": 404,
    "route_not_found": 404,
    "index_not_found": 404,
    "user_not_found": 404,
    "unique_violation": 409,
    "already_exists": 409,
    "dependent_objects": 409,
    "not_a_log": 409,
    "claim_expired": 409,
    "schema_changed": 409,
    "result_too_large": 413,
    "query_too_large": 413,
    "query_timeout": 504,
}


def generated(name: str) -> FileDescriptor:
    module = "topics_proto." + name.removeprefix("topics/").removesuffix(".proto").replace("/", ".") + "_pb2"
    descriptor = importlib.import_module(module).DESCRIPTOR
    assert isinstance(descriptor, FileDescriptor)
    return descriptor


def methods() -> Iterator[MethodDescriptor]:
    for name in NAMES:
        for service in generated(name).services_by_name.values():
            yield from service.methods


def bindings(method: MethodDescriptor) -> Iterator[tuple[str, str, str]]:
    """(HTTP method, path template, body) of each binding of an RPC."""
    options = method.GetOptions()
    if options.HasExtension(annotations_pb2.http):
        rule = options.Extensions[annotations_pb2.http]
        for binding in (rule, *rule.additional_bindings):
            verb = binding.WhichOneof("pattern")
            assert verb is not None
            yield verb.upper(), getattr(binding, verb), binding.body


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> list[descriptor_pb2.FileDescriptorProto]:
    """The .proto files as protoc reads them now, with comments."""
    out = tmp_path_factory.mktemp("proto") / "set.binpb"
    includes = (
        PROTO,
        Path(annotations_pb2.__file__).parents[2],
        Path(grpc_tools.__file__).parent / "_proto",
    )
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            *(f"-I{path}" for path in includes),
            "--include_source_info",
            f"--descriptor_set_out={out}",
            *NAMES,
        ],
        cwd=PROTO,
        check=True,
    )
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    assert sorted(file.name for file in files) == NAMES
    return list(files)


def elements(file: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    """Location path and name of everything in a file that must be documented."""

    def message(
        path: tuple[int, ...], name: str, item: descriptor_pb2.DescriptorProto
    ) -> Iterator[tuple[tuple[int, ...], str]]:
        if item.options.map_entry:
            return
        yield path, name
        for i, field in enumerate(item.field):
            yield (*path, 2, i), f"{name}.{field.name}"
        for i, nested in enumerate(item.nested_type):
            yield from message((*path, 3, i), f"{name}.{nested.name}", nested)
        for i, enum in enumerate(item.enum_type):
            yield from enumeration((*path, 4, i), f"{name}.{enum.name}", enum)
        synthetic = {f.oneof_index for f in item.field if f.proto3_optional}
        for i, oneof in enumerate(item.oneof_decl):
            if i not in synthetic:
                yield (*path, 8, i), f"{name}.{oneof.name}"

    def enumeration(
        path: tuple[int, ...], name: str, item: descriptor_pb2.EnumDescriptorProto
    ) -> Iterator[tuple[tuple[int, ...], str]]:
        yield path, name
        for i, value in enumerate(item.value):
            yield (*path, 2, i), value.name

    yield (12,), f"{file.name} (syntax)"
    for i, item in enumerate(file.message_type):
        yield from message((4, i), item.name, item)
    for i, enum in enumerate(file.enum_type):
        yield from enumeration((5, i), enum.name, enum)
    for i, service in enumerate(file.service):
        yield (6, i), service.name
        for j, rpc in enumerate(service.method):
            yield (6, i, 2, j), f"{service.name}.{rpc.name}"
    for i, extension in enumerate(file.extension):
        yield (7, i), extension.name


def test_every_endpoint_has_exactly_its_rpc() -> None:
    found: dict[tuple[str, str], list[str]] = {}
    for method in methods():
        for verb, path, _ in bindings(method):
            row = verb, re.sub(r"\{(\w+)\}", r":\1", path)
            owner = f"{method.containing_service.name}.{method.name}"
            found.setdefault(row, []).append(owner)
    assert found == {row: [rpc] for row, rpc in ENDPOINTS.items() if rpc is not None}


def test_no_two_rpcs_share_a_binding() -> None:
    # Variable names do not tell two routes apart.
    shapes = Counter((verb, re.sub(r"\{\w+\}", "{}", path)) for m in methods() for verb, path, _ in bindings(m))
    assert [shape for shape, n in shapes.items() if n > 1] == []


def test_path_variables_and_bodies_are_request_fields() -> None:
    for method in methods():
        fields = method.input_type.fields_by_name
        for verb, path, body in bindings(method):
            for variable in re.findall(r"\{([^}]*)\}", path):
                assert fields[variable].type == fields[variable].TYPE_STRING, path
            assert bool(body) == (verb in {"PUT", "POST"}), path
            assert body in {"", "*"} or body in fields, path


def test_requests_and_responses_belong_to_one_rpc() -> None:
    for method in methods():
        taken = method.containing_service.name == "SqlService" and method.name in ("Consume", "Ack")
        name = f"SqlService{method.name}" if taken else method.name
        assert (method.input_type.name, method.output_type.name) == (f"{name}Request", f"{name}Response")


def test_streams() -> None:
    streaming = {m.name for m in methods() if m.server_streaming}
    assert streaming == {"AppendStream", "BulkDiff", "OpenWatch", "Watch", "Work", "Subscribe"}
    assert {m.name for m in methods() if m.client_streaming} == {"AppendStream"}


def test_everything_has_a_comment(parsed: list[descriptor_pb2.FileDescriptorProto]) -> None:
    missing = []
    for file in parsed:
        comments = {tuple(x.path): x.leading_comments for x in file.source_code_info.location}
        missing += [name for path, name in elements(file) if not comments.get(path, "").strip()]
    assert missing == []


def test_enums_start_unspecified_with_their_prefix(
    parsed: list[descriptor_pb2.FileDescriptorProto],
) -> None:
    for enum in (enum for file in parsed for enum in file.enum_type):
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
        assert (enum.value[0].name, enum.value[0].number) == (f"{prefix}UNSPECIFIED", 0)
        assert all(value.name.startswith(prefix) for value in enum.value)


def test_generated_code_is_current(parsed: list[descriptor_pb2.FileDescriptorProto]) -> None:
    stale = []
    for file in parsed:
        committed, now = descriptor_pb2.FileDescriptorProto(), descriptor_pb2.FileDescriptorProto()
        generated(file.name).CopyToProto(committed)
        now.CopyFrom(file)
        now.ClearField("source_code_info")
        # Generators differ in whether they spell out the JSON names, which follow from the field names.
        if strip_json_names(committed) != strip_json_names(now):
            stale.append(file.name)
    assert stale == [], "run proto/generate.sh"


def strip_json_names(
    file: descriptor_pb2.FileDescriptorProto,
) -> descriptor_pb2.FileDescriptorProto:
    stack = list(file.message_type)
    fields = list(file.extension)
    while stack:
        message = stack.pop()
        stack += message.nested_type
        fields += message.field
    for field in fields:
        field.ClearField("json_name")
    return file


def test_topic_config_tells_absent_from_zero() -> None:
    fields = generated("topics/v1/topic.proto").message_types_by_name["TopicConfig"].fields
    assert len(fields) == 18
    assert [f.name for f in fields if not f.has_presence] == ["retain_until_acked_by"]  # none is absent


def test_one_encoding_of_records_serves_diff_and_streams() -> None:
    diff = generated("topics/v1/topics_service.proto").message_types_by_name["DiffResponse"]
    batch = generated("topics/v1/stream.proto").message_types_by_name["RecordBatch"]
    a, b = diff.fields_by_name["records"], batch.fields_by_name["records"]
    assert (a.number, a.message_type) == (b.number, b.message_type)


def test_error_reasons_cover_the_document() -> None:
    seen = {}
    for value in errors_pb2.ErrorReason.DESCRIPTOR.values[1:]:
        rule = value.GetOptions().Extensions[errors_pb2.rule]
        assert value.name == f"ERROR_REASON_{rule.code.upper()}"
        assert rule.grpc_status in grpc.StatusCode.__members__
        assert rule.retryable == (rule.http_status in {429, 503})
        seen[rule.code] = rule.http_status
    assert seen == HTTP_STATUS
