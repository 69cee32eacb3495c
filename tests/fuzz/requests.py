"""Requests made from `docs/openapi.yaml` by schemathesis: such as it allows, and such as it does not."""

import json
from collections.abc import Iterator
from typing import Any, Final

import requests
import schemathesis
from fuzz.contract import FILE, check_answer, check_event, find
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import load_all_checks
from schemathesis.generation.meta import TestPhase
from schemathesis.specs.openapi import checks as known_checks

load_all_checks()
SCHEMA: Final = schemathesis.openapi.from_path(FILE)
SCHEMA.config.max_stream_events = 2
_FOUND: Final[list[Any]] = [found.ok() for found in SCHEMA.get_all_operations()]
OPERATIONS: Final = {operation.label: operation for operation in _FOUND}
STREAMS: Final = frozenset({"GET /v0/watch/{wid}", "GET /v0/topics/{topic}/work"})
POOL: Final = ("log", "parted", "jobs", "jobs.dead", "full", "copy")
"""Topics that are there, so that requests meet something."""
GROUP, ROUTER = "readers", "log->copy"
_CHECKS: Final = [
    known_checks.status_code_conformance,
    known_checks.content_type_conformance,
    known_checks.response_headers_conformance,
    known_checks.response_schema_conformance,
    known_checks.negative_data_rejection,
]
_FORGIVING: Final = frozenset({"touch", "if_empty", "return_seqs", "lenient", "page_size"})
"""Query parameters for which the gateway takes any text: unreadable text means the default."""


def coverage(label: str) -> Iterator["Case[Any]"]:
    """The cases that schemathesis makes of each bound and each type of an operation, one by one."""
    operation = OPERATIONS[label]
    yield from SCHEMA.iter_coverage_cases(
        operation,
        generation_modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE],
        generation_config=SCHEMA.config.generation_for(operation=operation),
    )


@st.composite
def cases(draw: st.DrawFn, label: str, mode: GenerationMode, wids: tuple[str, ...]) -> Any:
    """A random case; most of those that are valid name what is there."""
    case = draw(OPERATIONS[label].as_strategy(generation_mode=mode))
    if mode is GenerationMode.POSITIVE and draw(st.integers(0, 3)):
        if "topic" in case.path_parameters:
            case.path_parameters["topic"] = draw(st.sampled_from(POOL))
        if "group" in case.path_parameters:
            case.path_parameters["group"] = GROUP
        if "router" in case.path_parameters:
            case.path_parameters["router"] = ROUTER
        if "wid" in case.path_parameters:
            case.path_parameters["wid"] = draw(st.sampled_from(wids))
        if isinstance(case.body, dict):
            _at_home(draw, case.body)
    return case


def _at_home(draw: st.DrawFn, body: dict[str, Any]) -> None:
    """Put names that are there into a body, and times into it that a test can wait."""
    for name in ("topic", "source", "dest", "dead_letter"):
        if isinstance(body.get(name), str):
            body[name] = draw(st.sampled_from(POOL))
    if isinstance(body.get("topics"), dict):
        body["topics"] = {draw(st.sampled_from(POOL)): start for start in body["topics"].values()}
    for member in body.get("positions") or body.get("topics") or ():
        if isinstance(member, dict) and isinstance(member.get("topic"), str):
            member["topic"] = draw(st.sampled_from(POOL))


def send(case: "Case[Any]", base: str, session: requests.Session) -> Response:
    """Send a case and hold the answer against the file. Raises FailureGroup or AssertionError."""
    if isinstance(case.body, dict):
        for each in (case.body, case.body.get("config")):
            if isinstance(each, dict):
                _calm(each)
    seconds = 0.3 if case.operation.label in STREAMS else 20
    response = case.call(base_url=base, session=session, timeout=seconds)
    headers = {name: values[0] for name, values in response.headers.items()}
    target = response.request.path_url
    if headers["content-type"].startswith("text/event-stream"):
        _check_events(case.method, target, response.content.decode())
        return response
    check_answer(case.method, target, response.status_code, headers, response.content)
    assert response.status_code < 500, (case.method, target, response.content[:500])
    if response.status_code != 405:
        checks = _CHECKS if _must_be_refused(case) else _CHECKS[:-1]
        case.validate_response(response, checks=checks)
    return response


def _check_events(method: str, target: str, text: str) -> None:
    found = find(method, target)
    assert found is not None
    for block in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            check_event(found[1], fields["event"], json.loads(fields["data"]))


def _calm(body: dict[str, Any]) -> None:
    """No answer is held back for up to 30 s, and nothing expires meanwhile."""
    for name in ("wait_ms", "claim_jitter_ms"):
        if type(body.get(name)) is int and body[name] > 1:
            body[name] = 1
    if type(body.get("ttl_ms")) is int and body["ttl_ms"] > 0:
        body["ttl_ms"] += 1 << 40


def _must_be_refused(case: "Case[Any]") -> bool:
    """Return whether the gateway checks the fault of a case, if it has one.

    It does not mind an odd text in the query where any will do; a name that nothing can have where a thing of that name
    would be deleted; what a header says that the body has said; and the configuration of a topic that is there.
    """
    if case.meta is None or case.meta.phase.name is not TestPhase.COVERAGE:
        return False  # a random one has many parts, any of which may be the wrong one
    data = case.meta.phase.data
    parameter, location = getattr(data, "parameter", None), str(getattr(data, "parameter_location", None) or "")
    if parameter is None or parameter in _FORGIVING or "header" in location.lower():
        return False
    if case.method == "DELETE" and "path" in location.lower():
        return False
    return not (case.operation.label == "POST /v0/topics/{topic}" and "config" in str(getattr(data, "description", "")))
