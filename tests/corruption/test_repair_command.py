"""`topics repair`: the command itself, and what a kill at each of its steps leaves."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from corruption.harness import copied, listing, verify
from corruption.repairs import LAST, in_memory
from engine_support import World
from sdk.cli.runner import Cli

from support.server import ServerProcess, StartFailedError
from topics_client import TopicsClient
from topics_server.repair import RepairObserver, repair
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family

QUIET = RepairObserver(note=lambda _: None, problem=lambda _: None, action=lambda _: None)
KILLED_AT = """
import os, sys
from pathlib import Path
from topics_server.repair import RepairObserver, repair
told = RepairObserver(note=lambda _: None, problem=lambda _: None, action=lambda _: None)
stepped = lambda name: os._exit(9) if name == sys.argv[3] else None
repair(Path(sys.argv[1]), told, apply=True, copy_to=Path(sys.argv[2]), stepped=stepped)
"""


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with 30 records in three blocks, the second of which is damaged."""
    directory = tmp_path_factory.mktemp("small") / "data"
    store: Any = RocksStore(directory)
    world = World(store)
    for block in range(3):
        world.append(*(f"{block}:{i}".encode() for i in range(10)), topic="events")
    world.engine.close()
    key, value = list(store.scan(Family.BLOCKS, b"", LAST))[1]
    batch = store.batch()
    batch.put(Family.BLOCKS, key, value[:-1] + b"!")
    store.write(batch)
    store.close()
    return directory


def rows(directory: Path) -> list[list[tuple[bytes, bytes]]]:
    store = in_memory(directory)
    return [list(store.scan(family, b"", LAST)) for family in Family]


def test_it_shows_what_it_would_do_and_does_it(damaged: Path, tmp_path: Path) -> None:
    directory = copied(damaged, tmp_path / "data")
    ran = Cli()("repair", "--data-dir", directory, code=1)
    assert "found: damaged: events seq 11..20: records can't be read" in ran.out
    assert "repair: gap: events seq 11..20: can't be read any more" in ran.out
    assert "would save 1 topic, 1 partition, 20 records" in ran.out
    assert "nothing was changed: repair it with --apply --copy-to DIR" in ran.err
    ran = Cli()("repair", "--data-dir", directory, "--apply", "--no-copy", lines=0)
    assert "saved: 1 topic, 1 partition, 20 records" in ran.out
    assert f"the original files are in {directory}/quarantine-" in ran.out
    assert verify(directory, "--deep").code == 0
    assert f"nothing to do: {directory} is intact" in Cli()("repair", "--data-dir", directory, lines=0).out
    assert not (directory / "repair").exists()


def test_wrong_usage(damaged: Path, tmp_path: Path) -> None:
    before = listing(damaged)
    assert "--apply needs --copy-to DIR" in Cli()("repair", "--data-dir", damaged, "--apply", code=2).err
    assert "are for --apply" in Cli()("repair", "--data-dir", damaged, "--no-copy", code=2).err
    assert "no data directory" in Cli()("repair", "--data-dir", tmp_path, code=2).err
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("of somebody")
    ran = Cli()("repair", "--data-dir", damaged, "--apply", "--copy-to", full, code=1)
    assert f"{full} is there already and not empty" in ran.err
    assert listing(damaged) == before
    assert not (damaged / "repair").exists()


def test_not_beside_a_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server") as server:
        for arguments in ((), ("--apply", "--no-copy")):
            ran = Cli()("repair", "--data-dir", server.data_dir, *arguments, code=1)
            assert "has" in ran.err
            assert "open: stop it first" in ran.err
        with TopicsClient(server.grpc_target) as client:
            assert client.append("events", "still there").count == 1


def test_a_kill_at_any_step_can_be_gone_on_from(damaged: Path, tmp_path: Path) -> None:
    """What was begun is ended by the next run, and no server starts in between."""
    steps: list[str] = []
    reference = copied(damaged, tmp_path / "reference")
    repair(reference, QUIET, apply=True, copy_to=tmp_path / "copy", stepped=steps.append)
    expected = rows(reference)
    out, into = ([step for step in steps if step.startswith(way)] for way in ("out ", "in "))
    assert {"copied", "saved", "checked", "begun", "moved out", "moved in"} <= {*steps}
    assert len(out) > 8
    assert len(into) > 8
    chosen = ["copied", "checked", "begun", "out CURRENT", "moved out", into[0], into[-1], "moved in"]
    for number, step in enumerate(chosen):
        directory = copied(damaged, tmp_path / f"data-{number}")
        before = {name: size for name, (size, _) in listing(directory).items()}
        command = [sys.executable, "-c", KILLED_AT, directory, tmp_path / f"copy-{number}", step]
        assert subprocess.run(command, check=False, timeout=60).returncode == 9, step
        begun = step not in ("copied", "saved", "checked")
        assert (directory / "topics-repair.json").exists() == begun
        if begun and step in ("moved out", into[-1]):
            server = ServerProcess(tmp_path / f"server-{number}", data_dir=directory)
            with pytest.raises(StartFailedError, match=r"was interrupted .*run `topics repair` again"):
                server.start()
        report = repair(directory, QUIET, apply=True)
        assert (report.applied, report.resumed) == (True, begun), step
        assert rows(directory) == expected, step
        old = {name: size for name, (size, _) in listing(directory / str(report.quarantine)).items()}
        assert old == {name: size for name, size in before.items() if name != "LOCK"}
