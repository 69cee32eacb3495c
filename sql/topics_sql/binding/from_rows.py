"""Topics and views that an analytical query names in FROM."""

from typing import TYPE_CHECKING, Final

from topics_service.engine.errors import Reason
from topics_service.engine.tables.model import TableName, View
from topics_service.engine.tables.plans import Output
from topics_service.engine.tables.relations import NestedRows, TopicRows, numbers_of
from topics_service.engine.tables.topic_columns import TOPIC_COLUMNS
from topics_sql import syntax
from topics_sql.binding import topic_tables
from topics_sql.binding.analytic import Scope
from topics_sql.binding.scope import TOPICS
from topics_sql.binding.view_queries import reading
from topics_sql.grammar.statements import view_query

if TYPE_CHECKING:  # it imports this
    from topics_sql.binding.analysis import Planner

MAX_VIEWS: Final = 32
"""Views in views."""


def topic_rows(planner: "Planner", full: TableName, item: syntax.From, scope: Scope) -> TopicRows:
    """Plan the records of a topic. What is read of them is found when the whole query is there."""
    planner.topics.append(topic_tables.topic_of(planner.context, full, item.name.at))
    columns = [(name, planner.number(), kind) for name, kind in TOPIC_COLUMNS]
    planner.relation(scope, item, full.name, TOPICS, columns)
    return TopicRows(len(planner.topics) - 1, tuple((each[1], place) for place, each in enumerate(columns)))


def view_rows(planner: "Planner", view: View, item: syntax.From, scope: Scope) -> NestedRows:
    """Plan the rows of a view: its query is bound in the place of its name."""
    around, at = planner.context, item.name.at
    planner.depth += 1
    if planner.depth > MAX_VIEWS:
        raise around.refuse(at, "views are nested too deep", Reason.INVALID_VALUE, "54001")
    if planner.depth == 1:
        planner.views[TableName(view.namespace, view.name)] = None
    try:
        with reading(around, view, at) as planner.context:
            query = planner.query(view_query(view.text), Scope())
    finally:
        planner.context = around
        planner.depth -= 1
    made: dict[str, Output] = {}
    for output in query.outputs:
        made.setdefault(output.name, output)
    columns = []
    for shown, name in view.columns:
        if name not in made:
            message = f"the view {view.view_id} reads columns that are gone"
            raise around.refuse(at, message, Reason.COLUMN_NOT_FOUND)
        (number,) = numbers_of(made[name].expression)
        columns.append((shown, number, made[name].type))
    planner.relation(scope, item, view.name, view.namespace, columns)
    return NestedRows(query)
