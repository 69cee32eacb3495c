"""The reader of SQL that the API is given."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.errors import Place
from topics_service.engine.tables.plans import Action, Plan
from topics_service.engine.tables.schema import Schema
from topics_service.engine.tables.types import Type
from topics_sql import syntax
from topics_sql.binding import changes, others, queries, tables, topics, views
from topics_sql.binding.scope import Context
from topics_sql.grammar.statements import number_error, statements
from topics_sql.tokens import place_of, refuse


class Statement(Struct, frozen=True):
    """A statement of a text, parsed."""

    text: str
    tree: syntax.Statement
    position: int
    number: int
    several: bool

    @property
    def place(self) -> Place:
        """The place where it begins."""
        return place_of(self.text, self.position)


class Reader:
    """Reads SQL (`api.sql.reader.SqlReader`). Without state: one may serve all."""

    def parse(self, text: str) -> Sequence[Statement]:
        """Split and parse a text. Raises `syntax_error`, `unsupported_sql` or `invalid_request`, with the place."""
        try:
            found = statements(text)
        except RecursionError:
            raise refuse(text, 0, "the statement is nested too deep") from None
        return [Statement(text, each.tree, each.position, at, len(found) > 1) for at, each in enumerate(found)]

    def bind(self, statement: Statement, schema: Schema, namespace: str, given: Sequence[Type | None] = ()) -> Plan:
        """Plan a statement. Raises the errors of docs/errors.md, with their place."""
        context = Context(statement.text, schema, namespace, given=given)
        try:
            action = BINDERS[statement.tree.__class__](context, statement.tree)
            return Plan(action, context.parameter_types())
        except RecursionError:
            raise refuse(statement.text, statement.position, "the statement is nested too deep") from None
        except TopicsError as error:
            context.place(error, statement.position)
            number_error(error, statement.number, several=statement.several)
            raise


BINDERS: Final[dict[type, Callable[[Context, Any], Action]]] = {
    syntax.Select: queries.select,
    syntax.Compound: queries.select,
    syntax.Values: queries.select,
    syntax.Insert: changes.insert,
    syntax.Update: changes.update,
    syntax.Delete: changes.delete,
    syntax.CreateTable: tables.create_table,
    syntax.AlterTable: tables.alter_table,
    syntax.DropTable: tables.drop_table,
    syntax.CreateView: views.create_view,
    syntax.DropView: views.drop_view,
    syntax.Truncate: tables.truncate,
    syntax.CreateIndex: tables.create_index,
    syntax.DropIndex: tables.drop_index,
    syntax.CreateNamespace: tables.create_namespace,
    syntax.DropNamespace: tables.drop_namespace,
    syntax.Use: tables.use,
    syntax.CreateTopic: topics.create_topic,
    syntax.SetTopic: topics.set_topic,
    syntax.DropTopic: topics.drop_topic,
    syntax.ClearTopic: topics.clear_topic,
    syntax.SetAlias: topics.set_alias,
    syntax.AddSource: topics.add_source,
    syntax.DropSource: topics.drop_source,
    syntax.Consume: topics.consume,
    syntax.Ack: topics.ack,
    syntax.Subscribe: topics.subscribe,
    syntax.CreateUser: others.create_user,
    syntax.AlterUser: others.alter_user,
    syntax.DropUser: others.drop_user,
    syntax.Transaction: others.transaction,
    syntax.Show: others.show,
    syntax.Describe: others.describe,
    syntax.Explain: others.explain_statement,
}
