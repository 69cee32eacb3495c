"""`python -m bench [--only GROUP]`: run, print the table, write docs/benchmarks.md."""

import argparse
import sys
import tempfile
from pathlib import Path

from bench import (
    analytics,
    clients,
    cluster,
    cluster_shards,
    grpc_streams,
    http,
    kafka,
    length,
    live_queries,
    many_topics,
    nodes,
    owners,
    pgwire,
    processes,
    queue,
    routers,
    scale,
    sdk,
    shard_pauses,
    shards,
    size,
    spark,
    sql,
    sql_pauses,
    table,
    tags,
    tools,
    watch,
)

_GROUPS = {
    "http": http.run,
    "grpc": grpc_streams.run,
    "clients": clients.run,
    "sdk": sdk.run,
    "watch": watch.run,
    "routers": routers.run,
    "queue": queue.run,
    "kafka": kafka.run,
    "spark": spark.run,
    "pgwire": pgwire.run,
    "sql": sql.run,
    "sql_pauses": sql_pauses.run,
    "live_queries": live_queries.run,
    "analytics": analytics.run,
    "length": length.run,
    "tags": tags.run,
    "scale": scale.run,
    "size": size.run,
    "cluster": cluster.run,
    "cluster_shards": cluster_shards.run,
    "shard_pauses": shard_pauses.run,
    "many_topics": many_topics.run,
    "owners": owners.run,
    "shards": shards.run,
    "nodes": nodes.run,
    "processes": processes.run,
}
_ALONE = {"size"}
"""Run only when they are named."""


def main() -> int:
    """Run the groups; 1 if a load generator is missing."""
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("--only", choices=_GROUPS, help="run one group and leave the table of the page alone")
    only = parser.parse_args().only
    if not tools.have("wrk", "redis-server", "redis-benchmark"):
        print(f"bench: wrk and redis-server are {tools.MISSING}", file=sys.stderr)
        return 1
    rows = []
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as directory:
        for name, group in _GROUPS.items():
            if only == name or (only is None and name not in _ALONE):
                (Path(directory) / name).mkdir()
                rows += group(Path(directory) / name)
    print(table.markdown(rows))
    if only is None:
        table.write(rows)
    return 0


sys.exit(main())
