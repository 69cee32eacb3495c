"""`topics cluster`: make a cluster, check what it needs, show it, move its shards, finalize its format and restore its
moments. The implementation is imported on use."""

import argparse
import asyncio
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from topics_cli import cluster_moments, cluster_nodes, output, server
from topics_cli.types import positive
from topics_client.installation import needs

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_cluster.coordinator import Node
    from topics_cluster.s3 import S3Bucket

_ROUNDS: Final = 20
_SHARDS: Final = 8


def add_parser(commands: "Commands") -> None:
    """Register the subcommand and its own."""
    parser = commands.add_parser(
        "cluster",
        description="Make a cluster in an object store, check what it needs, show its nodes, move its shards, finish "
        "an upgrade, and restore any moment of it. See docs/cluster.md.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    init = _action(actions, "init", "make a cluster in an object store", _init)
    init.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="DIR",
        help="begin with the data directory of a stopped server, which stays as it is; --shards may split it",
    )
    init.add_argument(
        "--shards",
        type=positive,
        metavar="N",
        help="number of shards, at most 64, which never changes (default: 8; with --from that of DIR, or 1)",
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
    copy = _action(actions, "backup", "create a backup of the cluster as it is now, from its store", _backup)
    moments = _action(actions, "moments", "list the times that can be restored", _moments)
    cluster_moments.add_arguments(restore, copy, moments)
    for each in (init, check, finalize, restore, copy, moments):
        each.add_argument(
            "--store", metavar="URL", help="object store, such as s3://bucket/prefix (default: TOPICS_CLUSTER_STORE)"
        )
        each.add_argument("--cluster", metavar="NAME", help="name of the cluster (default: TOPICS_CLUSTER, or local)")
    nodes = cluster_nodes
    status = _action(actions, "status", "list the nodes of a cluster and its shards", nodes.status, table=True)
    move = _action(actions, "move", "hand a shard of a cluster to another node", nodes.move)
    nodes.add_move(move)
    drain = _action(actions, "drain", "move all shards away from a node, and keep them away", nodes.drain)
    nodes.add_drain(drain, waits=True)
    undrain = _action(actions, "undrain", "let a drained node own shards again", nodes.undrain)
    nodes.add_drain(undrain, waits=False)
    rebalance = _action(actions, "rebalance", "give each node its share of the shards now", nodes.rebalance)
    nodes.add_rebalance(rebalance)
    zone = _action(actions, "zone", "let shards of a cluster prefer owners in a zone", nodes.zone)
    nodes.add_zone(zone)
    for each in (status, move, drain, undrain, rebalance, zone):
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
    from topics_cluster import founding, identity
    from topics_cluster.bucket import BucketError
    from topics_cluster.checkpoint import CheckpointError
    from topics_cluster.probe import UnfitStoreError, probe
    from topics_server.split import SplitError, copied
    from topics_service.storage import shardfiles
    from topics_service.storage.store import StoreError

    if (arguments.shards or 1) > identity.MAX_SHARDS:
        raise server.UsageError(f"a cluster has {identity.MAX_SHARDS} shards at most")
    source: Path | None = None if arguments.source is None else arguments.source.absolute()

    async def make(count: int, directory: Path | None = source, split_of: Path | None = None) -> int | None:
        await probe(bucket)
        return await founding.make(bucket, count, directory, split_of)

    try:
        there = None if source is None else shardfiles.count_of(source)
        shards = arguments.shards or there or (_SHARDS if source is None else 1)
        if there is not None and there != shards:
            raise server.UsageError(f"{source} has {output.counted(there, 'shard')}, which never changes")
        if source is None or there is not None or shards == 1:
            size = asyncio.run(make(shards))
        else:
            with copied(source, shards) as directory:
                size = asyncio.run(make(shards, directory, source))
    except NotADirectoryError as error:
        return server.complain("cluster init", f"no data directory {error.filename}")
    except (BackupError, BucketError, CheckpointError, SplitError, StoreError, UnfitStoreError) as error:
        return server.complain("cluster init", str(error))
    if size is None:
        return server.complain("cluster init", f"there is a cluster at {url}")
    if arguments.json:
        output.line({"store": url, "bytes": size, "shards": shards})
    else:
        begins = f", which begins with {output.size(size)} of {arguments.source}" if arguments.source else ""
        of_shards = f" with {shards} shards" if shards > 1 else ""
        print(f"{url} is a cluster{of_shards}{begins}")
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


def _backup(arguments: argparse.Namespace) -> int:
    return cluster_moments.copy(arguments, *_bucket(arguments))


def _moments(arguments: argparse.Namespace) -> int:
    return cluster_moments.moments(arguments, _bucket(arguments)[0])


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
