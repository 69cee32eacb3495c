"""`topics split`: give a data directory shards, for several processes. The implementation is imported on use."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topics_cli import output, server
from topics_cli.types import whole
from topics_client.installation import needs

if TYPE_CHECKING:
    from topics_cli.types import Commands


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "split",
        description="Split a data directory into shards, so that several processes can serve it (topics serve "
        "--processes). The server must be stopped. The directory as it was stays beside it, as DIR.unsplit; both share "
        "most of their files. Exit status: 0 split; 1 not split, and as it was; 2 usage error. See docs/processes.md.",
    )
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="the data directory of a server")
    parser.add_argument("--shards", type=whole, default=8, metavar="N", help="number of shards, 1 to 64 (default: 8)")
    output.add_arguments(parser, table=False)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Split; 0 if it is done, 1 if not, 2 for wrong usage."""
    with needs("server"):
        from topics_server import split
    return server.run_command("split", lambda: _split(arguments, split))


def _split(arguments: argparse.Namespace, split: Any) -> int:
    if not 1 <= arguments.shards <= 64:
        raise server.UsageError("--shards is a number from 1 to 64")
    count: int = arguments.shards

    def tell(shard: int) -> None:
        if not arguments.json:
            print(f"shard {shard} of {count} is ready")

    try:
        report = split.split(arguments.data_dir, count, tell)
    except NotADirectoryError as error:
        raise server.UsageError(f"no data directory {error.filename}") from error
    except split.SplitError as error:
        return server.complain("split", str(error))
    if arguments.json:
        output.line({"shards": count, "topics": report.topics, "before": str(report.before)})
        return 0
    topics = output.counted(sum(report.topics), "topic")
    print(f"{arguments.data_dir} has {count} shards with {topics}; as it was it is in {report.before}")
    return 0
