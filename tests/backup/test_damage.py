"""Backups that are not what they were: found, named, never restored; the newest intact one is offered."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backup.states import everything
from sdk.cli.runner import Cli

from support.server import ServerProcess
from topics_client import TopicsClient

Restored = Callable[[Path], ServerProcess]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server that everything is a backup of."""
    with ServerProcess(tmp_path_factory.mktemp("source")) as server:
        yield server


@pytest.fixture
def cli(source: ServerProcess) -> Cli:
    """The command, which finds that server."""
    return Cli(source.grpc_target)


@pytest.fixture(scope="module")
def originals(source: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A folder with three backups, and those with the state of each under `state`."""
    folder, cli, found = tmp_path_factory.mktemp("originals") / "backups", Cli(source.grpc_target), []
    with TopicsClient(source.grpc_target) as client:
        for number in range(3):
            client.append_many("a", [f"{number}:{i}" for i in range(1000)])
            found.append(cli("backup", "create", "--to", folder, "--json").row | {"state": everything(client)})
    return folder, found


@pytest.fixture
def made(originals: tuple[Path, list[dict[str, Any]]], target: Path) -> list[dict[str, Any]]:
    """Those backups in a folder of the test's own."""
    shutil.copytree(originals[0], target)
    return originals[1]


def manifest(target: Path, backup: dict[str, Any]) -> Path:
    return target / "backups" / f"{backup['id']}.json"


def file_of(target: Path, backup: dict[str, Any], *, not_in: dict[str, Any] | None = None) -> Path:
    """A file of a backup, the largest that the other one does not have."""
    other = set() if not_in is None else {file["sha256"] for file in files(target, not_in)}
    own = [file for file in files(target, backup) if file["sha256"] not in other]
    name = max(own, key=lambda file: file["size"])["sha256"]
    return target / "files" / name[:2] / name


def files(target: Path, backup: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(manifest(target, backup).read_text())["backup"]["files"]
    return found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size - 2),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
}
MANIFEST_DAMAGES: dict[str, Callable[[Path], object]] = {
    "not-utf-8": lambda path: path.write_bytes(path.read_bytes().replace(b'"sha256":"', b'"sha256":"\xff', 1)),
    "deep": lambda path: path.write_bytes(b'{"sha256":"","backup":' + b"[" * 100_000),
}


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        *(("file", damage) for damage in DAMAGES),
        *(("manifest", damage) for damage in [*DAMAGES, *MANIFEST_DAMAGES]),
    ],
)
def test_the_newest_is_damaged(
    cli: Cli, target: Path, tmp_path: Path, restored: Restored, made: list[dict[str, Any]], what: str, damage: str
) -> None:
    path = manifest(target, made[2]) if what == "manifest" else file_of(target, made[2], not_in=made[1])
    (DAMAGES | MANIFEST_DAMAGES)[damage](path)
    new = tmp_path / "new"
    if (what, damage) == ("manifest", "gone"):  # then there is no such backup
        cli("backup", "restore", made[2]["id"], "--from", target, "--to", new, code=5)
        return
    refused = cli("backup", "restore", "--from", target, "--to", new, code=1)
    assert f"the backup {made[2]['id']} is damaged" in refused.err
    assert path.name in refused.err
    assert made[1]["id"] in refused.err
    assert "--fallback" in refused.err
    assert not new.exists()
    assert not list(tmp_path.glob(".new*"))
    verified = cli("backup", "verify", "--from", target, "--json", code=1)
    assert "remove the files named above from the target" in verified.err
    found = verified.rows
    assert [(row["id"], row["intact"]) for row in found] == [
        (made[2]["id"], False),
        (made[1]["id"], True),
        (made[0]["id"], True),
    ]
    assert path.name in found[0]["error"]
    listed = cli("backup", "list", "--from", target, "--json").rows
    assert [row["id"] for row in listed] == [each["id"] for each in made]
    assert ("error" in listed[2]) == (what == "manifest")
    done = cli("backup", "restore", "--from", target, "--to", new, "--fallback", "--json")
    assert f"falling back to {made[1]['id']}" in done.err
    assert done.row["id"] == made[1]["id"]
    if damage == "flipped":  # the others lead to the same bytes
        with TopicsClient(restored(new).grpc_target) as client:
            assert everything(client) == made[1]["state"]


def test_a_backup_mends_what_is_cut_or_gone_for_those_before(
    cli: Cli, target: Path, made: list[dict[str, Any]]
) -> None:
    shared = {file["sha256"] for file in files(target, made[0])} & {file["sha256"] for file in files(target, made[2])}
    paths = sorted((target / "files" / name[:2] / name for name in shared), key=lambda path: path.stat().st_size)
    assert len(paths) >= 2
    os.truncate(paths[-1], 10)
    paths[-2].unlink()
    cli("backup", "verify", "--from", target, code=1)
    cli("backup", "create", "--to", target)
    assert all(row["intact"] for row in cli("backup", "verify", "--from", target, "--json").rows)


def test_none_is_intact(cli: Cli, target: Path, tmp_path: Path, made: list[dict[str, Any]]) -> None:
    for backup in made:
        for file in files(target, backup):
            (target / "files" / file["sha256"][:2] / file["sha256"]).unlink(missing_ok=True)
    refused = cli("backup", "restore", "--from", target, "--to", tmp_path / "new", "--fallback", code=1)
    assert "none of the backups before it is intact" in refused.err
    assert not (tmp_path / "new").exists()


def test_a_manifest_is_no_way_out_of_the_directory(
    cli: Cli, target: Path, tmp_path: Path, made: list[dict[str, Any]]
) -> None:
    path = manifest(target, made[2])
    for name in ("../evil", "/tmp/evil", ".evil", "a/b", "", "x" * 101):
        backup = json.loads(path.read_text())["backup"]
        backup["files"][0]["name"] = name
        body = json.dumps(backup, separators=(",", ":"), ensure_ascii=False)
        path.write_text(f'{{"sha256":"{hashlib.sha256(body.encode()).hexdigest()}","backup":{body}}}')
        refused = cli("backup", "restore", "--from", target, "--to", tmp_path / "new", code=1)
        assert "contradicts itself" in refused.err
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.rglob("evil"))


def test_a_manifest_without_a_database_makes_none(
    cli: Cli, target: Path, tmp_path: Path, made: list[dict[str, Any]]
) -> None:
    path = manifest(target, made[2])
    backup = json.loads(path.read_text())["backup"] | {"files": []}
    body = json.dumps(backup, separators=(",", ":"), ensure_ascii=False)
    path.write_text(f'{{"sha256":"{hashlib.sha256(body.encode()).hexdigest()}","backup":{body}}}')
    refused = cli("backup", "restore", "--from", target, "--to", tmp_path / "new", code=1)
    assert "contradicts itself" in refused.err
    assert not (tmp_path / "new").exists()


def test_later_formats_are_refused_in_words(cli: Cli, target: Path, tmp_path: Path, made: list[dict[str, Any]]) -> None:
    path = manifest(target, made[2])
    whole = path.read_text()
    for field, value, told in (("format", 3, "use a later version"), ("store_format", "topics-rocksdb-9", "rocksdb-9")):
        backup = json.loads(whole)["backup"] | {field: value}
        body = json.dumps(backup, separators=(",", ":"), ensure_ascii=False)
        path.write_text(f'{{"sha256":"{hashlib.sha256(body.encode()).hexdigest()}","backup":{body}}}')
        refused = cli("backup", "restore", "--from", target, "--to", tmp_path / "new", "--fallback", code=1)
        assert told in refused.err
    assert not (tmp_path / "new").exists()


def test_deep_finds_what_hashes_can_not(cli: Cli, target: Path, tmp_path: Path, made: list[dict[str, Any]]) -> None:
    """A manifest that was wrong from the beginning: its hash is right."""
    path = manifest(target, made[2])
    backup = json.loads(path.read_text())["backup"]
    backup["topics"][0]["partitions"][0]["count"] += 1
    body = json.dumps(backup, separators=(",", ":"), ensure_ascii=False)
    path.write_text(f'{{"sha256":"{hashlib.sha256(body.encode()).hexdigest()}","backup":{body}}}')
    assert cli("backup", "verify", made[2]["id"], "--from", target, "--json").row["intact"]
    deep = cli("backup", "verify", "--from", target, "--deep", "--json", code=1).rows
    assert [row["intact"] for row in deep] == [False, True, True]
    assert 'partition 0 of the topic "a"' in deep[0]["error"]
