"""generate_series in FROM."""

from typing import TYPE_CHECKING

from topics_service.engine.errors import Reason
from topics_service.engine.tables import casts
from topics_service.engine.tables.expressions import type_of
from topics_service.engine.tables.relations import SeriesRows, numbers_of
from topics_service.engine.tables.types import BIGINT, INTEGER, TIMESTAMP, Kind
from topics_sql import syntax
from topics_sql.binding.analytic import Analytic, Scope

if TYPE_CHECKING:
    from topics_sql.binding.analysis import Planner


def series_rows(planner: "Planner", item: syntax.Series, scope: Scope) -> SeriesRows:
    """Plan a series: of integers, or of timestamps an interval apart."""
    given, context = item.arguments, planner.context
    if not 2 <= len(given) <= 3:
        message = "it is called as generate_series(first, last [, step])"
        raise context.refuse(item.at, message, Reason.FUNCTION_NOT_FOUND)
    binder = Analytic(planner, Scope(), "generate_series")
    ends = [binder.bind(each) for each in given[:2]]
    of_times = isinstance(given[-1], syntax.Interval) and len(given) == 3
    with context.placed(item.at):
        kind = casts.common([type_of(each) for each in ends])
    if kind is None:
        kind = TIMESTAMP if of_times else INTEGER
    kind = TIMESTAMP if kind.kind is Kind.DATE else kind
    if of_times is not (kind.kind is Kind.TIMESTAMP) or (not of_times and kind.kind not in casts.INTEGERS):
        message = "generate_series takes integers, or times with an INTERVAL"
        raise context.refuse(item.at, message, Reason.FUNCTION_NOT_FOUND)
    arguments = [binder.assign(each, kind, "the end", at.at) for each, at in zip(ends, given, strict=False)]
    for each in given[2:]:
        if isinstance(each, syntax.Interval):
            arguments.append(binder.length(each))
        else:
            arguments.append(binder.assigned(each, BIGINT, "the step"))
    if any(numbers_of(each) for each in arguments):
        message = "generate_series takes values that depend on no rows"
        raise context.refuse(item.at, message, Reason.UNSUPPORTED_SQL)
    name = item.alias or "generate_series"
    number = planner.number()
    planner.add(scope, name, None, [(item.columns[0] if item.columns else name, number, kind)], item.at)
    return SeriesRows(number, tuple(arguments), kind)
