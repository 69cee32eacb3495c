"""Fields of a topic's configuration as arguments: flags of `topics create` and `set`, and FIELD=VALUE."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from topics_cli.server import UsageError
from topics_cli.types import milliseconds, size, whole

if TYPE_CHECKING:
    from topics_client.models import TopicConfig


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its parser, its value syntax, its help, and the bounds to which the server clamps it."""

    read: Callable[[str], Any]
    what: str
    help: str
    bounds: tuple[int, int] | None = None

    def clamped(self, value: Any) -> Any:
        """The value as stored by the server."""
        return value if self.bounds is None else max(self.bounds[0], min(value, self.bounds[1]))


def _word(*words: str) -> tuple[Callable[[str], str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return read, "|".join(words)


def _boolean(text: str) -> bool:
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return known[text.lower()]


def _integer(text: str) -> int:
    return -whole(text[1:]) if text.startswith("-") else whole(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


_DAY_MS: Final = 86_400_000

FIELDS: Final[Mapping[str, Field]] = {
    "type": Field(*_word("log", "queue"), "type of the topic; fixed once it exists"),
    "ttl_ms": Field(milliseconds, "TIME", "age at which records expire, such as 7d; 0: never"),
    "cap_records": Field(whole, "N", "maximum number of live records; 0: no limit"),
    "cap_bytes": Field(size, "SIZE", "maximum size of live records, such as 10GiB; 0: no limit"),
    "discard": Field(*_word("old", "reject"), "at a cap: evict the oldest records, or reject the write"),
    "durability": Field(*_word("ephemeral", "memory", "disk", "fsync"), "durability of acknowledged writes"),
    "priority": Field(_integer, "N", "fixed delivery priority, -1000 to 1000", (-1000, 1000)),
    "auto_priority": Field(_boolean, "BOOL", "derive the priority from recent reads"),
    "auto_create": Field(_boolean, "BOOL", "allow writes and dead letters to create a topic"),
    "idempotency_window_ms": Field(milliseconds, "TIME", "time that idempotency keys are remembered"),
    "dedupe_node": Field(_boolean, "BOOL", "hide records from readers of the same node"),
    "lease_ms": Field(milliseconds, "TIME", "queues: duration of leases", (100, _DAY_MS)),
    "claim_jitter_ms": Field(milliseconds, "TIME", "queues: delay of claims, for fair sharing", (0, 5000)),
    "max_deliveries": Field(whole, "N", "queues: deliveries before a job is dead-lettered; 0: no limit"),
    "dead_letter": Field(str, "TOPIC", "queues: topic for dead letters"),
    "leases_durable": Field(_boolean, "BOOL", "queues: let leases survive a restart"),
    "retain_until_acked_by": Field(_names, "GROUP[,GROUP]", "consumer groups that retention waits for"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each field: `--cap-records N`, `--no-dedupe-node`; durations also without `-ms`."""
    group = parser.add_argument_group("configuration")
    for name, field in FIELDS.items():
        flag = f"--{name.replace('_', '-')}"
        flags = [flag.removesuffix("-ms"), flag] if flag.endswith("-ms") else [flag]
        if field.read is _boolean:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, dest=name, help=field.help)
        else:
            group.add_argument(*flags, type=field.read, dest=name, metavar=field.what, help=field.help)


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields set by flags."""
    found = {name: getattr(arguments, name) for name in FIELDS}
    return {name: value for name, value in found.items() if value is not None}


def assigned(text: str) -> tuple[str, Any]:
    """Parse FIELD=VALUE to (field, value); the value is None (the server's default) if it is empty.

    Raises UsageError for an unknown field, listing the known ones, and for an invalid value.
    """
    name, sign, value = text.partition("=")
    name = name.strip().replace("-", "_")
    name = f"{name}_ms" if f"{name}_ms" in FIELDS else name
    if not sign:
        raise UsageError(f"{text!r} is not FIELD=VALUE")
    if name == "partitions":
        raise UsageError("to add partitions, use topics create TOPIC --partitions N")
    if name not in FIELDS:
        raise UsageError(f"unknown field {name!r}; known fields: {', '.join(FIELDS)}")
    try:
        return name, FIELDS[name].read(value) if value else None
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{name}: {error}") from None


def differing(config: "TopicConfig", wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The current values of those wanted fields that differ in the configuration."""
    found = {name: value(config, name) for name in wanted}
    return {name: found[name] for name in wanted if found[name] != FIELDS[name].clamped(wanted[name])}


def value(config: "TopicConfig", name: str) -> Any:
    """A field of a configuration; lists as tuples."""
    found = getattr(config, name)
    return tuple(found) if name == "retain_until_acked_by" else found


def text(value: Any) -> str:
    """Format a value as in FIELD=VALUE."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value) or "none"
    return "none" if value is None else str(value)
