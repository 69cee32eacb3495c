"""`topics cluster status`, `move`, `drain`, `undrain`, `rebalance` and `zone`: the nodes of a cluster that runs."""

import argparse
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from topics_cli import output, server
from topics_cli.types import seconds, whole

if TYPE_CHECKING:
    from topics_client.connection import Connection
    from topics_proto.v1.admin_service_pb2 import ClusterShard, GetClusterResponse

_MOVE_SECONDS: Final = 15.0  # the server gives up after 10
_WAIT_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.25


def add_move(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `move`."""
    parser.add_argument("node", metavar="NODE", help="name of the node that is to own it")
    parser.add_argument(
        "--shard", type=whole, metavar="S", help="number of the shard; may be left out where the cluster has one"
    )


def add_drain(parser: argparse.ArgumentParser, *, waits: bool) -> None:
    """Add the arguments of `drain` or `undrain`."""
    parser.add_argument("node", metavar="NODE", help="name of the node")
    if waits:
        _add_wait(parser, "the node owns no shard")


def add_rebalance(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `rebalance`."""
    parser.add_argument("--dry-run", action="store_true", help="show the moves, and make none")
    _add_wait(parser, "all shards are where they belong")


def add_zone(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `zone`."""
    parser.add_argument("shards", type=whole, nargs="+", metavar="SHARD", help="number of a shard")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--zone", metavar="ZONE", help="zone whose nodes are to own the shards while one of them lives")
    which.add_argument("--none", action="store_true", help="prefer no zone any more")


def _add_wait(parser: argparse.ArgumentParser, until: str) -> None:
    parser.add_argument(
        "--wait", type=seconds, default=_WAIT_SECONDS, metavar="S", help=f"seconds to wait until {until} (default: 60)"
    )


# ------------------------------------------------------------------ status


def status(arguments: argparse.Namespace) -> int:
    """List the nodes, and the shards if there are several."""
    with server.connected(arguments) as connection:
        found = _cluster(connection)
    if len(found.shards) == 1:
        of_nodes = ("node", "role", "epoch", "number", "zone", "grpc", "http", "kafka", "version", "formats")
        output.rows(arguments, _nodes_of_one_shard(found), dict.fromkeys(of_nodes))
    else:
        columns = (
            "node",
            "owns",
            "follows",
            "capacity",
            "drained",
            "zone",
            "grpc",
            "http",
            "kafka",
            "version",
            "formats",
        )
        shown = dict.fromkeys(columns) | {"drained": lambda drained: "yes" if drained else "-"}
        output.rows(arguments, _nodes(found), shown)
        if not arguments.json:
            print()
        of_shards = ("shard", "owner", "epoch", "number", "followers", "behind", "target", "zone")
        names = {"followers": lambda each: ",".join(follower["node"] for follower in each) or "-"}
        output.rows(arguments, _shards(found), dict.fromkeys(of_shards) | names)
    if not arguments.json:
        _tell(found)
    return 0


def _tell(found: "GetClusterResponse") -> None:
    """Notes on what is not as it should be."""
    for shard in found.shards:
        if not shard.owner:
            output.note(f"shard {shard.shard} has no owner")
        if shard.zone and all(node.zone != shard.zone for node in found.nodes):
            output.note(f"shard {shard.shard} prefers zone {shard.zone}, in which no node lives")
        if shard.wanted and shard.wanted != shard.owner:
            output.note(f"shard {shard.shard} is to be moved to {shard.wanted}")
    newest = min((node.newest_format for node in found.nodes), default=0)
    if newest > found.format > 0:
        output.note(f"the log has format {found.format}, all nodes read {newest}: see `topics cluster finalize`")


def _nodes_of_one_shard(found: "GetClusterResponse") -> list[dict[str, object]]:
    """A row for each node: its role, and the number of the log's object that it has."""
    shard = found.shards[0]
    followers = {each.node: each for each in shard.followers}
    rows: list[dict[str, object]] = []
    for node, ports in zip(found.nodes, _ports(found), strict=True):
        number: int | None = None
        if node.name == shard.owner:
            role, number = "owner" if shard.epoch else "taking over", shard.number
        elif (follower := followers.get(node.name)) is not None:
            role, number = "follower" if follower.caught_up else "catching up", follower.number or None
        else:
            role = "joining" if followers else "follower"
        epoch = shard.epoch if node.name == shard.owner else None
        rows.append(
            {"cluster": found.cluster, "node": node.name, "role": role, "epoch": epoch, "number": number}
            | {"drained": node.drained}
            | ports
        )
    return rows


def _nodes(found: "GetClusterResponse") -> list[dict[str, object]]:
    """A row for each node: the number of shards that it owns, and that it follows."""
    owns = Counter(shard.owner for shard in found.shards)
    follows = Counter(each.node for shard in found.shards for each in shard.followers)
    return [
        {
            "cluster": found.cluster,
            "node": node.name,
            "owns": owns[node.name],
            "follows": follows[node.name],
            "capacity": node.capacity,
            "drained": node.drained,
        }
        | ports
        for node, ports in zip(found.nodes, _ports(found), strict=True)
    ]


def _ports(found: "GetClusterResponse") -> list[dict[str, object]]:
    """The members of each node's row that do not depend on shards."""
    return [
        {
            "zone": node.zone or None,
            "grpc": node.grpc,
            "http": node.http,
            "kafka": node.kafka or None,
            "version": node.version,
            "formats": f"{node.oldest_format}-{node.newest_format}" if node.newest_format else None,
            "format": found.format or None,
        }
        for node in found.nodes
    ]


def _shards(found: "GetClusterResponse") -> list[dict[str, object]]:
    """A row for each shard; `behind` is of the follower that is nearest to the owner."""
    return [
        {
            "cluster": found.cluster,
            "shard": shard.shard,
            "owner": shard.owner or None,
            "epoch": shard.epoch or None,
            "number": shard.number,
            "followers": [
                {"node": each.node, "number": each.number or None, "caught_up": each.caught_up}
                for each in shard.followers
            ],
            "behind": _behind(shard),
            "target": shard.target if shard.target != shard.owner else None,
            "zone": shard.zone or None,
        }
        for shard in found.shards
    ]


def _behind(shard: "ClusterShard") -> int | None:
    known = [each.number for each in shard.followers if each.number]
    return max(0, shard.number - max(known)) if known else None


# ------------------------------------------------------------------- moves


def move(arguments: argparse.Namespace) -> int:
    """Hand one shard to a node."""
    with server.connected(arguments) as connection:
        count = len(_cluster(connection).shards) if arguments.shard is None else 0
        if count > 1:
            raise server.UsageError(f"the cluster has {count} shards: give --shard")
        epoch = _move(connection, arguments.shard or 0, arguments.node, arguments.timeout)
    if arguments.json:
        output.line({"node": arguments.node, "epoch": epoch, **({"shard": arguments.shard} if count != 1 else {})})
    else:
        shard = "the shard" if arguments.shard is None else f"shard {arguments.shard}"
        print(f"{arguments.node} owns {shard}, epoch {epoch}")
    return 0


def drain(arguments: argparse.Namespace) -> int:
    """Move all shards away from a node, and keep them away."""
    from topics_proto.v1.admin_service_pb2 import DrainNodeRequest

    with server.connected(arguments) as connection:
        connection.unary(connection.admin.DrainNode, DrainNodeRequest(node=arguments.node), timeout=_MOVE_SECONDS)
        ends = time.monotonic() + arguments.wait
        # A shard without an owner is one whose owner has lost its lease: it may be this node, and claim it again.
        while left := [shard.shard for shard in _cluster(connection).shards if shard.owner in ("", arguments.node)]:
            if time.monotonic() > ends:
                shards = ", ".join(map(str, left))
                return server.complain(
                    "cluster drain",
                    f"{arguments.node} is drained, but {shards} can't leave yet: another node has to catch up first",
                )
            time.sleep(_PAUSE_SECONDS)
    if arguments.json:
        output.line({"node": arguments.node, "drained": True})
    else:
        print(f"{arguments.node} owns no shard, and gets none until `topics cluster undrain {arguments.node}`")
    return 0


def undrain(arguments: argparse.Namespace) -> int:
    """Let a node own shards again."""
    from topics_proto.v1.admin_service_pb2 import DrainNodeRequest

    with server.connected(arguments) as connection:
        request = DrainNodeRequest(node=arguments.node, undo=True)
        connection.unary(connection.admin.DrainNode, request, timeout=_MOVE_SECONDS)
    if arguments.json:
        output.line({"node": arguments.node, "drained": False})
    else:
        print(f"{arguments.node} may own shards")
    return 0


def rebalance(arguments: argparse.Namespace) -> int:
    """Move shards to the nodes that the placement names, one by one."""
    from topics_client.errors import TopicsError

    made = 0
    with server.connected(arguments) as connection:
        ends = time.monotonic() + arguments.wait
        while due := [shard for shard in _cluster(connection).shards if shard.target not in ("", shard.owner)]:
            if arguments.dry_run:
                for shard in due:
                    _show(arguments, shard, "would move")
                return 0
            shard, failure = due[0], None
            for each in due:
                try:
                    _move(connection, each.shard, each.target, arguments.timeout)
                    shard, failure = each, None
                    break
                except TopicsError as error:
                    if error.reason != "not_ready":
                        raise
                    failure = error
            if failure is None:
                made += 1
                _show(arguments, shard, "moved")
            elif time.monotonic() > ends:
                raise failure
            else:
                time.sleep(_PAUSE_SECONDS)
    if not made and not arguments.json:
        print("each node has its share")
    return 0


def zone(arguments: argparse.Namespace) -> int:
    """Let shards prefer owners in a zone, or in none."""
    from topics_proto.v1.admin_service_pb2 import SetShardZoneRequest

    name = "" if arguments.none else arguments.zone
    if not arguments.none and not name:
        raise server.UsageError("--zone needs a name; --none lets the shards prefer no zone")
    shards = sorted({*arguments.shards})
    with server.connected(arguments) as connection:
        request = SetShardZoneRequest(shards=shards, zone=name)
        reply = connection.unary(connection.admin.SetShardZone, request, timeout=_MOVE_SECONDS)
        found = _cluster(connection)
    if arguments.json:
        output.line({"shards": shards, "zone": name or None, "elsewhere": reply.elsewhere})
        return 0
    print(f"shards {', '.join(map(str, shards))} prefer {f'zone {name}' if name else 'no zone'}")
    if name and all(node.zone != name for node in found.nodes):
        output.note(f"no node lives in zone {name}: the shards stay elsewhere until there is one")
    elif reply.elsewhere:
        output.note(f"{reply.elsewhere} of them move there, one by one")
    return 0


def _show(arguments: argparse.Namespace, shard: "ClusterShard", what: str) -> None:
    if arguments.json:
        output.line({"shard": shard.shard, "from": shard.owner or None, "to": shard.target, "moved": what == "moved"})
    else:
        print(f"shard {shard.shard} {what} from {shard.owner or 'nowhere'} to {shard.target}")


def _cluster(connection: "Connection") -> "GetClusterResponse":
    from topics_proto.v1.admin_service_pb2 import GetClusterRequest

    found: GetClusterResponse = connection.unary(connection.admin.GetCluster, GetClusterRequest())
    return found


def _move(connection: "Connection", shard: int, node: str, timeout: float) -> int:
    from topics_proto.v1.admin_service_pb2 import MoveShardRequest

    request = MoveShardRequest(shard=shard, node=node)
    return int(connection.unary(connection.admin.MoveShard, request, timeout=max(timeout, _MOVE_SECONDS)).epoch)
