"""`make run-cluster`: a newcomer kills the owner that it names, and reads that nothing is lost."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from support.etcd import need_etcd
from support.guide import ROOT
from support.server import DIE_WITH_US
from support.waiting import poll
from support.weed import need_weed


def test_the_owner_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    need_etcd()
    need_weed()
    said = tmp_path / "said"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "AWS_"))}
    with said.open("w") as file:
        program = subprocess.Popen(
            [*DIE_WITH_US, sys.executable, str(ROOT / "examples" / "cluster.py"), "--port", "0"],
            env=env | {"TMPDIR": str(tmp_path)},
            stdout=file,
            stderr=file,
        )
    try:

        def owners() -> list[tuple[str, str, int]]:
            assert program.poll() is None, said.read_text()
            found = re.findall(
                r"owner of demo: (\w), epoch (\d+)\. Kill it in another terminal:  kill -9 (\d+)", said.read_text()
            )
            return [(name, epoch, int(pid)) for name, epoch, pid in found]

        poll(owners, 90, "an owner")
        os.kill(owners()[0][2], signal.SIGKILL)
        poll(lambda: len(owners()) > 1, 60, "another owner")
        assert owners()[1][0] != owners()[0][0]
        assert re.search(r"all [1-9][\d,]* acknowledged records are there, once and in order", said.read_text())
    finally:
        program.send_signal(signal.SIGINT)
        assert program.wait(40) == 0, said.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["said"]
