"""The `topics` command with the addresses of several nodes."""

from pathlib import Path

from support.server import ServerProcess

from .runner import Cli

DEAD = "127.0.0.1:1"


def test_a_node_that_is_down_is_passed_over(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as running:
        topics, both = Cli(), f"topics://{DEAD},{running.grpc_target}"
        assert topics("append", "t", "1", "--server", both).code == 0
        assert topics("read", "t", "--server", both).rows == [1]
        assert topics("ls", "--quiet", env={"TOPICS_URL": f"{DEAD},{running.grpc_target}"}).out == "t\n"
        topics("profile", "add", "both", both, env={"XDG_CONFIG_HOME": str(tmp_path)})
        shown = topics("profile", "show", "both", env={"XDG_CONFIG_HOME": str(tmp_path)})
        assert both in shown.out
        assert topics("info", "t", "--profile", "both", env={"XDG_CONFIG_HOME": str(tmp_path)}).code == 0
        assert topics("wait-ready", "--server", both).code == 0
    assert "127.0.0.1" in topics("ls", "--server", f"{DEAD},127.0.0.1:2", code=3).err
