"""Parts of results and errors of statements."""

import re
from collections.abc import Sequence
from typing import Any, Final, get_args

from topics_service.api.sql.requests import Message, ResultColumn, SqlResult
from topics_service.engine.errors import TopicsError
from topics_service.engine.tables import plans
from topics_service.engine.tables.errors import SQLSTATES, Place
from topics_service.engine.tables.outcomes import TopicGap
from topics_service.engine.tables.types import BIGINT, TEXT, Kind, Type

_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
PLAN: Final = (ResultColumn("plan", Type(Kind.TEXT)),)
ACKNOWLEDGED: Final = (ResultColumn("acknowledged_offset", BIGINT),)
MESSAGE: Final = (
    ResultColumn("topic_id", TEXT),
    ResultColumn("partition_id", Type(Kind.INTEGER)),
    ResultColumn("offset", BIGINT),
    ResultColumn("message_id", TEXT),
    ResultColumn("source_table", TEXT),
    ResultColumn("op", TEXT),
    ResultColumn("ts", BIGINT),
    ResultColumn("payload_mode", TEXT),
    ResultColumn("payload", TEXT),
    ResultColumn("key", TEXT),
)
_TOLD: Final = 5  # gaps in one warning
_NAMES: Final = (
    {"AddColumn": "ALTER TABLE", "DropColumn": "ALTER TABLE", "RenameColumn": "ALTER TABLE"}
    | dict.fromkeys(("ChangeType", "SetDefault", "RenameTable", "SetTableOptions"), "ALTER TABLE")
    | dict.fromkeys(("AddSource", "DropSource", "SetAlias", "SetTopicOptions"), "ALTER TOPIC")
)


def outputs_of(outputs: tuple[plans.Output, ...]) -> tuple[ResultColumn, ...]:
    """The columns of a result."""
    return tuple(ResultColumn(output.name, output.type) for output in outputs)


def topics_of(action: plans.Query) -> Sequence[str]:
    """The topics that a query reads."""
    if isinstance(action, plans.Analysis):
        return [source.topic for source in action.topics]
    return [action.source.topic] if isinstance(action.source, plans.TopicSource) else []


def lost(gaps: Sequence[TopicGap]) -> str:
    """Lost records in words, for people; empty if there are none."""
    texts = [
        f'records {gap.from_seq} to {gap.to_seq} of topic "{gap.topic}", partition {gap.partition}, were lost '
        f"({gap.reason})"
        for gap in gaps[:_TOLD]
    ]
    return "; ".join([*texts, "and others"] if len(gaps) > _TOLD else texts)


def message_of(action: Any) -> str:
    """The words of a definition, as in `CREATE TABLE`."""
    name = type(action).__name__
    return _NAMES.get(name) or _WORDS.sub(" ", name).upper()


def explained(action: plans.Explain) -> SqlResult:
    """The lines of a plan as rows."""
    return SqlResult(columns=PLAN, rows=[(line,) for line in action.lines], row_count=len(action.lines))


def consumed(messages: Sequence[Message]) -> SqlResult:
    """Messages as rows, the payload as text where it is UTF-8."""
    rows = [
        (
            each.topic_id, each.partition_id, each.offset, each.message_id, each.source_table, each.op, each.ts,
            each.payload_mode, _text(each.payload), each.key,
        )
        for each in messages
    ]  # fmt: skip
    return SqlResult(columns=MESSAGE, rows=rows, row_count=len(rows))


def acknowledged(offset: int) -> SqlResult:
    """The offset that a group has acknowledged, as a row; -1 for none is NULL."""
    return SqlResult(columns=ACKNOWLEDGED, rows=[(None if offset < 0 else offset,)], row_count=1, message="ACK")


def _text(payload: bytes | None) -> str | None:
    """JSON text as it is, bytes that are no UTF-8 as `\\x` with hexadecimal digits."""
    if payload is None:
        return None
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return f"\\x{payload.hex()}"


def change_of(action: plans.Action) -> str | None:
    """The name under which observers know a statement: that of a definition or of a change of a user, else None."""
    if isinstance(action, plans.CreateUser | plans.AlterUser | plans.DropUser):
        return "sql.user"
    return "sql.define" if isinstance(action, get_args(plans.Definition)) else None


def users_facts(action: plans.CreateUser | plans.AlterUser | plans.DropUser) -> dict[str, Any]:
    """Facts of a change of a user for observers, without the password."""
    facts: dict[str, Any] = {"statement": message_of(action), "user": action.name}
    if not isinstance(action, plans.DropUser) and action.role is not None:
        facts["role"] = action.role
    return facts


def placed(error: TopicsError, number: int | None = None, place: Place | None = None) -> TopicsError:
    """The error of a statement with its SQLSTATE, the statement's number and, unless it has one, its place."""
    detail: dict[str, Any] = dict(error.detail or {})
    detail.setdefault("sqlstate", SQLSTATES.get(error.reason, "XX000"))
    if place is not None and "line" not in detail:
        detail["line"], detail["column"] = place
    if number is not None:
        detail["statement"] = number
    error.detail = detail
    return error
