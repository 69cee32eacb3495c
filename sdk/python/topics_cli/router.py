"""`topics router`: manage routers, which copy records from one topic to another."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics_cli import confirm, output, server

if TYPE_CHECKING:
    from topics_cli.types import Commands


def add_parser(commands: "Commands") -> None:
    """Register the subcommand and its own."""
    parser = commands.add_parser(
        "router",
        description="Manage routers, which copy the records of a source topic to another topic inside the server.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list routers", description="List routers and their lag.")
    server.add_name(listing, "prefix", kind="routers", nargs="?", default="", help="only names with this prefix")
    server.add_name(listing, "--source", metavar="TOPIC", default="", help="only routers from this topic")
    server.add_name(listing, "--dest", metavar="TOPIC", default="", help="only routers to this topic")
    output.add_arguments(listing)
    _finish(listing, _ls)

    info = actions.add_parser("info", help="show a router", description="Show a router and its progress.")
    server.add_name(
        info, "router", kind="routers", help="name of the router, such as 'orders->audit' (quoted for the shell)"
    )
    output.add_arguments(info, table=False)
    _finish(info, _info)

    create = actions.add_parser(
        "create",
        help="create a router",
        description="Create a router from SOURCE to DEST, or reconfigure an existing one. It starts with the records "
        "appended from now on.",
    )
    server.add_name(create, "source", help="topic to copy from, created if missing")
    server.add_name(create, "dest", help="topic to copy to, created if missing")
    create.add_argument("--name", metavar="NAME", help="name of the router (default: SOURCE->DEST)")
    tags = create.add_mutually_exclusive_group()
    tags.add_argument("--tag", metavar="TAG", help="copy only records with exactly this tag")
    tags.add_argument("--tag-prefix", metavar="TEXT", help="copy only records whose tag has this prefix")
    create.add_argument("--backfill", action="store_true", help="start a new router at the earliest record")
    create.add_argument(
        "--exactly-once", action="store_true", help="copy each record exactly once, even if the router is recreated"
    )
    create.add_argument("--no-preserve-node", action="store_true", help="do not copy the node of records")
    create.add_argument("--no-preserve-tag", action="store_true", help="do not copy the tag of records")
    create.add_argument("--no-create-dest", action="store_true", help="require an existing destination")
    create.add_argument("--allow-cycle", action="store_true", help="allow a cycle of routers")
    output.add_arguments(create, table=False)
    _finish(create, _create)

    remove = actions.add_parser("rm", help="remove routers", description="Remove routers. The copies stay.")
    server.add_name(remove, "router", kind="routers", nargs="+", help="one or more routers")
    remove.add_argument("--if-exists", action="store_true", help="ignore missing routers")
    confirm.add_arguments(remove)
    output.add_arguments(remove, table=False)
    _finish(remove, _rm)


def _finish(parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], int]) -> None:
    server.add_arguments(parser)
    parser.set_defaults(run=lambda arguments: server.run_command(f"router {arguments.action}", lambda: work(arguments)))


def _ls(arguments: argparse.Namespace) -> int:
    from topics_cli import json_output

    shown = {"router": None, "source": None, "dest": None, "guarantee": None, "forwarded_total": None}
    headings = ("router", "source", "dest", "guarantee", "forwarded", "lag")
    with server.client(arguments) as client:
        found = client.list_routers(arguments.prefix, source=arguments.source, dest=arguments.dest)
        rows = map(json_output.router_summary, found)
        if not output.rows(arguments, rows, shown | {"lag_records": None}, headings) and not arguments.json:
            output.note("no such routers")
    return 0


def _info(arguments: argparse.Namespace) -> int:
    from topics_cli import json_output

    with server.client(arguments) as client:
        found = json_output.router(client.get_router(arguments.router))
    if arguments.json:
        output.line(found)
        return 0
    rule = found["filter"]
    facts = {
        "router": found["router"],
        "source": found["source"],
        "dest": found["dest"],
        "filter": None if rule is None else f"tag {rule[2]}",
        "guarantee": found["guarantee"],
        "preserves": " and ".join(name for name in ("node", "tag") if found[f"preserve_{name}"]) or None,
        "allows cycles": "yes" if found["allow_cycle"] else "no",
        "forwarded": found["forwarded_total"],
        "lag": found["lag_records"],
        "last error": found["last_error"],
    }
    output.sections(arguments, {"": facts})
    return 0


def _create(arguments: argparse.Namespace) -> int:
    from topics_client.models import RouterConfig

    source, dest = arguments.source, arguments.dest
    name = f"{source}->{dest}" if arguments.name is None else arguments.name
    config = RouterConfig(
        source=source,
        dest=dest,
        tag=arguments.tag,
        tag_prefix=arguments.tag_prefix,
        guarantee="exactly_once" if arguments.exactly_once else "at_least_once",
        preserve_node=not arguments.no_preserve_node,
        preserve_tag=not arguments.no_preserve_tag,
        allow_cycle=arguments.allow_cycle,
    )
    with server.client(arguments) as client:
        created = client.put_router(name, config, create_dest=not arguments.no_create_dest, backfill=arguments.backfill)
    if arguments.json:
        output.line({"router": name, "created": created, "source": source, "dest": dest})
    else:
        print(f"{name}: {'created' if created else 'already exists, configuration updated'}")
    return 0


def _rm(arguments: argparse.Namespace) -> int:
    routers = list(dict.fromkeys(arguments.router))
    if confirm.is_required(arguments) and not confirm.is_confirmed(f"remove {', '.join(routers)}?"):
        return server.FAILED
    code = 0
    with server.client(arguments) as client:
        for router in routers:
            deleted = client.delete_router(router)
            if arguments.json:
                output.line({"router": router, "deleted": deleted})
            elif deleted:
                print(f"{router}: removed")
            if not deleted and not arguments.if_exists:
                text = f"router_not_found: {router} does not exist (use --if-exists to ignore this)"
                code = server.complain("router rm", text, server.NOT_FOUND)
    return code
