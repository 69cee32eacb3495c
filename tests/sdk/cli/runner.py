"""The real `topics` command as a process, against a server."""

import json
import os
import subprocess
from typing import Any, NamedTuple

from support import commands
from support.server import TOPICS


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        """The JSON lines that it printed."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def row(self) -> Any:
        """The one JSON line that it printed."""
        (row,) = self.rows
        return row

    @property
    def cells(self) -> list[list[str]]:
        """The words of each line that it printed."""
        return [line.split() for line in self.out.splitlines()]


def environment(url: str | None, env: dict[str, str]) -> dict[str, str]:
    """The environment of a command: none of the caller's own settings, `url` as TOPICS_URL, and `env`."""
    own = ("NO_COLOR", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_") and name not in own}
    kept["XDG_CONFIG_HOME"] = "/nowhere"  # of profiles
    return kept | ({} if url is None else {"TOPICS_URL": url}) | env


class Cli:
    """Runs `topics ARGUMENTS` with TOPICS_URL set. Checks its exit code, and the number of error lines."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url

    def __call__(
        self,
        *arguments: object,
        code: int = 0,
        stdin: bytes | str = b"",
        env: dict[str, str] | None = None,
        lines: int = 1,
    ) -> Ran:
        own = env or {}
        done = commands.run(
            [str(each) for each in arguments],
            environment(self.url, own),
            stdin=stdin.encode() if isinstance(stdin, str) else stdin,
            own=own,
        )
        ran = Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert ran.code == code, ran
        assert "Traceback" not in ran.err, ran.err
        assert "internal error" not in ran.err, ran.err
        if code in (1, 2, 3, 4, 5) and arguments:
            assert ran.err.startswith("topics"), ran.err
            assert ran.err.count("\n") == lines, ran.err
        return ran

    def start(self, *arguments: object, **options: Any) -> "subprocess.Popen[bytes]":
        """Start it, for what is done to a command that runs; `options` are those of Popen."""
        env = environment(self.url, options.pop("env", {}))
        return subprocess.Popen([TOPICS, *map(str, arguments)], env=env, **options)
