"""Statements that ask for the catalog, known by the names in them."""

from typing import Final

from topics_postgres.catalog.functions import LOOKUPS, MACROS, TYPES_BY_NAME
from topics_postgres.catalog.relations import CATALOG
from topics_sql.tokens import NAME, OPERATOR, WORD, Tokens, words

_NAMESPACES: Final = frozenset({"pg_catalog", "information_schema"})
_BEFORE_TABLES: Final = words("from join only ,")
_PREFIXES: Final = ("pg_", "has_", "array_", "_pg")
_FUNCTIONS: Final = (
    frozenset(name for name in MACROS if name.startswith(_PREFIXES))
    | LOOKUPS.keys()
    | words("aclexplode acldefault col_description current_schemas format_type obj_description parse_ident quote_ident"
            " quote_literal shobj_description")
)  # fmt: skip
_CASTS: Final = TYPES_BY_NAME | words("regproc regprocedure regoper regoperator")


def asks_for_catalog(tokens: Tokens, first: int, last: int, of_session: frozenset[str]) -> bool:
    """Return whether a query has to be answered by the catalog. `of_session` are functions that need none."""
    kinds, values = tokens.kinds, tokens.values
    for at in range(first, last):
        if kinds[at] != WORD and kinds[at] != NAME:
            continue
        value = values[at]
        before = values[at - 1] if at > first and kinds[at - 1] != NAME else ""
        after = values[at + 1] if at + 1 < last and kinds[at + 1] == OPERATOR else ""
        if value in _NAMESPACES and after == ".":
            is_call = at + 3 < last and values[at + 3] == "(" and kinds[at + 3] == OPERATOR
            if not (is_call and values[at + 2] in of_session) and before != "::":
                return True
        elif value in CATALOG:
            if before in _BEFORE_TABLES and after != "(":
                return True
        elif value in _FUNCTIONS:
            if after == "(" and before != "." and value not in of_session:
                return True
        elif value in _CASTS and (before in ("::", "as") or (before == "." and values[at - 2] == "pg_catalog")):
            return True
    return False
