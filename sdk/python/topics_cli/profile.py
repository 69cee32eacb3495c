"""`topics profile`: named server profiles."""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from topics_cli import output, profiles, server

if TYPE_CHECKING:
    from topics_cli.types import Commands

_ORDER = """\
Server of a command: --server or --profile, else TOPICS_URL, else the active profile, else topics://127.0.0.1:4001.
API key: that of --profile, else the environment variable TOPICS_API_KEY (or --key-env), else that of the URL or of the
active profile. The key of a profile is sent only to its own server.
"""


def add_parser(commands: "Commands") -> None:
    """Register the subcommand and its own."""
    parser = commands.add_parser(
        "profile",
        description="Manage named server profiles, in $XDG_CONFIG_HOME/topics/profiles.json (default: ~/.config), "
        "which only the user may read.",
        epilog=_ORDER,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list profiles", description="List profiles. Keys are not shown.")
    output.add_arguments(listing)
    _finish(listing, _list)

    add = actions.add_parser(
        "add", help="create a profile", description="Create the profile NAME for the server at URL."
    )
    add.add_argument("name", metavar="NAME", help="name of the profile")
    add.add_argument("url", metavar="URL", help="topics://HOST:PORT, topics+tls://HOST:PORT?ca=FILE, or HOST:PORT")
    keys = add.add_mutually_exclusive_group()
    keys.add_argument("--ask-key", action="store_true", help="store a key, read from the terminal or standard input")
    keys.add_argument("--key-env", metavar="NAME", help="read the key from this environment variable at each use")
    add.add_argument("--use", action="store_true", help="make it the active profile")
    add.add_argument("--replace", action="store_true", help="overwrite an existing profile")
    output.add_arguments(add, table=False)
    _finish(add, _add)

    use = actions.add_parser(
        "use", help="select the active profile", description="Make NAME the active profile, used by default."
    )
    use.add_argument("name", metavar="NAME", nargs="?", help="the profile")
    use.add_argument("--none", action="store_true", help="deactivate the active profile")
    output.add_arguments(use, table=False)
    _finish(use, _use)

    show = actions.add_parser(
        "show",
        help="show a profile, or the current server",
        description="Show the profile NAME, or the server that commands call now and its origin. Keys are not shown.",
    )
    show.add_argument("name", metavar="NAME", nargs="?", help="the profile")
    output.add_arguments(show, table=False)
    _finish(show, _show)

    remove = actions.add_parser("remove", help="remove profiles", description="Remove profiles and their keys.")
    remove.add_argument("name", metavar="NAME", nargs="+", help="one or more profiles")
    output.add_arguments(remove, table=False)
    _finish(remove, _remove)


def _finish(parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], int]) -> None:
    parser.set_defaults(
        run=lambda arguments: server.run_command(f"profile {arguments.action}", lambda: work(arguments))
    )


def _list(arguments: argparse.Namespace) -> int:
    known = profiles.load()
    rows = [_row(name, each, used=name == known.used) for name, each in sorted(known.found.items())]
    shown: dict[str, Any] = {"used": lambda used: "*" if used else "", "profile": None, "server": None, "key": None}
    if not output.rows(arguments, rows, shown, ("used", "profile", "server", "key")) and not arguments.json:
        output.note("no profiles; create one with topics profile add NAME URL")
    return 0


def _row(name: str, found: profiles.Profile, *, used: bool) -> dict[str, Any]:
    """A profile, with the source of its key; never the key itself."""
    key = "stored" if found.key else f"${found.key_env}" if found.key_env else None
    return {"profile": name, "server": found.server, "key": key, "used": used}


def _add(arguments: argparse.Namespace) -> int:
    name, known = arguments.name, profiles.load()
    if not name or name.startswith("-") or output.clean(name) != name:
        raise server.UsageError(f"{name!r} is not a name for a profile")
    if name in known.found and not arguments.replace:
        raise ValueError(f"the profile {name} already exists; use --replace to overwrite it")
    url, key = server.without_key(arguments.url)
    if arguments.ask_key:
        key = _asked(name)
    elif arguments.key_env:
        key = None
    known.found[name] = profiles.Profile(url, key, arguments.key_env)
    if arguments.use:
        known.used = name
    profiles.save(known)
    _report(
        arguments, known, name, "in use" if known.used == name else f"added; activate it with topics profile use {name}"
    )
    return 0


def _asked(name: str) -> str:
    if sys.stdin is not None and sys.stdin.isatty():
        from getpass import getpass

        key = getpass(f"key of {name}: ")
    else:
        key = sys.stdin.readline() if sys.stdin is not None else ""
    key = key.strip()
    if not (key and key.isascii() and key.isprintable()):
        raise ValueError("a key is one line of printable ASCII")
    return key


def _use(arguments: argparse.Namespace) -> int:
    if (arguments.name is None) != arguments.none:
        raise server.UsageError("give either NAME or --none")
    known = profiles.load()
    if arguments.none:
        known.used = None
        profiles.save(known)
        if not arguments.json:
            print("no profile is in use")
        return 0
    server.profile(arguments.name, known)
    known.used = arguments.name
    profiles.save(known)
    _report(arguments, known, arguments.name, f"in use: {known.found[arguments.name].server}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    known = profiles.load()
    if arguments.name is not None:
        row = _row(arguments.name, server.profile(arguments.name, known), used=arguments.name == known.used)
        facts = row | {"key": row["key"] or "none", "used": "yes" if row["used"] else "no"}
    else:
        endpoint = server.endpoint(argparse.Namespace(server=None, profile=None, key_env="TOPICS_API_KEY"))
        found = server.parsed(endpoint)
        row = {"server": str(found), "from": endpoint.origin, "key": "set" if found.key else None}
        facts = row | {"key": "set, and not shown" if found.key else "none"}
    if arguments.json:
        output.line(row)
    else:
        output.sections(arguments, {"": facts})
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    known = profiles.load()
    for name in arguments.name:
        server.profile(name, known)
    for name in dict.fromkeys(arguments.name):
        del known.found[name]
    if known.used not in known.found:
        known.used = None
    profiles.save(known)
    for name in dict.fromkeys(arguments.name):
        if arguments.json:
            output.line({"profile": name, "removed": True})
        else:
            print(f"{output.clean(name)}: removed")
    return 0


def _report(arguments: argparse.Namespace, known: profiles.Profiles, name: str, text: str) -> None:
    if arguments.json:
        output.line(_row(name, known.found[name], used=name == known.used))
    else:
        print(f"{output.clean(name)}: {text}")
