"""`topics top`: snapshots for scripts, the live table in a terminal, and what both are made of."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.http import Api
from support.server import ServerProcess
from topics_cli.top.rates import SORTS, Reading, TopicSample, ordered, read, rows, server_line
from topics_cli.top.view import summary, table
from topics_client.installation import install_line

from .runner import Cli
from .terminal import terminal


def test_one_snapshot(topics: Cli, api: Api) -> None:
    api.write("top-log", [{"data": "x" * 100}] * 20)
    api.send("POST", "/v0/groups/g/commit", {"topic": "top-log", "from_seq": 5}).raise_for_status()
    api.send("POST", "/v0/groups/h/commit", {"topic": "top-log", "from_seq": 15}).raise_for_status()
    api.put("top-queue", type="queue")
    api.write("top-queue", [{"data": 1}] * 3)
    topics("queue", "claim", "top-queue")
    log, queue = topics("top", "top-", "--once", "--interval", "0.1", "--sort", "name", "--json").rows
    assert abs(log.pop("ts") - time.time() * 1000) < 60_000
    assert log == {
        "topic": "top-log",
        "head_seq": 20,
        "count": 20,
        "bytes": 20 * 102,
        "appends_per_second": 0.0,
        "reads_per_second": 0.0,
        "groups": {"g": 15, "h": 5},
        "lag": 15,
        "ready": None,
        "in_flight": None,
    }
    assert (queue["ready"], queue["in_flight"], queue["lag"], queue["reads_per_second"]) == (2, 1, None, None)
    facts, heading, first, *_ = topics("top", "--once", "--interval", "0.1", "--sort", "lag").out.splitlines()
    assert re.search(r"topics \d+ · records \d+ · .* · memory \d+MiB · up \d+", facts)
    assert heading.split() == "TOPIC HEAD RECORDS SIZE APPENDS/S READS/S GROUPS LAG READY IN_FLIGHT".split()  # noqa: SIM905
    assert first.split() == ["top-log", "20", "20", "2.0KiB", "0", "0", "2", "15", "-", "-"]
    assert len(topics("top", "--once", "--interval", "0.1", "--limit", 1, "--json").rows) == 1
    assert "invalid choice: 'luck'" in topics("top", "--sort", "luck", code=2).err


def test_topics_beyond_those_of_the_metrics(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, Api(server.base) as api:
        for number in range(1001):
            api.put(f"many-{number:04}").raise_for_status()
        api.write("the-last", [{"data": 1}] * 3)
        api.put("the-last-wide", partition_count=2)
        cli = Cli(server.grpc_target)
        one, wide = cli("top", "the-", "--once", "--interval", "0.1", "--sort", "name", "--json").rows
        assert (one["head_seq"], one["count"], wide["head_seq"], wide["count"]) == (3, 3, None, 0)
        assert len(cli("top", "--once", "--interval", "0.1", "--json").rows) == 1003


def test_the_live_table_takes_rich(topics: Cli) -> None:
    without = "import sys; sys.modules['rich'] = None; from topics_cli import main; sys.exit(main(['top']))"
    with terminal(topics.url, "-c", without, program=sys.executable) as live:
        assert live.end() == 1
        live.read(1)
        said = f"topics top: the live table needs rich: {install_line('cli')}, or use --once"
        assert "".join(live.shown.splitlines()) == said


def test_rates_are_measured_over_the_interval(topics: Cli, api: Api) -> None:
    api.put("rates", partition_count=2)
    api.send("POST", "/v0/groups/r/commit", {"topic": "rates", "from_seq": 0}).raise_for_status()
    with topics.start("top", "rates", "--json", "--interval", "0.5", stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        running.stdout.readline()
        api.write("rates", [{"data": 1}] * 300, partition=1)
        api.write("rates", [{"data": 1}] * 200)
        api.send("POST", "/v0/groups/r/commit", {"topic": "rates", "from_seq": 100}).raise_for_status()
        # It falls into one interval or into more.
        rows = [json.loads(running.stdout.readline())]
        while rows[-1]["lag"] != 100:
            rows.append(json.loads(running.stdout.readline()))
        running.terminate()
        running.stdout.read()
    found = [row for row in rows if row["appends_per_second"] or row["reads_per_second"]]
    assert 200 <= sum(row["appends_per_second"] for row in found) <= 1000.5
    assert 50 <= sum(row["reads_per_second"] for row in found) <= 200.5
    assert (found[-1]["lag"], found[-1]["head_seq"]) == (100, 500)


def test_the_live_table_sorts_fits_and_gives_the_terminal_back(topics: Cli, api: Api) -> None:
    for number in range(30):
        api.write(f"live-{number:02}", [{"data": 1}] * (number + 1))
    with terminal(topics.url, "top", "live-", "--interval", "0.2", width=60, height=12) as live:
        live.until(r"sorted by rate")
        live.type("n")
        live.until(r"live-00.*sorted by name")
        live.type("c")
        live.until(r"live-29.*live-28.*sorted by records")
        assert live.settings() != live.before, "keys come without Enter"
        live.type("q")
        assert live.end() == 0
        assert live.settings() == live.before
        assert live.shown.startswith("\x1b[?1049h") or "\x1b[?1049h" in live.shown
        assert live.shown.rstrip().endswith("\x1b[?1049l"), "the screen of before is back"
        for frame in live.frames:
            assert all(len(line) <= 60 for line in frame), frame
            assert len(frame) <= 12, frame
        heading = next(line for line in live.frames[-1] if line.startswith("TOPIC"))
        assert "APPENDS/S" in heading
        assert "GROUPS" not in heading, "too narrow for all"
        assert re.search(r"\d+ more topics", "\n".join(live.frames[-1]))


def test_the_live_table_outlives_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, terminal(server.grpc_target, "top", "--interval", "0.2") as live:
        live.until(r"sorted by rate")
        server.kill()
        live.until(r"unavailable: .*is the server running\?")
        os.killpg(live.running.pid, 2)  # SIGINT, as Ctrl-C sends it to all in the foreground
        assert live.end() == 130
        assert live.settings() == live.before
        assert "Traceback" not in live.shown


# What both are made of


def reading(at: float, **heads: int) -> Reading:
    return Reading(at, int(at * 1000), {name: TopicSample(head, head, head) for name, head in heads.items()})


def test_metrics_are_read_with_their_labels() -> None:
    found = read(
        "# HELP x\n"
        "topics_topics 2.0\n"
        'topics_topic_head_seq{topic="a"} 7\n'
        'topics_topic_queue_ready{topic="a"} 3\n'
        'topics_group_lag_records{group="g \\"\\\\\\n}",topic="a",partition="1"} 4\n'
        'topics_group_lag_records{group="g \\"\\\\\\n}",topic="a",partition="0"} 1\n'
        'topics_http_request_seconds_count{rpc="x",status="2xx"} 5.0\n'
        'topics_grpc_call_seconds_count{code="OK",rpc="x"} 6.0\n'
        "nonsense\n",
        1.0,
        2,
    )
    assert found.topics == {"a": TopicSample(7, 0, 0, 3, None, {('g "\\\n}', 1): 4, ('g "\\\n}', 0): 1})}
    assert found.totals == {"topics_topics": 2.0, "calls": 11.0}
    assert rows(found, found)[0]["groups"] == {'g "\\\n}': 5}


def test_rates_of_topics_that_come_go_and_begin_anew() -> None:
    before, after = reading(10, same=5, grows=5, anew=50, gone=1), reading(12, same=5, grows=25, anew=3, new=9)
    found = {row["topic"]: row["appends_per_second"] for row in rows(before, after)}
    assert found == {"same": 0, "grows": 10, "anew": 0, "new": 0}
    assert [row["topic"] for row in rows(before, after, "gr")] == ["grows"]
    assert dict(server_line(before, after))["appends_per_second"] == 10


def test_orders() -> None:
    before, after = reading(0, a=0, b=0, c=0), reading(1, a=5, b=9, c=9)
    found = rows(before, after)
    assert [row["topic"] for row in ordered(found, "rate")] == ["b", "c", "a"]
    assert [row["topic"] for row in ordered(found, "name")] == ["a", "b", "c"]
    assert [row["topic"] for row in ordered(found, "lag")] == ["a", "b", "c"], "those without lag by name"
    assert all(len(ordered(found, sort)) == 3 for sort in SORTS)


@given(st.integers(1, 200), st.dictionaries(st.text(st.sampled_from("ab.-é"), min_size=1), st.integers(0), max_size=5))
def test_no_line_is_wider_than_the_terminal(width: int, heads: dict[str, int]) -> None:
    before = Reading(0, 0)
    after = Reading(1, 1, {name: TopicSample(head, head, head) for name, head in heads.items()})
    lines = [*table(rows(before, after), width), *summary(server_line(before, after), width)]
    assert all(len(line) <= width for line in lines), lines
    assert len(table(rows(before, after), width)) == 1 + len(heads)


@pytest.mark.parametrize(("width", "columns"), [(None, 10), (120, 10), (80, 9), (45, 5), (30, 2), (10, 1)])
def test_the_less_important_columns_go_first(width: int | None, columns: int) -> None:
    found = rows(Reading(0, 0), Reading(1, 1, {"t" * 20: TopicSample(1000, 1000, 1000)}))
    assert len(table(found, width)[0].split()) == columns
