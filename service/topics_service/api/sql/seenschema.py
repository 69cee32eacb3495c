"""The catalog for a caller who may access some names only: binding a statement must not tell which others exist."""

from collections.abc import Mapping

from topics_service.api.access.auth import Principal
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.model import Index, Namespace, Route, Table, TableName, View
from topics_service.engine.tables.schema import Schema, TopicName
from topics_service.engine.tables.types import Type


class SeenSchema:
    """Implements Schema. Look-ups of names outside the prefixes of the caller raise `forbidden`.

    That of a topic gives None, since a statement may find it under another name; see `refused`.
    """

    def __init__(self, schema: Schema, principal: Principal) -> None:
        self._schema = schema
        self._principal = principal
        self._denied: str | None = None
        self._looked = False

    @property
    def version(self) -> int:
        """See Schema."""
        return self._schema.version

    @property
    def system(self) -> Mapping[str, tuple[tuple[str, Type], ...]]:
        """See Schema."""
        return self._schema.system

    def namespace(self, name: str) -> Namespace | None:
        """See Schema. One is allowed if any name in it may be."""
        prefixes = self._principal.prefixes or ()
        if not self._principal.allows_name(f"{name}.") and not any(each.startswith(f"{name}.") for each in prefixes):
            raise _forbidden(name)
        return self._schema.namespace(name)

    def table(self, name: TableName) -> Table | None:
        """See Schema."""
        self._check(str(name))
        return self._schema.table(name)

    def view(self, name: TableName) -> View | None:
        """See Schema."""
        self._check(str(name))
        return self._schema.view(name)

    def index(self, name: TableName) -> tuple[Table, Index] | None:
        """See Schema. An index is allowed if its table is."""
        found = self._schema.index(name)
        self._check(str(name) if found is None else found[0].table_id)
        return found

    def topic(self, name: str) -> TopicName | None:
        """See Schema. A topic is allowed by the name or alias that is asked for, and by its own."""
        if not self._principal.allows_name(name):
            self._denied = self._denied or name
            return None
        self._looked = True
        found = self._schema.topic(name)
        return None if found is None or not self._principal.allows_name(found.name) else found

    def routes(self, table: int) -> tuple[Route, ...]:
        """See Schema."""
        return self._schema.routes(table)

    def refused(self, error: TopicsError) -> TopicsError:
        """The error of a statement: `forbidden` in place of `topic_not_found` if no name of it was allowed."""
        if error.reason is Reason.TOPIC_NOT_FOUND and self._denied is not None and not self._looked:
            return _forbidden(self._denied)
        return error

    def _check(self, name: str) -> None:
        if not self._principal.allows_name(name):
            raise _forbidden(name)


def _forbidden(name: str) -> TopicsError:
    return sql_error(Reason.FORBIDDEN, "a name is outside the prefixes of the caller", topic=name)
