"""Names of the columns of results, and their bound."""

from typing import Final

from topics_sql import syntax
from topics_sql.syntax import Tree

UNNAMED: Final = "?column?"
MAX_OUTPUTS: Final = 1664
"""Columns of a result, and keys of ORDER BY: as many as in PostgreSQL."""


def name_of(tree: Tree) -> str:
    """The name of a column of a result that has no alias, as in PostgreSQL."""
    if isinstance(tree, syntax.Name):
        return tree.parts[-1]
    if isinstance(tree, syntax.Call):
        return tree.function
    if isinstance(tree, syntax.Case):
        return "case"
    if isinstance(tree, syntax.Exists):
        return "exists"
    if isinstance(tree, syntax.Subquery) and isinstance(tree.query, syntax.Select):
        item = tree.query.items[0]
        return UNNAMED if item.tree is None else item.alias or name_of(item.tree)
    if isinstance(tree, syntax.Cast):
        inner = name_of(tree.operand)
        return tree.type.name if inner == UNNAMED else inner
    return UNNAMED
