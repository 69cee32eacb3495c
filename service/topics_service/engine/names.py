"""Topic names, and the identities and labels made from them (spec/rafka-topic-registry.txt)."""

import re

from msgspec import Struct

from topics_service.engine.errors import invalid

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", re.ASCII)
_KAFKA_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_ROUTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}", re.ASCII)
_ZONE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_NOT_SLUG = re.compile(r"[^a-z0-9]+")
_SLUG_MAX = 63
_GROUP_NAME_MAX = 255


class ResourcePrefix(Struct, frozen=True, kw_only=True):
    """The prefix of every rrl of this server, from TOPICS_ORG, TOPICS_ENV and TOPICS_CLUSTER."""

    org: str = "topics"
    env: str = "dev"
    cluster: str = "local"


def is_topic_name(name: str) -> bool:
    """Return whether `name` follows the rule of docs/contract.md, 3.1 (1 to 255 ASCII characters)."""
    return _NAME.fullmatch(name) is not None


def is_kafka_name(name: str) -> bool:
    """Return whether a Kafka client may create a topic of this name: Kafka's rule, 1 to 249 ASCII characters."""
    return _KAFKA_NAME.fullmatch(name) is not None and name not in (".", "..")


def is_name_of_any(name: str) -> bool:
    """Return whether there may be a topic of this name, whichever protocol it was made by."""
    return is_topic_name(name) or is_kafka_name(name)


def check_topic_name(name: str, *, by_kafka: bool = False) -> None:
    """Raise `invalid_request` unless a topic of this name may be made; Kafka clients may also begin it with a sign."""
    if not is_topic_name(name) and not (by_kafka and is_kafka_name(name)):
        raise invalid("a topic name is 1 to 255 characters from A-Z a-z 0-9 . _ : - and starts with a letter or digit")


def check_router_name(name: str) -> None:
    """Raise `invalid_request` unless `name` may name a router: as a topic, and `>` (docs/contract.md, 3.1)."""
    if _ROUTER_NAME.fullmatch(name) is None:
        raise invalid("a router name is 1 to 255 characters from A-Z a-z 0-9 . _ : > -, the first a letter or digit")


def check_group_name(name: str) -> None:
    """Raise `invalid_request` unless `name` may name a group: any text of 1 to 255 characters, as in Kafka."""
    if not 0 < len(name) <= _GROUP_NAME_MAX:
        raise invalid(f"a group name has 1 to {_GROUP_NAME_MAX} characters")


def check_placement(name: str) -> None:
    """Raise `invalid_request` unless `name` may name a placement group: as a topic, or empty for none."""
    if name and _NAME.fullmatch(name) is None:
        raise invalid("a placement is named as a topic is: 1 to 255 characters from A-Z a-z 0-9 . _ : -")


def check_zone(name: str) -> None:
    """Raise `invalid_request` unless `name` may name an availability zone."""
    if _ZONE.fullmatch(name) is None:
        raise invalid("a zone is named by 1 to 64 characters from A-Z a-z 0-9 . _ -, the first a letter or digit")


def narrow(prefix: str, allowed: tuple[str, ...] | None) -> list[str]:
    """Prefixes of the names that start with `prefix` and with one of `allowed` (None: any), disjoint and in order."""
    if allowed is None:
        return [prefix]
    narrowed: list[str] = []
    for other in sorted(allowed):
        longer, shorter = (other, prefix) if len(other) > len(prefix) else (prefix, other)
        if longer.startswith(shorter) and not (narrowed and longer.startswith(narrowed[-1])):
            narrowed.append(longer)
    return narrowed


def slug(name: str) -> str:
    """A label for URLs and paths: lower case, runs of anything but a-z and 0-9 become one hyphen, at most 63 long."""
    return _NOT_SLUG.sub("-", name.lower()).strip("-")[:_SLUG_MAX].rstrip("-")


def rrl(prefix: ResourcePrefix, name: str) -> str:
    """The resource locator `<org>/<env>/<cluster>/topics/<slug>`; it has slashes, so it never stands in a URL path."""
    return f"{prefix.org}/{prefix.env}/{prefix.cluster}/topics/{slug(name)}"
