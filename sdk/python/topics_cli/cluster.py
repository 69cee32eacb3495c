"""`topics cluster`: make a cluster, check what it needs, show it, move its shard, finalize its format and restore its
moments. The implementation is imported on use."""

import argparse
import asyncio
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from topics_cli import cluster_moments, output, server
from topics_cli.types import positive
from topics_client.installation import needs

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_cluster.coordinator import Node
    from topics_cluster.s3 import S3Bucket
    from topics_proto.v1.admin_service_pb2 import GetClusterResponse

_ROUNDS: Final = 20
_MOVE_SECONDS: Final = 15.0  # the server gives up after 10


def add_parser(commands: "Commands") -> None:
    """Register the subcommand and its own."""
    parser = commands.add_parser(
        "cluster",
        description="Make a cluster in an object store, check what it needs, show its nodes, move its shard, finish an "
        "upgrade, and restore any moment of it. See docs/cluster.md.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    init = _action(actions, "init", "make a cluster in an object store", _init)
    init.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="DIR",
        help="begin with the data directory of a stopped server, which stays as it is",
    )
    check = _action(actions, "check", "check that an object store and an etcd are fit for a cluster", _check)
    check.add_argument(
        "--rounds",
        type=positive,
        default=_ROUNDS,
        metavar="N",
        help=f"number of races, in each of which 8 writers create one object (default: {_ROUNDS})",
    )
    finalize = _action(actions, "finalize", "write the newest format of the log from now on", _finalize)
    for each in (check, finalize):
        each.add_argument(
            "--etcd",
            metavar="ADDRESSES",
            help="comma-separated host:port of the members of etcd (default: TOPICS_CLUSTER_ETCD)",
        )
    restore = _action(actions, "restore", "restore any moment that the log covers to a new data directory", _restore)
    cluster_moments.add_arguments(restore)
    moments = _action(actions, "moments", "list the times that can be restored", _moments)
    for each in (init, check, finalize, restore, moments):
        each.add_argument(
            "--store", metavar="URL", help="object store, such as s3://bucket/prefix (default: TOPICS_CLUSTER_STORE)"
        )
        each.add_argument("--cluster", metavar="NAME", help="name of the cluster (default: TOPICS_CLUSTER, or local)")
    status = _action(actions, "status", "list the nodes of a cluster, and who owns its shard", _status, table=True)
    move = _action(actions, "move", "hand the shard of a cluster to another node", _move)
    move.add_argument("node", metavar="NODE", help="name of the node that is to own it")
    for each in (status, move):
        server.add_arguments(each)


def _action(
    actions: "Commands", name: str, what: str, work: Callable[[argparse.Namespace], int], *, table: bool = False
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    output.add_arguments(parser, table=table)
    parser.set_defaults(run=lambda arguments: server.run_command(f"cluster {name}", lambda: work(arguments)))
    return parser


def _bucket(arguments: argparse.Namespace) -> "tuple[S3Bucket, str]":
    """Return the bucket of the cluster, and its URL."""
    with needs("cluster"):
        from topics_cluster.s3 import S3Bucket
        from topics_server.setting_kinds import read_store
    given = arguments.store or os.environ.get("TOPICS_CLUSTER_STORE")
    if not given:
        raise server.UsageError("no object store: give --store, or set TOPICS_CLUSTER_STORE")
    try:
        url = f"{read_store(given)}/{_name(arguments)}"
    except ValueError as error:
        raise server.UsageError(f"{given} is not {error}") from None
    return S3Bucket(url), url


def _name(arguments: argparse.Namespace) -> str:
    return str(arguments.cluster or os.environ.get("TOPICS_CLUSTER") or "local")


def _members(arguments: argparse.Namespace) -> list[str]:
    """Return the addresses of etcd; none if there are none."""
    from topics_server.setting_kinds import read_members

    etcd = arguments.etcd or os.environ.get("TOPICS_CLUSTER_ETCD")
    try:
        return read_members(etcd).split(",") if etcd else []
    except ValueError as error:
        raise server.UsageError(f"{etcd} is not {error}") from None


def _init(arguments: argparse.Namespace) -> int:
    bucket, url = _bucket(arguments)
    from topics_backup.errors import BackupError
    from topics_cluster import identity
    from topics_cluster.bucket import BucketError
    from topics_cluster.checkpoint import CheckpointError
    from topics_cluster.founding import check_empty, found
    from topics_cluster.probe import UnfitStoreError, probe
    from topics_service.storage.boot import boot_id
    from topics_service.storage.store import StoreError

    async def make() -> int | None:
        """Make it, and return the bytes that it begins with; None if there is a cluster already."""
        await probe(bucket)
        if await bucket.get(identity.NAME) is not None:
            return None
        await check_empty(bucket, 0)
        size = 0
        if arguments.source is not None:  # first: a node that starts meanwhile finds no cluster yet
            made = await found(bucket, 0, arguments.source.absolute(), "init", boot_id())
            size = sum(file.size for file in made.files)
        return size if await identity.create(bucket) else None

    try:
        size = asyncio.run(make())
    except (BackupError, BucketError, CheckpointError, StoreError, UnfitStoreError) as error:
        return server.complain("cluster init", str(error))
    if size is None:
        return server.complain("cluster init", f"there is a cluster at {url}")
    if arguments.json:
        output.line({"store": url, "bytes": size})
    else:
        begins = f", which begins with {output.size(size)} of {arguments.source}" if arguments.source else ""
        print(f"{url} is a cluster{begins}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    bucket, url = _bucket(arguments)
    from topics_cluster.bucket import BucketError
    from topics_cluster.coordinator import CoordinatorError
    from topics_cluster.etcd import EtcdCoordinator
    from topics_cluster.probe import WRITERS, UnfitStoreError, probe, race

    members = _members(arguments)

    def tell(what: str, text: str, **facts: object) -> None:
        if arguments.json:
            output.line({"check": what, "passed": True, **facts})
        else:
            print(text)

    async def check() -> None:
        await probe(bucket)
        tell("create", f"{url}: a second create of an object is refused", store=url)
        await race(bucket, arguments.rounds)
        races = output.counted(arguments.rounds, "race")
        tell("race", f"{url}: {races} of {WRITERS} writers had one winner each", store=url, rounds=arguments.rounds)
        for member in members:
            coordinator = EtcdCoordinator([member], "check")
            try:
                session = await coordinator.session(2)
                await session.close()
            finally:
                await coordinator.close()
            tell("etcd", f"etcd {member}: grants leases", member=member)

    try:
        asyncio.run(check())
    except (BucketError, CoordinatorError, UnfitStoreError) as error:
        return server.complain("cluster check", str(error))
    if not members and not arguments.json:
        output.note("etcd was not checked: give --etcd, or set TOPICS_CLUSTER_ETCD")
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    return cluster_moments.restore(arguments, _bucket(arguments)[0])


def _moments(arguments: argparse.Namespace) -> int:
    return cluster_moments.moments(arguments, _bucket(arguments)[0])


def _status(arguments: argparse.Namespace) -> int:
    from topics_proto.v1.admin_service_pb2 import GetClusterRequest

    with server.connected(arguments) as connection:
        found = connection.unary(connection.admin.GetCluster, GetClusterRequest())
    rows = _rows(found)
    columns = dict.fromkeys(("node", "role", "epoch", "number", "zone", "grpc", "http", "kafka", "version", "formats"))
    output.rows(arguments, rows, columns)
    if not arguments.json:
        for shard in found.shards:
            if not shard.owner:
                output.note(f"shard {shard.shard} has no owner")
            if shard.wanted and shard.wanted != shard.owner:
                output.note(f"shard {shard.shard} is to be moved to {shard.wanted}")
        newest = min((node.newest_format for node in found.nodes), default=0)
        if newest > found.format > 0:
            output.note(f"the log has format {found.format}, all nodes read {newest}: see `topics cluster finalize`")
    return 0


def _rows(found: "GetClusterResponse") -> list[dict[str, object]]:
    """A row for each node: its role, and the number of the log's object that it has."""
    shard = found.shards[0]
    followers = {each.node: each for each in shard.followers}
    rows: list[dict[str, object]] = []
    for node in found.nodes:
        number: int | None = None
        if node.name == shard.owner:
            role, number = "owner" if shard.epoch else "taking over", shard.number
        elif (follower := followers.get(node.name)) is not None:
            role, number = "follower" if follower.caught_up else "catching up", follower.number
        else:
            role = "joining" if followers else "follower"
        rows.append(
            {
                "cluster": found.cluster,
                "node": node.name,
                "role": role,
                "epoch": shard.epoch if node.name == shard.owner else None,
                "number": number,
                "zone": node.zone or None,
                "grpc": node.grpc,
                "http": node.http,
                "kafka": node.kafka or None,
                "version": node.version,
                "formats": f"{node.oldest_format}-{node.newest_format}" if node.newest_format else None,
                "format": found.format or None,
            }
        )
    return rows


def _move(arguments: argparse.Namespace) -> int:
    from topics_proto.v1.admin_service_pb2 import MoveShardRequest

    with server.connected(arguments) as connection:
        request = MoveShardRequest(node=arguments.node)
        timeout = max(arguments.timeout, _MOVE_SECONDS)
        done = connection.unary(connection.admin.MoveShard, request, timeout=timeout)
    if arguments.json:
        output.line({"node": arguments.node, "epoch": done.epoch})
    else:
        print(f"{arguments.node} owns the shard, epoch {done.epoch}")
    return 0


def _finalize(arguments: argparse.Namespace) -> int:
    bucket, url = _bucket(arguments)
    members = _members(arguments)
    if not members:
        raise server.UsageError("no etcd: give --etcd, or set TOPICS_CLUSTER_ETCD")
    from topics_cluster import formats, identity
    from topics_cluster.bucket import BucketError
    from topics_cluster.coordinator import CoordinatorError
    from topics_cluster.etcd import EtcdCoordinator

    async def finalize() -> tuple[int, int]:
        """Return the format that was final, and the one that is."""
        await identity.load(bucket)
        before = await formats.final(bucket)
        coordinator = EtcdCoordinator(members, _name(arguments))

        async def nodes() -> Collection["Node"]:
            return (await coordinator.view()).nodes.values()

        try:
            return before, await formats.finalize(bucket, nodes)
        finally:
            await coordinator.close()

    try:
        before, now = asyncio.run(finalize())
    except (BucketError, CoordinatorError, identity.IdentityError, formats.FormatError) as error:
        return server.complain("cluster finalize", str(error))
    if arguments.json:
        output.line({"store": url, "format": now, "before": before})
    elif now == before:
        print(f"{url}: format {now} was final before")
    else:
        print(f"{url}: format {now} is final, new owners write it")
    return 0
