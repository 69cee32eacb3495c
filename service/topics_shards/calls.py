"""The methods that may be called on a shard of another process."""

from typing import Final

from topics_service.api.groups import GroupsApi
from topics_service.api.parts import PartsApi
from topics_service.api.placements import PlacementsApi
from topics_service.api.queues import QueuesApi
from topics_service.api.routers import RoutersApi
from topics_service.api.sql.consume import ConsumeApi
from topics_service.api.sql.executor import SqlApi
from topics_service.api.topics import TopicsApi
from topics_service.api.watch import WatchApi
from topics_shards.process import ProcessApi
from topics_shards.watches import ShardedWatches

CALLS: Final = (
    TopicsApi.put_topic,
    TopicsApi.get_topic,
    TopicsApi.list_topics,
    TopicsApi.delete_topic,
    TopicsApi.append,
    TopicsApi.diff,
    TopicsApi.bulk,
    TopicsApi.news,
    TopicsApi.locate,
    TopicsApi.delete_records,
    PartsApi.describe,
    PartsApi.extend,
    PartsApi.adopt,
    PartsApi.drop,
    PartsApi.extents,
    QueuesApi.claim,
    QueuesApi.hand_over,
    QueuesApi.push,
    QueuesApi.stop_work,
    QueuesApi.ack,
    QueuesApi.nack,
    QueuesApi.extend,
    QueuesApi.redrive,
    QueuesApi.jobs,
    RoutersApi.get,
    RoutersApi.page,
    RoutersApi.make,
    RoutersApi.remove,
    RoutersApi.forwarded,
    RoutersApi.check,
    RoutersApi.check_owner,
    RoutersApi.source_end,
    RoutersApi.upstream,
    RoutersApi.head,
    RoutersApi.pull,
    RoutersApi.having,
    RoutersApi.place,
    RoutersApi.set_place,
    RoutersApi.remove_place,
    GroupsApi.page,
    GroupsApi.get,
    GroupsApi.delete,
    GroupsApi.consume,
    GroupsApi.commit,
    GroupsApi.positions,
    GroupsApi.reset,
    GroupsApi.delete_positions,
    PlacementsApi.reserve,
    PlacementsApi.release,
    PlacementsApi.find,
    ConsumeApi.consume,
    ConsumeApi.ack,
    SqlApi.execute,
    ProcessApi.report,
    ProcessApi.stored_users,
    ProcessApi.replace_users,
    WatchApi.follow,
    WatchApi.unfollow,
    ShardedWatches.open_here,
    ShardedWatches.recall_here,
    ShardedWatches.remove_sessions_here,
)

READS: Final = frozenset(
    {
        TopicsApi.get_topic,
        TopicsApi.list_topics,
        TopicsApi.diff,
        TopicsApi.bulk,
        TopicsApi.news,
        TopicsApi.locate,
        QueuesApi.jobs,
        RoutersApi.get,
        RoutersApi.page,
        RoutersApi.forwarded,
        RoutersApi.check,
        RoutersApi.check_owner,
        RoutersApi.upstream,
        RoutersApi.head,
        RoutersApi.having,
        RoutersApi.place,
        GroupsApi.page,
        GroupsApi.get,
        GroupsApi.consume,
        GroupsApi.positions,
        ConsumeApi.consume,
        ProcessApi.report,
        ProcessApi.stored_users,
        ProcessApi.replace_users,  # as often as it may be
        ShardedWatches.recall_here,
    }
)
"""Those that change nothing: one that was lost with its connection is made again."""
