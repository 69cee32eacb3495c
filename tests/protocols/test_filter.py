"""Reads with a tag filter, over HTTP and gRPC: the same pages, and what is no filter."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from protocols.conftest import Grpc

from support.http import Api, refused
from support.server import ServerProcess
from topics_proto.v1 import record_pb2
from topics_proto.v1 import topics_service_pb2 as pb

Page = tuple[list[int], int, bool]  # seqs, next_from_seq, caught_up
Read = Callable[..., Page]
TAGS = ["x", None, "y", "x", "xy", "", "x"]


@pytest.fixture(scope="module")
def rpcs(server: ServerProcess) -> Iterator[Grpc]:
    caller = Grpc(server.grpc_target, None)
    yield caller
    caller.channel.close()


@pytest.fixture(params=["http", "grpc"])
def read(request: pytest.FixtureRequest, api: Api, rpcs: Grpc) -> Read:
    """Read a page: `eq` or `glob` is the filter, the rest are fields of the request."""

    def over_http(topic: str, *, eq: str | None = None, glob: str | None = None, **fields: Any) -> Page:
        rule = (
            None if eq is None and glob is None else ["tag", "Eq", eq] if glob is None else ["tag", "Glob", f"{glob}*"]
        )
        page = api.read(topic, filter=rule, **fields)
        return [record["$seq"] for record in page["records"]], page["next_from_seq"], page["caught_up"]

    def over_grpc(topic: str, *, eq: str | None = None, glob: str | None = None, **fields: Any) -> Page:
        rule = None if eq is None and glob is None else record_pb2.TagMatch(eq=eq, prefix=glob)
        page = rpcs.call("Diff", pb.DiffRequest(topic=topic, filter=rule, **fields))
        return [record.seq for record in page.records], page.next_from_seq, page.caught_up

    return over_http if request.param == "http" else over_grpc


@pytest.fixture(scope="module")
def tagged(api: Api) -> str:
    """A topic with these tags, written by node `n` but for the first."""
    name = api.make()
    records = [{"data": i, "tag": tag} for i, tag in enumerate(TAGS)]
    assert api.write(name, records[:1]).status_code == 200
    assert api.write(name, records[1:], node="n").status_code == 200
    return name


def test_a_filter_keeps_what_matches(read: Read, tagged: str) -> None:
    assert read(tagged) == ([1, 2, 3, 4, 5, 6, 7], 7, True)
    assert read(tagged, eq="x") == ([1, 4, 7], 7, True)
    assert read(tagged, glob="x") == ([1, 4, 5, 7], 7, True)
    assert read(tagged, glob="") == ([1, 3, 4, 5, 6, 7], 7, True)
    assert read(tagged, eq="") == ([6], 7, True)
    assert read(tagged, eq="x*") == ([], 7, True)


def test_a_filter_goes_with_everything_else(read: Read, tagged: str) -> None:
    assert read(tagged, eq="x", limit=2) == ([1, 4], 4, False)
    assert read(tagged, eq="x", from_seq=4) == ([7], 7, True)
    assert read(tagged, eq="x", node=["n"]) == ([1], 7, True)
    assert read(tagged, eq="x", last=4) == ([4, 7], 7, True)
    assert read(tagged, eq="y", from_seq=7, wait_ms=20) == ([], 7, True)


def test_forms_of_a_filter_in_json(api: Api, tagged: str) -> None:
    def found(rule: Any) -> list[int]:
        return [record["$seq"] for record in api.read(tagged, filter=rule)["records"]]

    assert found("x") == found(["tag", "Eq", "x"]) == [1, 4, 7]
    assert found("x*") == [], "a bare string is Eq"
    assert found(None) == list(range(1, 8))


@pytest.mark.parametrize(
    "rule", [1, True, [], {}, ["tag"], ["tag", "Glob", "x"], ["tag", "Eq", 1], ["node", "Eq", "x"]]
)
def test_what_is_no_filter_in_json(api: Api, tagged: str, rule: Any) -> None:
    assert "filter" in refused(api.diff(tagged, filter=rule), 400, "invalid_request")["message"]


def test_a_filter_that_comes_twice_is_refused(api: Api, tagged: str) -> None:
    refused(api.send("POST", f"/v0/topics/{tagged}/diff", '{"filter":"x","filter":"y"}'), 400, "invalid_request")


def test_a_filter_without_a_rule_is_refused_by_grpc(rpcs: Grpc, tagged: str) -> None:
    refusal = rpcs.refused("Diff", pb.DiffRequest(topic=tagged, filter=record_pb2.TagMatch()))
    assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert "filter" in refusal.message
