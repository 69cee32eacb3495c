"""Drivers in other languages: each runs its suite against the server, which ends with `ok`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from support.missing import without
from support.server import ServerProcess

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "postgres-clients"
NODE = Path(__file__).parent / "clients" / "node"
JAVA = BUILD / "java" / "classes"
IN_JAVA = ["java", "-cp", f"{JAVA}:{BUILD}/java/lib/*"]
COMMANDS = {
    "jdbc": (JAVA, [*IN_JAVA, "Suite"]),
    "jdbc metadata": (JAVA / "Metadata.class", [*IN_JAVA, "Metadata"]),
    "pgx": (BUILD / "go" / "suite", [str(BUILD / "go" / "suite")]),
    "node-postgres": (NODE / "node_modules" / "pg", ["node", str(NODE / "suite.mjs")]),
}


@pytest.mark.parametrize("driver", COMMANDS)
def test_a_driver_runs_its_suite(server: ServerProcess, namespace: str, driver: str) -> None:
    built, command = COMMANDS[driver]
    if shutil.which(command[0]) is None or not built.exists():
        without(f"{driver} is not built")
    with_place = [*command, str(server.pg_port), namespace]
    done = subprocess.run(with_place, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout.strip(), done.returncode) == ("ok", 0), done.stderr[-3000:]
