"""Texts of requests that were read before, with their plans: a repeated text is parsed and bound once."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from topics_service.api.sql.reader import SqlReader, Statement
from topics_service.engine.tables.plans import Explain, Nothing, Plan
from topics_service.engine.tables.schema import Schema
from topics_service.engine.tables.types import Type
from topics_service.statistics import CacheStatistics

MAX_TEXT: Final = 16 << 10
"""Longer texts hold literals and rarely come again: none is kept, so that they can be read on a thread."""
_MAX_PLANS: Final = 64  # of one text: its statements, in each namespace

_TELLING: Final = (Explain, Nothing)
"""Plans that tell of the catalog, which not every caller may know."""


class Script:
    """The statements of a text, and their plans as far as they were bound."""

    __slots__ = ("plans", "statements", "version")

    def __init__(self, statements: Sequence[Statement]) -> None:
        self.statements = statements
        self.plans: dict[tuple[int, str, Sequence[Type | None]], Plan] = {}
        self.version = -1


class PlanCache:
    """The most recently used texts, within bounds of their number and their characters."""

    def __init__(self, reader: SqlReader, *, max_texts: int = 2000, max_chars: int = 4 << 20) -> None:
        self._reader = reader
        self._max_texts = max_texts
        self._max_chars = max_chars
        self._scripts: OrderedDict[str, Script] = OrderedDict()
        self._chars = 0
        self.statistics = CacheStatistics()

    @property
    def size(self) -> int:
        """The characters of the texts."""
        return self._chars

    def read(self, text: str) -> Script:
        """Parse a text, or find it. Raises `syntax_error` and `unsupported_sql`."""
        script = self._scripts.get(text)
        if script is not None:
            self.statistics.hits += 1
            self._scripts.move_to_end(text)
            return script
        self.statistics.misses += 1
        script = Script(self._reader.parse(text))
        if len(text) <= MAX_TEXT:
            self._scripts[text] = script
            self._chars += len(text)
            while len(self._scripts) > self._max_texts or self._chars > self._max_chars:
                dropped, _ = self._scripts.popitem(last=False)
                self._chars -= len(dropped)
        return script

    def plan(
        self, script: Script, number: int, schema: Schema, namespace: str, given: tuple[Type | None, ...] = ()
    ) -> Plan:
        """Bind a statement of the script to the catalog as it is now, or find its plan; `given` are as for `bind`."""
        if script.version != schema.version:
            script.plans.clear()
            script.version = schema.version
        plan = script.plans.get((number, namespace, given))
        if plan is None:
            plan = self._reader.bind(script.statements[number], schema, namespace, given)
            if len(script.plans) < _MAX_PLANS and not isinstance(plan.action, _TELLING):
                script.plans[number, namespace, given] = plan
        return plan
