"""`topics queue`: claim, ack and the rest, alone and in a pipe."""

import json
import re
import socket
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.http import Api
from support.waiting import poll
from topics_cli.queue.jobtext import Handle, claimed_line, handle_of_argument, handle_of_line
from topics_client.models import Job

from .runner import TOPICS, Cli, environment


def queue(api: Api, count: int = 0, **config: object) -> str:
    """A queue with the given number of jobs."""
    name = api.make("queue", type="queue", **config)
    if count:
        api.write(name, [{"data": {"n": i}, "tag": f"t{i}"} for i in range(1, count + 1)])
    return name


def counts(api: Api, name: str) -> tuple[int, int]:
    """(ready, in flight)."""
    found = api.state(name)["queue"]
    return found["ready"], found["in_flight"]


def test_claim_prints_jobs_as_http_does(topics: Cli, api: Api) -> None:
    name = queue(api)
    text = '{"records":[{"data":{"b" : 1.50, "a":"é\\u00e9"},"tag":"x","meta":{"k": "v"}},{"data":2}]}'
    api.send("POST", f"/v0/topics/{name}", text).raise_for_status()
    ran = topics("queue", "claim", name, "--max", 5, "--lease", "1h")
    first, second = ran.rows
    assert '"data":{"b" : 1.50, "a":"é\\u00e9"},"meta":{"k": "v"}}' in ran.out, "byte for byte"
    assert (first["topic"], first["$seq"], first["$tag"], first["deliveries"]) == (name, 1, "x", 1)
    assert first["node"] == f"cli@{socket.gethostname()}"
    assert re.fullmatch("lease_[0-9a-f]{32}", first["lease_id"])
    assert first["deadline"] - first["$ts"] >= 3_500_000
    assert second.keys() == first.keys() - {"$tag", "meta"}
    empty = topics("queue", "claim", name)
    assert (empty.out, empty.err) == ("", f"{name} has no ready job\n")
    assert topics("queue", "claim", name, "--json")[1:] == ("", "")


def test_what_was_claimed_is_acked_by_a_pipe(topics: Cli, api: Api) -> None:
    name = queue(api, 1500)
    claimed = topics("queue", "claim", name, "--max", 5000).out
    assert counts(api, name) == (500, 1000)
    kept = "".join(f"{line}\n\n" for line in claimed.splitlines() if json.loads(line)["data"]["n"] % 2)
    assert topics("queue", "ack", name, stdin=kept).out == f"{name}: 500 acked\n"
    assert counts(api, name) == (500, 500)
    ran = topics("queue", "ack", name, "--json", stdin=kept, code=1)
    assert (ran.row["acked"], len(ran.row["skipped"])) == (0, 500)
    assert ran.err.startswith(
        "topics queue ack: 500 jobs skipped, not (any more) held under this lease and node: 1, 3,"
    )


def test_a_pipe_is_acked_as_it_comes(topics: Cli, api: Api) -> None:
    name = queue(api, 3)
    lines = topics("queue", "claim", name, "--max", 3).out.encode().splitlines(keepends=True)
    with topics.start("queue", "ack", name, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        for left, line in zip((2, 1, 0), lines, strict=True):
            running.stdin.write(line)
            running.stdin.flush()
            poll(lambda left=left: counts(api, name)[1] == left, 20, f"{left} in flight")
        assert running.communicate(timeout=30)[0].decode() == f"{name}: 3 acked\n"


def test_a_real_pipe_of_the_shell(topics: Cli, api: Api) -> None:
    name = queue(api, 5)
    line = f"'{TOPICS}' queue claim {name} --max 4 | '{TOPICS}' queue ack {name}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        env=environment(topics.url, {}),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.decode() == f"{name}: 4 acked\n"
    assert counts(api, name) == (1, 0)


def test_jobs_by_seq_and_lease(topics: Cli, api: Api) -> None:
    name = queue(api, 4)
    jobs = topics("queue", "claim", name, "--max", 4, "--node", "w1").rows
    wrong = "lease_" + "0" * 32
    ran = topics("queue", "ack", name, "1", f"2:{jobs[1]['lease_id']}", f"3:{wrong}", "--node", "w1", code=1)
    assert ran.out == f"{name}: 2 acked\n"
    assert "1 job skipped, not (any more) held under this lease and node: 3;" in ran.err
    error = topics("queue", "ack", name, "4", code=1).err
    assert "skipped" in error, "this host's own node does not hold it"
    assert topics("queue", "nack", name, "3", "--node", "w1", "--delay", "1h", "--json").row == {
        "topic": name,
        "nacked": 1,
        "skipped": [],
    }
    extended = topics("queue", "extend", name, "4", "--node", "w1", "--lease", "5h").out
    assert extended == f"{name}: 1 extended\n"
    (held,) = topics("queue", "jobs", name, "--state", "in_flight", "--json").rows
    assert held["deadline"] - jobs[3]["deadline"] > 4 * 3_600_000
    assert topics("queue", "nack", name, "4", "--node", "w1", "--release").out == f"{name}: 1 nacked\n"
    assert topics("queue", "claim", name).row["deliveries"] == 1, "the released delivery does not count"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json}", "line 2: it is not JSON"),
        ("[1]", 'line 2: it has no "$seq"'),
        ('{"$seq":"1"}', 'line 2: it has no "$seq"'),
        ('{"$seq":1,"topic":"other"}', "line 2: its job is one of 'other', not of"),
        ('{"$seq":1,"lease_id":7}', 'line 2: "lease_id" and "node" are texts'),
        ('{"$seq":1,"lease_id":"nonsense"}', "invalid_request"),
        ("[" * 100_000, "line 2: it is not JSON"),
    ],
)
def test_lines_that_are_no_jobs(topics: Cli, api: Api, line: str, message: str) -> None:
    name = queue(api, 1)
    good = topics("queue", "claim", name).out
    ran = topics("queue", "ack", name, stdin=good + line + "\n", code=1)
    assert message in ran.err
    # One call takes what came together: all of it is refused for a malformed lease, else what stood before is done.
    assert counts(api, name) == (0, 1 if message == "invalid_request" else 0)


def test_why_jobs_failed(topics: Cli, api: Api) -> None:
    name = queue(api, 2)
    topics("queue", "claim", name, "--max", 2, "--node", "w1")
    topics("queue", "nack", name, "1", "--node", "w1", "--reason", "LookupError: no such user\nmore of it")
    topics("queue", "nack", name, "2", "--node", "w1")
    first, second = topics("queue", "jobs", name, "--json").rows
    assert [first, second] == api.client.get(f"/v0/topics/{name}/jobs").json()["jobs"]
    assert [each["reason"] for each in first["attempts"]] == ["LookupError: no such user\nmore of it"]
    shown = topics("queue", "jobs", name)
    assert "FAILED" in shown.out.splitlines()[0]
    assert "w1: LookupError: no such user" in shown.out
    assert "more of it" not in shown.out


def test_wrong_usage(topics: Cli, api: Api) -> None:
    name = queue(api, 1)
    assert "'x' is not SEQ or SEQ:LEASE" in topics("queue", "ack", name, "x", code=2).err
    assert "'0' is not a number of at least 1" in topics("queue", "claim", name, "--max", 0, code=2).err
    assert "required: --lease" in topics("queue", "extend", name, 1, code=2).err
    assert topics("queue", "ack", name).out == f"{name}: 0 acked\n", "nothing came"
    log = api.make("log")
    for arguments in (["claim", log], ["ack", log, "1"], ["jobs", log], ["redrive", log]):
        error = topics("queue", *arguments, code=1).err
        assert error.startswith(f"topics queue {arguments[0]}: not_a_queue: ")
        assert error.endswith("(topics create --type queue creates a queue)\n")
    assert "not_a_queue" in topics("queue", "stats", log, code=1).err
    for action in ("claim", "stats", "jobs"):
        assert "topic_not_found" in topics("queue", action, "nope", code=5).err


def test_stats(topics: Cli, api: Api) -> None:
    name = queue(api, 6, lease_ms=20_000, max_deliveries=3, dead_letter="set-aside")
    api.write(name, [{"data": 1}], delay_ms=3_600_000)
    topics("queue", "claim", name, "--max", 2)
    assert topics("queue", "stats", name, "--json").row == {
        "topic": name,
        "ready": 4,
        "in_flight": 2,
        "delayed": 1,
        "exhausted": 0,
        "dead_lettered": 0,
        "lease_ms": 20_000,
        "max_deliveries": 3,
        "dead_letter": "set-aside",
    }
    heading, *rows = topics("queue", "stats").cells
    assert " ".join(heading) == "QUEUE READY IN_FLIGHT DELAYED EXHAUSTED DEAD_LETTERED LEASE MAX_DELIVERIES DEAD_LETTER"
    assert [name, "4", "2", "1", "0", "0", "20s", "3", "set-aside"] in rows


def test_jobs_are_listed_in_each_state(topics: Cli, api: Api) -> None:
    name = queue(api, 3)
    api.write(name, [{"data": "x" * 100}], delay_ms=3_600_000)
    topics("queue", "claim", name, "--node", "w1")
    for state in ("ready", "in_flight", "delayed"):
        theirs = api.client.get(f"/v0/topics/{name}/jobs", params={"state": state}).json()["jobs"]
        assert topics("queue", "jobs", name, "--state", state, "--json").rows == theirs
    assert len(topics("queue", "jobs", name, "--limit", 1, "--json").rows) == 1
    ready = topics("queue", "jobs", name).cells
    assert ready[0] == ["SEQ", "AGE", "DELIVERIES", "PRIORITY", "TAG", "DATA"]
    assert [[row[0], *row[4:]] for row in ready[1:]] == [["2", "t2", '{"n":', "2}"], ["3", "t3", '{"n":', "3}"]]
    held = topics("queue", "jobs", name, "--state", "in_flight").cells
    assert (held[0][5:7], held[1][5]) == (["NODE", "LEFT"], "w1")
    late = topics("queue", "jobs", name, "--state", "delayed").cells
    assert (late[1][5], late[1][6]) == ("59m", '"' + "x" * 58 + "…")
    (alone,) = topics("queue", "jobs", name, "--state", "delayed", "--limit", "0", "--no-headers").cells
    assert (alone[0], alone[2:5], alone[6]) == (late[1][0], late[1][2:5], late[1][6])


def test_redrive(topics: Cli, api: Api) -> None:
    name = queue(api, 3, max_deliveries=1, dead_letter="redriven")
    assert len(topics("queue", "claim", name, "--max", 3).rows) == 3
    seqs = ["1", "2", "3"]
    topics("queue", "nack", name, *seqs)
    assert topics("queue", "claim", name, "--json")[1:] == ("", ""), "they are dead letters now"
    assert topics("queue", "redrive", name, "--tag", "t2").out == f"{name}: 1 redriven\n"
    assert topics("queue", "redrive", name, "--tag-prefix", "t", "--max", 1, "--json").row == {
        "topic": name,
        "redriven": 1,
    }
    assert topics("queue", "redrive", name).out == f"{name}: 1 redriven\n"
    assert counts(api, name) == (3, 0)
    assert "invalid_request" in topics("queue", "redrive", queue(api), code=1).err


@given(st.text(), st.text(), st.binary(), st.one_of(st.none(), st.text()), st.booleans(), st.integers(0, (1 << 64) - 1))
def test_a_line_of_any_job_names_that_job(
    name: str, node: str, data: bytes, tag: str | None, binary: bool, seq: int
) -> None:
    text = data if binary else json.dumps(data.hex(), indent=1).encode()
    job = Job(name, seq, "lease_x", 1, 2, text, binary, tag, 3, b'{"a":\n1}')
    line = claimed_line(job, node)
    assert b"\n" not in line
    assert handle_of_line(line, name, "other") == Handle(seq, "lease_x", node)
    found = json.loads(line)
    assert (found["topic"], found.get("$tag"), found["meta"]) == (name, tag, {"a": 1})


@pytest.mark.parametrize("text", ["", ":", "x", "-1", "1.0", str(1 << 64), "٣", " 1"])
def test_arguments_that_are_no_jobs(text: str) -> None:
    with pytest.raises(ValueError, match="is not SEQ or SEQ:LEASE"):
        handle_of_argument(text, "n")
