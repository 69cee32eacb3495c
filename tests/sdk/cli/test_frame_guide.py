"""The page about the command line, run as it is printed."""

import os
from pathlib import Path

import pytest

from support.guide import ROOT, run_guide
from support.server import TOPICS, ServerProcess


@pytest.mark.timeout(240)
def test_the_page_runs_as_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerProcess(tmp_path) as server:
        monkeypatch.setenv("PATH", f"{TOPICS.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("TOPICS_URL", server.grpc_target)
        monkeypatch.delenv("TOPICS_API_KEY", raising=False)
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            monkeypatch.setenv(name, str(tmp_path / "home"))
        run_guide(ROOT / "docs" / "cli.md", server, least_blocks=8)
