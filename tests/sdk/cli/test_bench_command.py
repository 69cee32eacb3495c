"""`topics bench`: it measures what it says, and leaves nothing behind."""

import signal
import subprocess

import pytest

from support.http import Api
from support.waiting import poll
from topics_cli.bench import record_text

from .runner import Cli


def _benches(api: Api) -> list[str]:
    return [each["topic"] for each in api.listing(prefix="bench")["topics"]]


def test_every_phase_has_its_row(topics: Cli, api: Api) -> None:
    rows = topics("bench", "--records", 3000, "--size", 100, "--json").rows
    assert [row["phase"] for row in rows] == ["append", "latency", "read", "watch"]
    assert [row["records"] for row in rows] == [3000, 1000, 4000, 4000]
    for row in rows:
        assert row["records_per_s"] == pytest.approx(row["records"] / row["seconds"], rel=0.1)
        assert row["mb_per_s"] == pytest.approx(row["records_per_s"] * 100 / 1e6, rel=0.05, abs=0.001)
    assert 0 < rows[1]["p50_ms"] <= rows[1]["p99_ms"] <= rows[1]["max_ms"]
    assert _benches(api) == []


def test_several_producers_and_a_topic_of_ones_own(topics: Cli, api: Api) -> None:
    arguments = ("bench", "--records", 1001, "--producers", 2, "--topic", "mine", "--durability", "fsync", "--read")
    cells = topics(*arguments, "--no-headers").cells
    assert [row[:2] for row in cells] == [["append", "1,001"], ["read", "1,001"]]
    assert api.get("mine").status_code == 404
    api.append("mine", 1)
    assert "mine already exists" in topics(*arguments, code=1).err
    assert api.state("mine")["count"] == 1


def test_an_interrupt_leaves_nothing_behind(topics: Cli, api: Api) -> None:
    with topics.start("bench", "--records", 50_000_000, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        poll(lambda: _benches(api), 30)
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=50)
    assert (command.returncode, out, err) == (130, b"", b"")
    assert _benches(api) == []


def test_it_ends_in_time(topics: Cli) -> None:
    rows = topics("bench", "--records", 50_000_000, "--seconds", 1, "--latency", "--json").rows
    assert rows[0]["records"] < 50_000_000
    assert rows[0]["seconds"] < 20


@pytest.mark.parametrize("size", [0, 20, 100, 5000])
def test_a_record_has_its_size_if_that_is_possible(size: int) -> None:
    assert len(record_text(1, size)) == max(size, len(b'{"n":1,"text":""}'))


def test_what_makes_no_sense(topics: Cli) -> None:
    assert "--size must be at most 1,048,576" in topics("bench", "--size", "2MiB", code=2).err
    assert "--producers must be at most 64" in topics("bench", "--producers", 65, code=2).err
    assert "unavailable" in Cli("127.0.0.1:1")("bench", code=3).err
