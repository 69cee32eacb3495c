"""Zones that topics name: the partitions of such a topic lie in the shards that prefer its zone when it is made."""

from collections.abc import Callable, Sequence

from topics_service.engine.checks import placed_otherwise
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.names import check_zone
from topics_service.engine.placement import placement_in_zone, zone_of

Zones = Callable[[str], Sequence[int]]
"""Finds the shards that prefer a zone."""


def no_zones(_zone: str) -> Sequence[int]:
    """The shards of a server that is no node of a cluster."""
    return ()


def check_zoned(zone: str, placement: str) -> None:
    """Raise `invalid_request` for what is no name of a zone, or a placement group beside it."""
    check_zone(zone)
    if placement:
        raise invalid("a topic names a placement or a zone, not both: topics of a group lie in the shard of its name")


def placed_in(name: str, zone: str, zones: Zones, known: str | None) -> str:
    """The placement of a topic in a zone: the one that is `known` of an existing topic, or over all shards there.

    Raises `topic_exists_incompatible` for a topic that is placed otherwise, and `zone_not_found` if no shard prefers
    the zone.
    """
    if known is not None:
        if zone_of(known) != zone:
            raise placed_otherwise(name, known)
        return known
    shards = zones(zone)
    if not shards:
        message = f'no shard prefers zone "{zone}": topics cluster zone lets shards of a cluster prefer one'
        raise TopicsError(Reason.ZONE_NOT_FOUND, message, {"zone": zone})
    return placement_in_zone(zone, shards)
