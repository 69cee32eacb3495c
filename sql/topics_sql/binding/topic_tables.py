"""Topics that queries read as tables, and what a condition leaves to read of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from topics_service.engine.errors import Reason
from topics_service.engine.tables import plans, references
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.expressions import Column, Expression, Like, Literal, Parameter, type_of
from topics_service.engine.tables.model import TableName
from topics_service.engine.tables.plans import Order, TopicFact, TopicScan
from topics_service.engine.tables.topic_columns import OFFSET, PARTITION, SEQ, TAG, TOPIC_COLUMNS, TS
from topics_service.engine.tables.types import Type
from topics_sql.binding.access import Fact, facts_of, joined
from topics_sql.binding.scope import TOPICS, Context
from topics_sql.binding.topic_names import find_topic
from topics_sql.syntax import ObjectName

_ORDERED: Final = frozenset({PARTITION, SEQ, OFFSET, TS})
_SEQS: Final = frozenset({SEQ, OFFSET})
_TYPES: Final[Mapping[int, Type]] = {place: kind for place, (_, kind) in enumerate(TOPIC_COLUMNS)}
_MAX_TAGS: Final = 16
"""Tags of IN that are looked up one by one."""


class TopicAccess(NamedTuple):
    """A scan, what is left to check, and whether the records come in the order that was asked for."""

    scan: TopicScan
    filter: Expression | None
    ordered: bool


def topic_of(context: Context, full: TableName, at: int) -> str:
    """The topic of `topics.name`. Raises `topic_not_found`, and `not_a_log` for a queue."""
    assert full.namespace == TOPICS
    found = find_topic(context, ObjectName(at, (full.name,)))
    if found.is_queue:
        error = sql_error(
            Reason.NOT_A_LOG, f'topic "{found.name}" is a queue: its jobs are claimed, not read', topic=found.name
        )
        context.place(error, at)
        raise error
    return found.name


def choose(
    terms: Sequence[Expression], order: Sequence[Order], used: Iterable[int], numbers: Mapping[int, int] | None = None
) -> TopicAccess:
    """The scan of a topic that terms of a condition allow. `used` are the columns that anything reads.

    `numbers` are the columns of the topic by those of the terms, if these are others.
    """
    numbers = {place: place for place in _TYPES} if numbers is None else numbers
    facts = facts_of({number: _TYPES[place] for number, place in numbers.items()}, terms)
    chosen = [(numbers[number], fact) for number, each in facts.items() for fact in each]
    exact_seqs = any(column in _SEQS and fact.op in ("=", "in") for column, fact in chosen)
    kept = [(column, fact) for column, fact in chosen if _is_served(column, fact, exact_seqs=exact_seqs)]
    like = None
    if not exact_seqs and not any(column == TAG for column, _ in kept):
        like = next((found for term in terms if (found := _prefix(term, numbers)) is not None), None)
    done = {fact.term for _, fact in kept if fact.exact}
    left = [term for number, term in enumerate(terms) if number not in done]
    one = any(column == PARTITION and fact.op == "=" for column, fact in kept)
    columns, reverse, ordered = _order(order, one_partition=one)
    scan = TopicScan(
        tuple(TopicFact(column, fact.op, fact.values) for column, fact in kept), like, columns, reverse,
        tuple(sorted(used)),
    )  # fmt: skip
    return TopicAccess(scan, joined(left), ordered)


def used_by(action: plans.Select) -> set[int]:
    """The columns that a query of one topic reads."""
    expressions: list[Expression | None] = [action.filter, *(item.expression for item in action.order)]
    if not action.count:
        expressions += [output.expression for output in action.outputs]
    return references.columns_of(expressions)


def _is_served(column: int, fact: Fact, *, exact_seqs: bool) -> bool:
    if column in _SEQS:
        return True
    if column == TS:
        return fact.op != "in"
    if fact.op not in ("=", "in"):
        return False
    return column == PARTITION or (column == TAG and not exact_seqs and len(fact.values) <= _MAX_TAGS)


def _prefix(term: Expression, numbers: Mapping[int, int]) -> Like | None:
    """A LIKE of the tag whose matches may have a beginning in common."""
    if not isinstance(term, Like) or term.negated or term.ignore_case:
        return None
    if not isinstance(term.operand, Column) or numbers.get(term.operand.column) != TAG:
        return None
    return term if isinstance(term.pattern, Literal | Parameter) and type_of(term.pattern) is not None else None


def _order(order: Sequence[Order], *, one_partition: bool) -> tuple[tuple[int, ...], bool, bool]:
    """The columns by which records have to be merged, the direction, and whether that is the order asked for.

    Within a partition neither seqs nor times ever fall.
    """
    columns: list[int] = []
    for item in order:
        column = item.expression
        if not isinstance(column, Column) or column.column not in _ORDERED or item.descending != order[0].descending:
            return (), False, False
        columns.append(column.column)
    if not columns:
        return (), False, True
    if one_partition or (columns[0] == PARTITION and len(columns) > 1):
        return (), order[0].descending, True
    return tuple(columns), order[0].descending, True
