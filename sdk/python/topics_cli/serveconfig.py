"""The output of `topics serve --print-config`: the effective value and the source of every setting."""

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from topics_cli import output

if TYPE_CHECKING:
    from topics_server.settings import Settings

_FILES = {
    "TOPICS_API_KEYS": "TOPICS_API_KEYS_FILE",
    "TOPICS_SQL_USERS": "TOPICS_SQL_USERS_FILE",
    "TOPICS_JWT_SECRET": "TOPICS_JWT_PUBLIC_KEY_FILE",
}
"""Secrets, and the variables of files that may hold them instead."""


def show(settings: "Settings", flags: Mapping[str, Any], how: str) -> None:
    """Print the settings, as a table (`text`) or an object with an entry for each (`json`). Secrets are not shown."""
    found = {}
    for setting in fields(settings):
        env, value = setting.metadata["env"], getattr(settings, setting.name)
        if flags.get(setting.name) is not None:
            origin = f"--{setting.name.replace('_', '-')}"
        elif env in os.environ:
            origin = "environment"
        else:
            origin = "default" if value == setting.default else "derived"
        found[env] = {"value": value, "from": origin}
    for secret, file in _FILES.items():
        if found[secret]["value"] is not None:
            found[secret] = {"value": "set, and not shown", "from": "environment" if os.environ.get(secret) else file}
    if how == "json":
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return
    cells = [(env, _text(each["value"]), each["from"]) for env, each in found.items()]
    output.table(("setting", "value", "from"), cells)


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value in (None, "") else str(value)
