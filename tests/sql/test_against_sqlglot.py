"""Expressions are divided into operators and operands as sqlglot divides them, which reads other queries later."""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sqlglot import exp

from support.sqlglot_dialect import DIALECT
from topics_service.engine.errors import TopicsError
from topics_sql import syntax
from topics_sql.grammar.statements import statements

BINARY = {
    exp.And: "and", exp.Or: "or", exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.DPipe: "||",
    exp.NullSafeEQ: "is not distinct", exp.NullSafeNEQ: "is distinct",
}  # fmt: skip


def theirs(node: Any) -> Any:
    """A tree of sqlglot as nested tuples."""
    if isinstance(node, exp.Paren):
        return theirs(node.this)
    if type(node) in BINARY:
        return (BINARY[type(node)], theirs(node.this), theirs(node.expression))
    if isinstance(node, exp.Column):
        return ".".join(part.name for part in node.parts)
    if isinstance(node, exp.Literal):
        return ("text", node.this) if node.is_string else node.this
    if isinstance(node, exp.Boolean):
        return node.this
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.Parameter):
        return f"${node.name}"
    if isinstance(node, exp.Neg):
        return ("-", theirs(node.this))
    if isinstance(node, exp.Not):
        return ("not", theirs(node.this))
    if isinstance(node, exp.Is):
        return negated(("is", theirs(node.this), theirs(node.expression)), bool(node.args.get("negate")))
    if isinstance(node, exp.In):
        return ("in", theirs(node.this), *map(theirs, node.expressions))
    if isinstance(node, exp.Between):
        low, high = theirs(node.args["low"]), theirs(node.args["high"])
        return ("and", (">=", theirs(node.this), low), ("<=", theirs(node.this), high))
    if isinstance(node, exp.Like | exp.ILike):
        found = (type(node).__name__.lower(), theirs(node.this), theirs(node.expression))
        return negated(found, bool(node.args.get("negate")))
    if isinstance(node, exp.Cast):
        return ("cast", theirs(node.this), node.to.sql("postgres").lower())
    if isinstance(node, exp.Coalesce):
        return ("coalesce", theirs(node.this), *map(theirs, node.expressions))
    if isinstance(node, exp.Case):
        branches = [(theirs(each.this), theirs(each.args["true"])) for each in node.args["ifs"]]
        return ("case", node.this and theirs(node.this), *branches, theirs(node.args["default"]))
    raise AssertionError(repr(node))


def mine(node: Any) -> Any:
    """A tree of ours as the same."""
    if isinstance(node, syntax.Infix):
        return (node.op, mine(node.left), mine(node.right))
    if isinstance(node, syntax.Name):
        return ".".join(node.parts)
    if isinstance(node, syntax.Constant):
        return ("text", node.value) if node.kind == "string" else node.value
    if isinstance(node, syntax.Parameter):
        return f"${node.number}"
    if isinstance(node, syntax.Prefix):
        return (node.op, mine(node.operand))
    if isinstance(node, syntax.Is):
        what = {"null": None, "true": True, "false": False}[node.what]
        return negated(("is", mine(node.operand), what), node.negated)
    if isinstance(node, syntax.In):
        return negated(("in", mine(node.operand), *map(mine, node.items)), node.negated)
    if isinstance(node, syntax.Like):
        found = ("ilike" if node.ignore_case else "like", mine(node.operand), mine(node.pattern))
        return negated(found, node.negated)
    if isinstance(node, syntax.Cast):
        return ("cast", mine(node.operand), node.type.name)
    if isinstance(node, syntax.Call):
        return (node.function, *map(mine, node.arguments))
    if isinstance(node, syntax.Case):
        branches = [(mine(when), mine(then)) for when, then in node.branches]
        return ("case", node.operand and mine(node.operand), *branches, node.otherwise and mine(node.otherwise))
    raise AssertionError(repr(node))


def negated(found: Any, is_negated: bool) -> Any:
    return ("not", found) if is_negated else found


def flat(tree: Any) -> Any:
    """A tree whose chains of AND and of OR are lists, since ours are balanced."""
    if not isinstance(tree, tuple):
        return tree
    if tree and tree[0] in ("and", "or") and len(tree) == 3:
        terms: list[Any] = []
        for each in map(flat, tree[1:]):
            terms += each[1:] if isinstance(each, tuple) and each[:1] == (tree[0],) else [each]
        return (tree[0], *terms)
    return tuple(flat(each) for each in tree)


def both(text: str) -> tuple[Any, Any]:
    (parsed,) = statements(f"SELECT {text}")
    assert isinstance(parsed.tree, syntax.Select)
    (item,) = parsed.tree.items
    (tree,) = DIALECT.parse(f"SELECT {text}")
    assert isinstance(tree, exp.Select)
    return flat(mine(item.tree)), flat(theirs(tree.expressions[0]))


leaves = st.sampled_from(["a", "t.b", "1", "2.5", "'x'", "$1", "TRUE", "NULL"])
operators = st.sampled_from(["+", "-", "*", "||", "=", "<", "LIKE", "NOT ILIKE", "AND", "OR", "IS NOT DISTINCT FROM"])
endings = st.sampled_from(["", "", "", " IS NULL OR a", " IN (1, 2) AND a", " NOT BETWEEN 1 AND 2 OR a", "::text"])
chains = st.lists(st.tuples(operators, leaves, endings), min_size=1, max_size=4).flatmap(
    lambda each: st.tuples(st.sampled_from(["", "NOT ", "- "]), leaves).map(
        lambda first: f"{first[0]}{first[1]} {' '.join(f'{op} {leaf}{end}' for op, leaf, end in each)}"
    )
)
operands = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "%", "||"]), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("-({})".format),
        st.tuples(inner, inner).map(lambda each: f"coalesce({each[0]}, {each[1]})"),
        st.tuples(inner, inner, inner).map(lambda each: f"CASE WHEN {each[0]} THEN {each[1]} ELSE {each[2]} END"),
        st.tuples(inner, inner).map(lambda each: f"CASE {each[0]} WHEN 1 THEN {each[1]} ELSE 0 END"),
        inner.map("({})::text".format),
        inner.map("CAST({} AS text)".format),
    ),
    max_leaves=5,
)
negation = st.sampled_from(["", "NOT "])
tests = st.one_of(
    st.tuples(operands, st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "!="]), operands).map(" ".join),
    st.tuples(operands, st.sampled_from(["IS NULL", "IS NOT NULL", "IS TRUE", "IS NOT FALSE"])).map(" ".join),
    st.tuples(operands, st.sampled_from(["IS DISTINCT FROM", "IS NOT DISTINCT FROM"]), operands).map(" ".join),
    st.tuples(operands, negation, operands, operands).map(
        lambda each: f"{each[0]} {each[1]}BETWEEN {each[2]} AND {each[3]}"
    ),
    st.tuples(operands, negation, operands, operands).map(lambda each: f"{each[0]} {each[1]}IN ({each[2]}, {each[3]})"),
    st.tuples(operands, negation, st.sampled_from(["LIKE", "ILIKE"]), leaves).map(
        lambda each: f"{each[0]} {each[1]}{each[2]} {each[3]}"
    ),
    operands,
)
conditions = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(" ".join),
        inner.map("NOT {}".format),
        inner.map("({})".format),
    ),
    max_leaves=6,
)


@given(st.one_of(conditions, chains, chains))
@settings(max_examples=500, deadline=None)
def test_same_trees(text: str) -> None:
    try:
        ours, others = both(text)
    except TopicsError as error:  # as PostgreSQL; sqlglot reads (a = b) = c
        assume("chained" not in str(error))
        raise
    assert ours == others, text
