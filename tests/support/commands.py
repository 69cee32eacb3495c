"""`topics backup`, `topics verify` and the like, forked where an `exec` would prove nothing more.

A start by `exec` costs half a second of CPU, most of it for imports. The first run of each command, and of each action
of `backup`, is by `exec`, so that every one of them is also reached through the program that is installed.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from support.preloaded import Preloaded
from support.server import TOPICS

COMMANDS: Final = Preloaded(
    "grpc._channel",
    "topics_backup.creation",
    "topics_backup.objects",
    "topics_backup.pointintime",
    "topics_cli.backup",
    "topics_cli.progress",
    "topics_cli.repair",
    "topics_client.connection",
    "topics_server.repair",
)
FORKED: Final = {"backup", "corruption"}
"""Folders of tests whose commands are forked from a process that has imported what they need."""
_READ_WHEN_USED: Final = ("AWS_", "TOPICS_", "XDG_")  # variables that no import reads

_exec_done: set[tuple[str, ...]] = set()


def run(
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: bytes = b"",
    own: Mapping[str, str] = {},
    timeout: float = 60,
) -> "subprocess.CompletedProcess[bytes]":
    """Run `topics ARGUMENTS` in the environment `env`, in which `own` are the variables of this test's choice."""
    if not stdin and _may_be_forked(arguments, own):
        return COMMANDS.run(arguments, env, timeout)
    return run_by_exec(arguments, env, stdin=stdin, timeout=timeout)


def run_by_exec(
    arguments: Sequence[str], env: Mapping[str, str], *, stdin: bytes = b"", timeout: float = 60
) -> "subprocess.CompletedProcess[bytes]":
    """Run the program that is installed."""
    command = [str(TOPICS), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=timeout, check=False, env=env)


def _may_be_forked(arguments: Sequence[str], own: Mapping[str, str]) -> bool:
    _, _, path = os.environ.get("PYTEST_CURRENT_TEST", "").partition("tests/")
    if path.partition("/")[0] not in FORKED or not all(name.startswith(_READ_WHEN_USED) for name in own):
        return False
    action = tuple(arguments[: 2 if arguments[:1] == ["backup"] else 1])
    if action in _exec_done:
        return True
    _exec_done.add(action)
    return False
