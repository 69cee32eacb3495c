"""`topics repair` of directories with damaged files, by the real command; and a real server on what it made of them."""

import json
import os
import random
import re
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from backup.states import contents
from corruption.data import Originals
from corruption.harness import Truth, copied, cut, flip, listing, verify, zero
from corruption.repairs import Repaired, compare, repaired
from corruption.test_files import Harm, at, harmed, remove, tables
from sdk.cli.runner import environment

from support import commands
from support.server import ServerProcess
from topics_client import Gap, Record, TopicsClient
from topics_server.repair import uncertain
from topics_service.storage import repair as storage
from topics_service.storage.rocks_options import _name
from topics_service.storage.store import Family, StoreOpenError

JUMP = 1 << 20


class Ran(NamedTuple):
    """What `topics repair --json` said."""

    code: int
    rows: list[dict[str, Any]]
    total: dict[str, Any]

    @property
    def actions(self) -> list[dict[str, Any]]:
        """What it does."""
        return [row for row in self.rows if "action" in row]

    def gaps(self, place: tuple[str, int]) -> list[tuple[int, int]]:
        """What it takes for lost of one partition."""
        return [
            (row["first_seq"], row["last_seq"])
            for row in self.actions
            if row["action"] == "gap" and (row["topic"], row["partition"]) == place
        ]


def repair(directory: Path, *arguments: object) -> Ran:
    command = ["repair", "--data-dir", str(directory), "--json", *map(str, arguments)]
    done = commands.run(command, environment(None, {}), timeout=90)
    assert done.returncode in (0, 1), done.stderr
    assert b"Traceback" not in done.stderr, done.stderr
    assert done.stdout, done.stderr
    *rows, total = map(json.loads, done.stdout.splitlines())
    return Ran(done.returncode, rows, total)


def properties(path: Path) -> None:
    """Change one byte of the properties, in the word that RocksDB finds out of order."""
    flip(path, path.read_bytes().rindex(b"rocksdb.block.based.table"))


SERVED: list[tuple[str, str, str, Harm]] = [
    ("stopped", "*.sst", "flipped", at(0.3, flip)),
    ("stopped", "*.sst", "properties", properties),
    ("killed", "MANIFEST-*", "gone", remove),
    ("killed", "*.log", "flipped", at(0.3, flip)),
]
OTHERS: list[tuple[str, str, str, Harm]] = [
    ("stopped", "*.sst", "gone", remove),
    ("stopped", "*.sst", "zeros", at(0.6, zero, 4096)),
    ("stopped", "*.sst", "cut", at(0.5, cut)),
    ("stopped", "MANIFEST-*", "flipped", at(0.5, flip)),
    ("killed", "CURRENT", "gone", remove),
    ("stopped", "*.log", "gone", remove),
    ("killed", "*.log", "zeros", at(0.9, zero, 100)),
]


@pytest.mark.parametrize(("state", "pattern", "what", "harm"), SERVED, ids=lambda value: str(value)[:20])
def test_repair_then_verify_then_serve(
    state: str, pattern: str, what: str, harm: Harm, originals: Originals, tmp_path: Path
) -> None:
    original = originals.killed if state == "killed" else originals.stopped
    directory = harmed(original, tmp_path, pattern, harm)
    files = listing(directory)
    plan = repair(directory)
    assert plan.code == 1
    assert listing(directory) == files, "a plan changes nothing"
    done = repair(directory, "--apply", "--copy-to", tmp_path / "copy")
    assert (done.actions, done.total["applied"]) == (plan.actions, True)
    assert done.code == (1 if done.total["lost"] else 0)
    assert {name: size for name, (size, _) in listing(tmp_path / "copy").items()} == {
        name: size for name, (size, _) in files.items() if name != "LOCK"
    }
    old = {name: size for name, (size, _) in listing(directory / done.total["quarantine"]).items()}
    assert old.items() <= {name: size for name, (size, _) in files.items()}.items()
    assert {name for name in files if name.endswith((".sst", ".log"))} <= old.keys(), "nothing is removed"
    assert verify(directory, "--deep").problems == []
    assert repair(directory).code == 0, "there is nothing more to do"
    serve(directory, tmp_path / "server", originals.truth, done, whole=pattern == "MANIFEST-*" or what == "properties")


def serve(directory: Path, work_dir: Path, expected: Truth, done: Ran, *, whole: bool) -> None:
    """Everything is there except for reported gaps, and new records come after all old ones."""
    server = ServerProcess(work_dir, data_dir=directory).start()
    try:
        with TopicsClient(server.grpc_target) as client:
            for (topic, partition), content in expected.items():
                told = done.gaps((topic, partition))
                assert not (whole and told)
                found = contents(client, topic, partition)
                if not told:
                    assert found == content or (not whole and records(found).keys() == records(content).keys()), topic
                left, gaps = records(found), [item for item in found if isinstance(item, Gap)]
                for seq, record in records(content).items():
                    lost = any(first <= seq <= last for first, last in told)
                    assert lost == (seq not in left), f"{topic} {seq}"
                    assert lost or left[seq] == record
                    assert not lost or any(gap.first_seq <= seq <= gap.last_seq for gap in gaps)
                assert left.keys() <= records(content).keys(), "nothing comes back"
                top = max(records(content), default=0)
                assert client.get_topic(topic, partition=partition).head_seq >= top
            assert client.append("large", "new").first_seq > 30_000
            assert client.append("events", "once", idempotency_key="the key").deduped
            left_of_jobs = [*client.list_jobs("jobs", "ready"), *client.list_jobs("jobs", "in_flight")]
            assert len(left_of_jobs) > 30 or done.gaps(("jobs", 0))
        assert "Traceback" not in server.log, server.log[-3000:]
    finally:
        server.kill()


def records(content: list[Record | Gap]) -> dict[int, Record]:
    """By seq."""
    return {item.seq: item for item in content if isinstance(item, Record)}


def saved(directory: Path, scratch: Path) -> Repaired:
    """What can be saved of it, in memory."""
    with storage.opened(directory, scratch) as opened:
        return repaired(opened.source, end=uncertain(directory, opened))


@pytest.mark.parametrize(("state", "pattern", "what", "harm"), OTHERS, ids=lambda value: str(value)[:20])
def test_what_can_be_saved(
    state: str, pattern: str, what: str, harm: Harm, originals: Originals, tmp_path: Path
) -> None:
    original = originals.killed if state == "killed" else originals.stopped
    done = saved(harmed(original, tmp_path, pattern, harm), tmp_path / "scratch")
    compare(done, originals.truth)
    if pattern in ("MANIFEST-*", "CURRENT") or (state, pattern) == ("stopped", "*.log"):
        assert done.actions == [], "everything is there"


@pytest.mark.parametrize("family", [Family.TOPICS, Family.LOGS, Family.DELETES, Family.JOBS, Family.META])
def test_what_can_be_saved_without_most_rows_of_a_family(family: Family, originals: Originals, tmp_path: Path) -> None:
    """Its table is damaged in the first block."""
    directory = copied(originals.stopped, tmp_path / "data")
    flip(directory / table_of(family, originals.stopped), 10)
    done = saved(directory, tmp_path / "scratch")
    compare(done, originals.truth)
    recovered = [action.topic for action in done.actions if (action.topic or "").startswith("recovered:log-")]
    assert bool(recovered) == (family is Family.TOPICS)
    if family is Family.DELETES:
        assert ("large", 1, 30_000) in done.gaps


def table_of(family: Family, directory: Path) -> str:
    """The table with the rows of a small family."""
    mark = re.compile(rb"family\.id.{1,9}name" + _name(family).encode(), re.DOTALL)  # of the properties of each table
    return max((path.stat().st_size, path.name) for path in tables(directory) if mark.search(path.read_bytes()))[1]


def test_no_seq_that_a_lost_write_may_have_had_is_handed_out_again(originals: Originals, tmp_path: Path) -> None:
    """Topics that are written to behind the damage tell their head themselves; the others continue far above."""
    done = saved(harmed(originals.killed, tmp_path, "*.log", at(0.1, flip)), tmp_path / "scratch")
    reach = {(action.topic, action.partition): action.last_seq or 0 for action in done.actions if action.kind == "gap"}
    assert reach["orders", 0] > JUMP, "it had no write behind the damage"
    assert reach.get(("large", 0), 0) <= 30_000
    compare(done, originals.truth)


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_damage_anywhere_can_be_repaired(originals: Originals, tmp_path: Path) -> None:
    """A random file, position and damage: the result is sound, and exact except for reported losses."""
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 1_000_000))
    end, number = time.monotonic() + float(os.environ["TOPICS_SOAK_SECONDS"]), 0
    while time.monotonic() < end:
        number += 1
        source = random.Random(f"{seed}:{number}")
        original = source.choice([originals.killed, originals.stopped])
        directory = copied(original, tmp_path / str(number))
        for _ in range(source.choice([1, 1, 3])):
            names = sorted(path.name for path in directory.iterdir() if path.is_file() and path.name != "LOCK")
            path = directory / source.choice([name for name in names if name.endswith(".sst")] or names)
            path = source.choice([path, directory / source.choice(names)])
            at_byte, how = source.randrange(path.stat().st_size + 1), source.choice(["flip", "zero", "cut", "remove"])
            if original == originals.killed and how in ("cut", "remove") and path.suffix == ".sst":
                how = "flip"  # else it takes everything
            print(f"seed {seed}:{number}: {how} {path.name} of {original.name} at {at_byte} of {path.stat().st_size}")
            if how == "remove":
                remove(path)
            elif how == "cut":
                cut(path, at_byte)
            elif how == "flip":
                flip(path, at_byte)
            else:
                zero(path, at_byte, source.choice([1, 100, 5000]))
        try:
            done = saved(directory, tmp_path / f"scratch-{number}")
        except StoreOpenError as error:
            print(f"nothing can be saved: {error}")
        else:
            print(f"{len(done.actions)} actions, gaps {done.gaps[:5]}")
            compare(done, originals.truth)
        shutil.rmtree(directory)
        shutil.rmtree(tmp_path / f"scratch-{number}")
