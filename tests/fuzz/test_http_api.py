"""Requests made from `docs/openapi.yaml`, right ones and wrong ones, to a real server.

Every answer is one that the file knows, by status, type, schema and error code; none is a fault of the server; what the
file does not allow is refused; and whatever is refused has changed nothing. The short run is the same each time, the
soak (`make soak`) draws new ones for TOPICS_SOAK_SECONDS.
"""

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
from fuzz.contract import operations
from fuzz.requests import GROUP, OPERATIONS, POOL, ROUTER, SCHEMA, STREAMS, cases, coverage, send
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from schemathesis import GenerationMode

from support.http import Api, ok
from support.server import ServerProcess

SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
LISTS = ("/v0/topics?page_size=1000", "/v0/routers?page_size=1000", "/v0/groups?page_size=1000")
NEAR = {*POOL, GROUP, ROUTER}
# Values that change over time, or describe the server.
UNSTEADY = {"performance", "effective_priority", "queue", "last_read_ts", "lag_records", "forwarded_total"}
EXAMPLES = 12  # of each operation and kind; about 15 ms each
QUIET = settings(
    database=None,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# Where there is nothing to be said, nothing can be wrong.
KINDS = [
    (label, mode)
    for label, operation in sorted(OPERATIONS.items())
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or operation.body or any(True for _ in operation.iter_parameters())
]


class World:
    """A server with something in it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.api = Api(server.base)
        self.session = requests.Session()
        self.session.trust_env = False
        self._wire = HTTPConnection("127.0.0.1", server.http_port, timeout=20)
        self.seen: Counter[int] = Counter()
        self.wids: tuple[str, ...] = ()
        self._known: dict[str, Any] | None = None

    def close(self) -> None:
        self.api.close()
        self.session.close()
        self._wire.close()

    def furnish(self) -> None:
        """Everything of `POOL`, as often as wanted."""
        api = self.api
        for name in POOL:
            config: dict[str, Any] = (
                {"type": "queue", "dead_letter": "jobs.dead", "max_deliveries": 2} if name == "jobs" else {}
            )
            if name == "full":
                config = {"discard": "reject", "cap_records": 1}
            api.drop(name)
            ok(api.put(name, **config, partition_count=3 if name == "parted" else 1), 201)
            api.append(name, {"a": 1})
        ok(api.send("PUT", f"/v0/routers/{ROUTER.replace('>', '%3E')}", {"source": "log", "dest": "copy"}), 200, 201)
        ok(api.send("POST", f"/v0/groups/{GROUP}/commit", {"topic": "log", "from_seq": 1}))
        assert api.write("full", [{"data": 2}]).status_code == 422
        self.seen[422] += 1
        for accept, status in (("text/plain", 406), ("*/*", 404)):
            response = api.client.get("/v0/watch/wid_x", headers={"accept": accept})
            assert response.status_code == status
            self.seen[status] += 1
        made = [ok(api.send("POST", "/v0/watch", {"topics": {name: {}}, "heartbeat_ms": 1000})) for name in POOL[:2]]
        self.wids = tuple(each["wid"] for each in made)
        self._known = None

    def try_one(self, case: Any) -> None:
        """Send a case. If it is refused, everything is as it was before."""
        if self._known is None:
            for name in POOL:
                self._get(self._path(name))  # which waits for routers
            self._known = {}
        names = filter(NEAR.__contains__, (case.path_parameters or {}).values())
        for target in (*LISTS, *map(self._path, names)):
            if target not in self._known:
                self._known[target] = self._look(target)
        status = send(case, self.server.base, self.session).status_code
        self.seen[status] += 1
        if status < 400:
            self._known = None
            return
        after = {target: self._look(target) for target in self._known}
        assert after == self._known, f"{case.method} {case.formatted_path}: {status}, and something changed"

    def _look(self, target: str) -> Any:
        """What a client can see there, but for what time changes."""
        return _steady(json.loads(self._get(target)))

    def _get(self, target: str) -> bytes:
        self._wire.request("GET", target)
        return self._wire.getresponse().read()

    @staticmethod
    def _path(name: str) -> str:
        kind = "groups" if name == GROUP else "routers" if name == ROUTER else "topics"
        return f"/v0/{kind}/{quote(name, safe='')}?touch=false"


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _steady(member) for name, member in value.items() if name not in UNSTEADY}
    return [_steady(each) for each in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def world(server: ServerProcess) -> Iterator[World]:
    made = World(server)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_each_bound_of_an_operation(world: World, label: str) -> None:
    world.furnish()
    for case in coverage(label):
        world.try_one(case)


@pytest.mark.parametrize(("label", "mode"), KINDS, ids=[f"{label}-{mode.value}" for label, mode in KINDS])
def test_random_requests_to_an_operation(world: World, label: str, mode: GenerationMode) -> None:
    world.furnish()
    run(world, label, mode, QUIET)


def run(world: World, label: str, mode: GenerationMode, how: settings, drawn: int | None = None) -> None:
    examples = 4 if label in STREAMS else EXAMPLES

    @settings(how, max_examples=examples)
    @given(case=cases(label, mode, world.wids))
    def one(case: Any) -> None:
        world.try_one(case)

    (one if drawn is None else seed(drawn)(one))()


def test_one_call_after_another(world: World) -> None:
    """Calls that the links of the file lead to, with what the calls before them have answered."""
    base, called = world.server.base, Counter[str]()

    class Life(SCHEMA.as_state_machine()):  # type: ignore[misc]
        def call(self, case: Any, **_: Any) -> Any:
            response = send(case, base, world.session)
            called[case.operation.label] += 1
            return response

        def validate_response(self, response: Any, case: Any, **_: Any) -> None:
            pass

    run_state_machine_as_test(Life, settings=settings(QUIET, max_examples=6, stateful_step_count=8))
    assert sum(called.values()) > 20, called
    assert len(called) > 8, called


def test_everything_was_met(world: World) -> None:
    """After the tests above: shows if a change has made them vacuous."""
    if sum(world.seen.values()) < 2000:
        pytest.skip("only some of the tests above were run")
    assert {200, 201, 400, 404, 405, 406, 409, 415, 422} <= set(world.seen), world.seen
    assert "Traceback" not in world.server.log
    assert " ERROR " not in world.server.log


@pytest.mark.soak
def test_soak(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as running:
        world = World(running)
        try:
            deadline = time.monotonic() + SOAK_SECONDS
            first = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns()))
            print(f"TOPICS_SOAK_SEED={first}")
            how = settings(QUIET, derandomize=False, print_blob=True)
            for drawn in itertools.count(first):
                for label, mode in KINDS:
                    if time.monotonic() > deadline:
                        print(dict(world.seen))
                        return
                    world.furnish()
                    run(world, label, mode, how, drawn)
        finally:
            world.close()


def test_every_operation_is_asked() -> None:
    assert set(OPERATIONS) == {f"{method} {path}" for method, path, _ in operations()}
