"""Expressions, with the precedence of PostgreSQL."""

from typing import Final, NoReturn

from msgspec.structs import replace

from topics_service.engine.errors import Reason
from topics_sql.grammar.cursor import RESERVED, Cursor
from topics_sql.syntax import (
    Call,
    Case,
    Cast,
    Constant,
    Exists,
    In,
    Infix,
    InQuery,
    Interval,
    Is,
    JsonGet,
    Like,
    Name,
    OrderItem,
    Parameter,
    Prefix,
    Quantified,
    Query,
    Subquery,
    Tree,
    TypeName,
)
from topics_sql.tokens import MAX_DEPTH, NAME, NUMBER, OPERATOR, PARAMETER, STRING, WORD, refuse, words

MAX_PARAMETER: Final = 65_535
INTERVAL_UNITS: Final = words("year month day hour minute second")

OR, AND, NOT, IS, COMPARISON, RANGE, OTHER, SUM, PRODUCT, SIGN = range(1, 11)

INFIX: Final = {
    "=": COMPARISON, "<>": COMPARISON, "!=": COMPARISON,
    "<": COMPARISON, "<=": COMPARISON, ">": COMPARISON, ">=": COMPARISON,
    "||": OTHER, "->": OTHER, "->>": OTHER, "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "%": PRODUCT,
}  # fmt: skip
FOREIGN_OPERATORS: Final = words("""~ ~* !~ !~* #> #>> @> <@ ^ & | # ? @ [""")
CONSTANTS: Final = {"true": True, "false": False}
BARE_FUNCTIONS: Final = {
    "current_timestamp": "now",
    "current_date": "current_date",
    "current_time": "current_time",
    "localtimestamp": "now",
    "localtime": "current_time",
}
TYPED_LITERALS: Final = words("""date decimal json jsonb numeric time timestamp timestamptz uuid""")
MORE_TYPE_WORDS: Final = {
    "double": ("precision",),
    "character": ("varying",),
    "bit": ("varying",),
}


def expression(cursor: Cursor, level: int = OR) -> Tree:
    """Read an expression whose operators bind at least as strongly as `level`.

    Leaves its height in `cursor.height`. Raises `syntax_error`, and `unsupported_sql` for what PostgreSQL has beyond.
    """
    at = cursor.at
    cursor.depth += 1
    if cursor.depth > MAX_DEPTH + 1:
        _too_deep(cursor, at)
    if level <= NOT and cursor.word == "not":
        cursor.position += 1
        operand = expression(cursor, NOT)
        _higher(cursor, cursor.height, at)
        left: Tree = Prefix(at, "not", operand)
    else:
        left = _operand(cursor)
    while True:
        kind, value = cursor.kinds[cursor.position], cursor.values[cursor.position]
        if kind == OPERATOR:
            strength = INFIX.get(value, 0)
            if strength < level:
                if value in FOREIGN_OPERATORS:
                    raise cursor.unsupported(f"the operator {value} is")
                break
            left = _infix(cursor, left, value, strength)
            if strength == COMPARISON and INFIX.get(cursor.operator) == COMPARISON:
                raise refuse(cursor.text, cursor.at, "comparisons can't be chained: use AND")
        elif kind != WORD:
            break
        elif value == "and" or value == "or":
            strength = AND if value == "and" else OR
            if strength < level:
                break
            left = _logical(cursor, left, value, strength)
        else:
            node = _word_operator(cursor, left, value, level)
            if node is None:
                break
            left = node
    cursor.depth -= 1
    return left


def _too_deep(cursor: Cursor, at: int) -> NoReturn:
    raise refuse(cursor.text, at, f"an expression is nested more than {MAX_DEPTH} deep")


def _higher(cursor: Cursor, height: int, at: int) -> None:
    """Note the height of an expression whose parts are at most `height` high."""
    if height >= MAX_DEPTH:
        _too_deep(cursor, at)
    cursor.height = height + 1


def _logical(cursor: Cursor, first: Tree, word: str, strength: int) -> Tree:
    """Read terms joined by OR or AND, as a balanced tree: thousands of them are no deeper than a dozen."""
    terms, places, height = [first], [0], cursor.height
    while cursor.word == word:
        places.append(cursor.at)
        cursor.position += 1
        terms.append(expression(cursor, strength + 1))
        height = max(height, cursor.height)
    _higher(cursor, height + len(terms).bit_length() - 1, places[1])
    return _balanced(word, terms, places, 0, len(terms))


def _balanced(word: str, terms: list[Tree], places: list[int], begin: int, end: int) -> Tree:
    if end - begin == 1:
        return terms[begin]
    middle = (begin + end) // 2
    left, right = _balanced(word, terms, places, begin, middle), _balanced(word, terms, places, middle, end)
    return Infix(places[middle], word, left, right)


def _infix(cursor: Cursor, left: Tree, op: str, strength: int) -> Tree:
    at, height = cursor.at, cursor.height
    cursor.position += 1
    if strength == COMPARISON and cursor.word in ("any", "all", "some"):
        every = cursor.word == "all"
        cursor.position += 1
        query = _subquery(cursor)
        _higher(cursor, height, at)
        return Quantified(at, "<>" if op == "!=" else op, left, query, every)
    right = expression(cursor, strength + 1)
    _higher(cursor, max(height, cursor.height), at)
    if op in ("->", "->>"):
        return JsonGet(at, left, right, op == "->>")
    return Infix(at, "<>" if op == "!=" else op, left, right)


def _word_operator(cursor: Cursor, left: Tree, word: str, level: int) -> Tree | None:
    at, height = cursor.at, cursor.height
    if word == "is":
        return _is(cursor, left, at) if level <= IS else None
    if word in ("isnull", "notnull") and level <= IS:
        cursor.position += 1
        _higher(cursor, height, at)
        return Is(at, left, "null", word == "notnull")
    negated = word == "not"
    operator = cursor.word_after() if negated else word
    if operator in ("collate", "at", "similar", "overlaps") and (operator != "at" or cursor.word_after() == "time"):
        raise cursor.unsupported(f"{operator.upper()} is")
    if operator not in ("in", "like", "ilike", "between") or level > RANGE:
        return None
    cursor.position += 1 + negated
    if operator == "in":
        if cursor.is_operator("(") and _is_query(cursor, 1):
            query = _subquery(cursor)
            _higher(cursor, height, at)
            return InQuery(at, left, query, negated)
        items = _items(cursor)
        _higher(cursor, max(height, cursor.height), at)
        return In(at, left, items, negated)
    if operator == "between":
        symmetric = cursor.take("symmetric")
        if symmetric:
            raise cursor.unsupported("BETWEEN SYMMETRIC is", at)
        cursor.take("asymmetric")
        low = expression(cursor, OTHER)
        height = max(height, cursor.height)
        cursor.expect("and")
        high = expression(cursor, OTHER)
        _higher(cursor, max(height, cursor.height) + 2, at)
        both = Infix(at, "and", Infix(at, ">=", left, low), Infix(at, "<=", left, high))
        return Prefix(at, "not", both) if negated else both
    pattern = expression(cursor, OTHER)
    _higher(cursor, max(height, cursor.height), at)
    escape = "\\"
    if cursor.take("escape"):
        escape_at = cursor.at
        escape = cursor.string("a character in quotes")
        if len(escape) > 1:
            raise refuse(cursor.text, escape_at, "ESCAPE takes one character", Reason.INVALID_VALUE, "22025")
    return Like(at, left, pattern, operator == "ilike", negated, escape)


def _is(cursor: Cursor, left: Tree, at: int) -> Tree:
    height = cursor.height
    cursor.position += 1
    negated = cursor.take("not")
    if cursor.word in ("null", "true", "false", "unknown"):
        what = cursor.word
        cursor.position += 1
        _higher(cursor, height, at)
        return Is(at, left, "null" if what == "unknown" else what, negated)
    if cursor.take("distinct"):
        cursor.expect("from")
        right = expression(cursor, COMPARISON)
        _higher(cursor, max(height, cursor.height), at)
        return Infix(at, "is not distinct" if negated else "is distinct", left, right)
    if cursor.word in ("json", "document", "normalized", "of"):
        raise cursor.unsupported(f"IS {cursor.word.upper()} is")
    raise cursor.unexpected("NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")


def _items(cursor: Cursor) -> tuple[Tree, ...]:
    """Read a list in parentheses. Leaves the greatest height."""
    cursor.expect_operator("(")
    items = [expression(cursor)]
    height = cursor.height
    while cursor.take_operator(","):
        items.append(expression(cursor))
        height = max(height, cursor.height)
    cursor.expect_operator(")")
    cursor.height = height
    return tuple(items)


def begins_query(cursor: Cursor) -> bool:
    """Return whether a query begins here."""
    return _is_query(cursor, 0)


def _is_query(cursor: Cursor, ahead: int) -> bool:
    word = cursor.word_after(ahead)
    return word in ("select", "with") or (word == "values" and cursor.are_operators(ahead + 1, "("))


def _subquery(cursor: Cursor) -> Query:
    """Read a query in parentheses."""
    cursor.expect_operator("(")
    if not begins_query(cursor):
        raise cursor.unsupported("ANY and ALL without a query are")
    query = _query(cursor)
    cursor.expect_operator(")")
    return query


def _query(cursor: Cursor) -> Query:
    from topics_sql.grammar.queries import query  # it reads expressions

    return query(cursor)


def descend(cursor: Cursor) -> None:
    """Count a level of what can be nested without an end. The caller counts down, or leaves it to the whole text."""
    cursor.depth += 1
    if cursor.depth > MAX_DEPTH + 1:
        _too_deep(cursor, cursor.at)


def order_by(cursor: Cursor) -> tuple[OrderItem, ...]:
    """Read ORDER BY, if it comes next."""
    if not cursor.take("order"):
        return ()
    cursor.expect("by")
    items = [_order_item(cursor)]
    while cursor.take_operator(","):
        items.append(_order_item(cursor))
    return tuple(items)


def _order_item(cursor: Cursor) -> OrderItem:
    at = cursor.at
    tree = expression(cursor)
    if cursor.word == "using":
        raise cursor.unsupported("ORDER BY ... USING is")
    descending = cursor.take("desc")
    if not descending:
        cursor.take("asc")
    nulls_first = descending
    if cursor.take("nulls"):
        nulls_first = cursor.take("first")
        if not nulls_first:
            cursor.expect("last")
    return OrderItem(at, tree, descending, nulls_first)


def _operand(cursor: Cursor) -> Tree:
    kind, value, at = cursor.kinds[cursor.position], cursor.values[cursor.position], cursor.at
    cursor.height = 1
    node: Tree
    if kind == WORD:
        node = _word(cursor, value, at)
    elif kind in (NUMBER, STRING):
        cursor.position += 1
        node = Constant(at, kind, value)
    elif kind == PARAMETER:
        cursor.position += 1
        node = Parameter(at, parameter_number(cursor, value, at))
    elif kind == NAME:
        node = _name_or_call(cursor, at)
    elif kind == OPERATOR and value == "(":
        cursor.position += 1
        if begins_query(cursor):
            node = Subquery(at, _query(cursor))
            cursor.height = 1
        else:
            node = expression(cursor)
        if cursor.is_operator(","):
            raise cursor.unsupported("rows of values as operands are")
        cursor.expect_operator(")")
    elif kind == OPERATOR and value in ("-", "+"):
        cursor.position += 1
        operand = expression(cursor, SIGN)
        _higher(cursor, cursor.height, at)
        node = Prefix(at, value, operand)
    elif kind == OPERATOR and value == "*":
        raise cursor.unexpected("an expression")
    elif kind == OPERATOR and value in FOREIGN_OPERATORS and value not in ("[", "?"):
        raise cursor.unsupported(f"the operator {value} is")
    else:
        raise cursor.unexpected("an expression")
    while cursor.kinds[cursor.position] == OPERATOR and cursor.values[cursor.position] == "::":
        cast_at = cursor.at
        cursor.position += 1
        node = cast_to(cast_at, node, type_name(cursor))
        _higher(cursor, cursor.height, cast_at)
    return node


def cast_to(at: int, operand: Tree, name: TypeName) -> Tree:
    """The tree of a cast. That to INTERVAL is one of its own: values have no such type."""
    return Interval(at, operand) if name.name == "interval" else Cast(at, operand, name)


def _interval(cursor: Cursor, at: int) -> Interval:
    """Read INTERVAL with its text, and a unit behind it."""
    cursor.position += 1
    value_at = cursor.at
    text = cursor.string("a string")
    if cursor.word in INTERVAL_UNITS:
        text = f"{text} {cursor.word}"
        cursor.position += 1
        if cursor.word == "to":
            raise cursor.unsupported("INTERVAL with TO is")
    return Interval(at, Constant(value_at, STRING, text))


def parameter_number(cursor: Cursor, digits: str, at: int) -> int:
    """The number of `$digits`."""
    if len(digits) > 6 or not 0 < int(digits) <= MAX_PARAMETER:
        raise refuse(
            cursor.text, at, f"parameters are numbered from $1 to ${MAX_PARAMETER}", Reason.INVALID_REQUEST, "08P01"
        )
    return int(digits)


def _word(cursor: Cursor, word: str, at: int) -> Tree:
    after_kind = cursor.kinds[cursor.position + 1]
    after = cursor.values[cursor.position + 1] if after_kind == OPERATOR else ""
    if word in CONSTANTS:
        cursor.position += 1
        return Constant(at, "boolean", CONSTANTS[word])
    if word == "null":
        cursor.position += 1
        return Constant(at, "null")
    if word == "case":
        return _case(cursor, at)
    if word in ("cast", "try_cast") and after == "(":
        return _cast(cursor, at)
    if word in BARE_FUNCTIONS:
        return _bare_function(cursor, word, at)
    if word == "interval" and after_kind == STRING:
        return _interval(cursor, at)
    if word == "exists" and after == "(":
        cursor.position += 1
        query = _subquery(cursor)
        cursor.height = 1
        return Exists(at, query)
    if word == "array" and after in ("[", "("):
        raise cursor.unsupported("arrays are")
    if word == "row" and after == "(":
        raise cursor.unsupported("rows of values as operands are")
    if word == "not":
        raise cursor.unexpected("an expression (NOT binds less: put it in parentheses)")
    if word in TYPED_LITERALS and after_kind == STRING:
        name = type_name(cursor)
        value_at = cursor.at
        return Cast(at, Constant(value_at, STRING, cursor.string("a string")), name)
    if word in RESERVED and not (word in ("left", "right") and after == "(") and not cursor.is_namespace:
        raise cursor.unexpected("an expression")
    return _name_or_call(cursor, at)


def _name_or_call(cursor: Cursor, at: int) -> Tree:
    quoted = cursor.kinds[cursor.position] == NAME
    first = cursor.values[cursor.position]
    cursor.position += 1
    if cursor.is_operator("(") and not quoted:
        return _call(cursor, first, at)
    if not cursor.is_operator("."):
        return Name(at, (first,))
    parts = [first]
    while cursor.take_operator("."):
        if cursor.is_operator("*"):
            raise cursor.unexpected("a column (a star stands alone in a list)")
        parts.append(cursor.label("a column"))
    if cursor.is_operator("("):
        raise cursor.unsupported("functions of a namespace are", at)
    if len(parts) > 3:
        raise refuse(cursor.text, at, "a column has at most three parts: namespace.table.column")
    return Name(at, tuple(parts))


def _call(cursor: Cursor, function: str, at: int) -> Tree:
    cursor.position += 1
    descend(cursor)
    height = 0
    if cursor.take_operator("*"):
        cursor.expect_operator(")")
        node = Call(at, function, star=True)
    else:
        distinct = cursor.take("distinct")
        if not distinct:
            cursor.take("all")
        arguments = _arguments(cursor, function)
        height = cursor.height
        order = order_by(cursor)
        cursor.expect_operator(")")
        node = Call(at, function, arguments, distinct=distinct, order=order)
    if cursor.word in ("within", "filter", "over"):
        node = _belonging(cursor, node)
    cursor.depth -= 1
    _higher(cursor, height, at)
    return node


def _belonging(cursor: Cursor, node: Call) -> Call:
    """Read what belongs to a call behind its parentheses: WITHIN GROUP, FILTER, OVER."""
    from topics_sql.grammar.windows import over  # it reads expressions

    if cursor.word == "within" and cursor.word_after() == "group":
        cursor.expect("within", "group")
        cursor.expect_operator("(")
        node = replace(node, order=order_by(cursor), within=True)
        cursor.expect_operator(")")
    if cursor.word == "filter" and cursor.are_operators(1, "("):
        cursor.position += 2
        cursor.expect("where")
        node = replace(node, filter=expression(cursor))
        cursor.expect_operator(")")
    if cursor.word == "over" and (cursor.are_operators(1, "(") or _is_name(cursor, 1)):
        cursor.position += 1
        node = replace(node, over=over(cursor))
    return node


def _is_name(cursor: Cursor, ahead: int) -> bool:
    position = cursor.position + ahead
    kind = cursor.kinds[position]
    return kind == NAME or (kind == WORD and cursor.values[position] not in RESERVED)


def _arguments(cursor: Cursor, function: str) -> tuple[Tree, ...]:
    """Read what is between the parentheses of a call: also `substring(a FROM 1 FOR 2)` and its like."""
    if cursor.is_operator(")"):
        cursor.height = 1
        return ()
    if function in ("extract", "trim") and cursor.kinds[cursor.position] == WORD and function == "extract":
        field_at, field = cursor.at, cursor.label("a field")
        cursor.expect("from")
        items: list[Tree] = [Constant(field_at, STRING, field), expression(cursor)]
        height = cursor.height
    else:
        if function == "trim" and cursor.word in ("both", "leading", "trailing", "from"):
            raise cursor.unsupported(f"TRIM with {cursor.word.upper()} is")
        items = [expression(cursor, SUM if function == "position" else OR)]
        height = cursor.height
        separators = {"substring": ("from", "for"), "position": ("in",), "overlay": ("placing", "from", "for")}.get(
            function, ()
        )
        for separator in separators:
            if cursor.take(separator):
                items.append(expression(cursor))
                height = max(height, cursor.height)
        if function == "position":
            items.reverse()
        while cursor.take_operator(","):
            items.append(expression(cursor))
            height = max(height, cursor.height)
    cursor.height = height
    return tuple(items)


def _bare_function(cursor: Cursor, word: str, at: int) -> Tree:
    cursor.position += 1
    if cursor.take_operator("("):
        cursor.integer("a number of digits")
        cursor.expect_operator(")")
    return Call(at, BARE_FUNCTIONS[word])


def _cast(cursor: Cursor, at: int) -> Tree:
    if cursor.word == "try_cast":
        raise cursor.unsupported("TRY_CAST is")
    cursor.position += 1
    cursor.expect_operator("(")
    operand = expression(cursor)
    cursor.expect("as")
    name = type_name(cursor)
    cursor.expect_operator(")")
    _higher(cursor, cursor.height, at)
    return cast_to(at, operand, name)


def _case(cursor: Cursor, at: int) -> Tree:
    cursor.position += 1
    operand, height = None, 1
    if cursor.word != "when":
        operand = expression(cursor)
        height = cursor.height + 1
    branches: list[tuple[Tree, Tree]] = []
    while cursor.take("when"):
        condition = expression(cursor)
        height = max(height, cursor.height)
        cursor.expect("then")
        branches.append((condition, expression(cursor)))
        height = max(height, cursor.height)
    if not branches:
        raise cursor.unexpected("WHEN")
    otherwise = None
    if cursor.take("else"):
        otherwise = expression(cursor)
        height = max(height, cursor.height)
    cursor.expect("end")
    _higher(cursor, height, at)
    return Case(at, operand, tuple(branches), otherwise)


def type_name(cursor: Cursor) -> TypeName:
    """Read a type: words, and numbers in parentheses."""
    at = cursor.at
    name = cursor.label("a type")
    if cursor.word in MORE_TYPE_WORDS.get(name, ()):
        name = f"{name} {cursor.word}"
        cursor.position += 1
    arguments: tuple[int, ...] = ()
    if cursor.take_operator("("):
        numbers = [cursor.integer("a number")]
        while cursor.take_operator(","):
            numbers.append(cursor.integer("a number"))
        cursor.expect_operator(")")
        arguments = tuple(numbers)
    if name in ("timestamp", "time") and cursor.word in ("with", "without") and cursor.word_after() == "time":
        zone = cursor.word
        cursor.position += 1
        cursor.expect("time", "zone")
        name = f"{name} {zone} time zone"
    if cursor.is_operator("[") or cursor.word == "array":
        raise cursor.unsupported("arrays are")
    return TypeName(at, name, arguments)
