"""`topics set`: change the configuration of a topic."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from topics_cli import config, output, server

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_client.models import TopicConfig


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "set",
        usage="topics set TOPIC FIELD=VALUE... [options]",
        description="Change fields of a topic's configuration, leaving the others unchanged. The "
        "configuration is read, changed and written back: of two concurrent changes, one may be lost.",
    )
    server.add_name(parser, "topic", help="the topic")
    fields = parser.add_argument(
        "assignments",
        nargs="*",
        metavar="FIELD=VALUE",
        help="such as ttl_ms=7d or cap_bytes=10GiB; an empty value (ttl_ms=) restores the server's default",
    )
    setattr(fields, "completer", _fields)  # noqa: B010  argcomplete's way, which argparse's types don't know
    parser.add_argument("--dry-run", action="store_true", help="show the changes without applying them")
    config.add_arguments(parser)
    output.add_arguments(parser, table=False)
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def _fields(prefix: str, **_: object) -> list[str]:
    return [f"{name}=" for name in config.FIELDS if name.startswith(prefix)]


def run(arguments: argparse.Namespace) -> int:
    """Change; exit codes as in docs/cli.md."""
    return server.run_command("set", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    wanted = config.given(arguments)
    for text in arguments.assignments:
        name, value = config.assigned(text)
        if name in wanted:
            raise server.UsageError(f"{name} is given twice")
        wanted[name] = value
    if not wanted:
        raise server.UsageError("nothing to change: give FIELD=VALUE")
    with server.client(arguments) as client:
        before = client.get_topic(arguments.topic, touch=False).config
        after = replace(before, **{name: _value(name, value) for name, value in wanted.items()})
        if not arguments.dry_run:
            after = client.put_topic(arguments.topic, after).config
    _show(arguments, before, after)
    return 0


def _value(name: str, value: Any) -> Any:
    if value is None:
        return () if name == "retain_until_acked_by" else None
    return config.FIELDS[name].clamped(value)


def _show(arguments: argparse.Namespace, before: "TopicConfig", after: "TopicConfig") -> None:
    from topics_cli import json_output

    changed = {
        name: {"before": config.value(before, name), "after": config.value(after, name)}
        for name in config.FIELDS
        if config.value(before, name) != config.value(after, name)
    }
    if arguments.json:
        output.line({"topic": arguments.topic, "changed": changed, "config": json_output.config(after)})
        return
    for name, values in changed.items():
        after_text = config.text(values["after"])
        if arguments.dry_run:
            after_text = f"would be {'the default' if values['after'] in (None, ()) else after_text}"
        print(f"{arguments.topic}: {name} {config.text(values['before'])} -> {after_text}")
    if not changed:
        print(f"{arguments.topic}: no changes")
