"""Rows by their keys for a session that asks for the same query over and over: at once, in one turn of the loop."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from topics_service.engine.tables import plans, points
from topics_service.engine.tables.points import PointQuery
from topics_service.engine.tables.types import Value
from topics_service.engine.tables.values import coercer

if TYPE_CHECKING:
    from topics_service.api.sql.session import SqlSession

_NO_ROWS: Final[Sequence[Sequence[Value]]] = ()


class PointRead:
    """A query of a session that reads one row by its key. The caller's rights were checked when it was made."""

    __slots__ = ("_api", "_namespace", "_query", "_session", "fits", "types")

    def __init__(self, session: "SqlSession", plan: plans.Plan, query: PointQuery) -> None:
        self._session = session
        self._api = session.api
        self._namespace = session.namespace
        self._query = query
        self.types = plan.parameters
        self.fits: Sequence[Callable[[Any], Value]] = [
            coercer(kind, f"${number}") for number, kind in enumerate(plan.parameters, 1) if kind is not None
        ]
        """The functions that make parameters for `run` of what the caller gives."""

    @property
    def is_current(self) -> bool:
        """Return whether the query means what it did when this was made."""
        return self._session.namespace == self._namespace and self._query.is_current

    def run(self, parameters: Sequence[Value]) -> Sequence[Sequence[Value]] | None:
        """At most one row; None if the query has to be executed in the usual way, as after any error that this raises.

        That is in a transaction with changes, and when a definition has changed.
        """
        session, api, query = self._session, self._api, self._query
        transaction = session.transaction
        if transaction is not None and (session.is_failed or session.is_implicit or transaction.has_changes):
            return None
        api.admit()
        if session.namespace != self._namespace or not query.is_current:
            return None
        row = query.run(parameters)
        statistics = api.statistics
        statistics.statements["Select"] += 1
        api.plans.statistics.hits += 1
        if row is None:
            return _NO_ROWS
        statistics.rows_read += 1
        return (row,)


def made(session: "SqlSession", plan: plans.Plan) -> PointRead | None:
    """The quick form of a query whose rights were checked; None for any other statement."""
    if not isinstance(plan.action, plans.Select) or None in plan.parameters:
        return None
    query = points.compiled(session.api.tables, plan.action)
    return None if query is None else PointRead(session, plan, query)
