"""A position in the tokens of a text, and what each rule of the grammar asks there."""

from typing import Final

from topics_service.engine.errors import Reason, TopicsError
from topics_sql.syntax import ColumnName, ObjectName, Option, Span, Tree
from topics_sql.tokens import END, NAME, NUMBER, OPERATOR, STRING, WORD, Tokens, refuse, words

MAX_INT: Final = (1 << 63) - 1

RESERVED: Final = words(
    """all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create cross
    current_date current_time current_timestamp default deferrable desc distinct do else end except false fetch for
    foreign from full grant group having ilike in initially inner intersect into is isnull join lateral leading left
    like limit localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing primary
    references returning right select session_user similar some symmetric table tablesample then to trailing true union
    unique using variadic when where window with"""
)
"""Words that are names only in quotes."""


class Cursor:
    """Reads tokens one by one. The end of a statement, a `;` or the end of the text, matches no rule."""

    __slots__ = ("depth", "height", "kinds", "position", "starts", "text", "values")

    def __init__(self, tokens: Tokens) -> None:
        self.text, self.kinds, self.values, self.starts = tokens.text, tokens.kinds, tokens.values, tokens.starts
        self.position = 0
        self.depth = 0
        """Of the expressions being read."""
        self.height = 0
        """Of the expression read last."""

    # ------------------------------------------------------------------ looking

    @property
    def at(self) -> int:
        """The place of the next token in the text."""
        return self.starts[self.position]

    @property
    def word(self) -> str:
        """The next token if it is a word without quotes, else an empty text."""
        return self.values[self.position] if self.kinds[self.position] == WORD else ""

    def word_after(self, count: int = 1) -> str:
        """The word `count` tokens after the next one."""
        position = self.position + count
        return self.values[position] if position < len(self.kinds) and self.kinds[position] == WORD else ""

    def is_operator(self, operator: str) -> bool:
        """Return whether the next token is this operator."""
        return self.kinds[self.position] == OPERATOR and self.values[self.position] == operator

    @property
    def operator(self) -> str:
        """The next token if it is an operator, else an empty text."""
        return self.values[self.position] if self.kinds[self.position] == OPERATOR else ""

    def are_operators(self, ahead: int, *operators: str) -> bool:
        """Return whether these operators come `ahead` tokens after the next one."""
        for position, operator in enumerate(operators, self.position + ahead):
            if self.kinds[position] != OPERATOR or self.values[position] != operator:
                return False
        return True

    @property
    def at_end(self) -> bool:
        """True where the statement ends."""
        return self.kinds[self.position] == END or self.is_operator(";")

    # ------------------------------------------------------------------- taking

    def take(self, *words: str) -> bool:
        """Step over these words if they come next."""
        position = self.position
        for offset, word in enumerate(words):
            if self.values[position + offset] != word or self.kinds[position + offset] != WORD:
                return False
        self.position = position + len(words)
        return True

    def take_operator(self, operator: str) -> bool:
        """Step over an operator if it comes next."""
        if self.is_operator(operator):
            self.position += 1
            return True
        return False

    def expect(self, *words: str) -> None:
        """Step over these words. Raises `syntax_error`."""
        for word in words:
            if not self.take(word):
                raise self.unexpected(word.upper())

    def expect_operator(self, operator: str) -> None:
        """Step over an operator. Raises `syntax_error`."""
        if not self.take_operator(operator):
            raise self.unexpected(f"'{operator}'")

    def identifier(self, what: str) -> str:
        """Read a name. Raises `syntax_error`; `what` says of what."""
        kind, value = self.kinds[self.position], self.values[self.position]
        if kind == NAME or (kind == WORD and (value not in RESERVED or self.is_namespace)):
            self.position += 1
            return value
        raise self.unexpected(what)

    @property
    def is_namespace(self) -> bool:
        """Return whether `default.` comes next: the namespace, whose name is a reserved word."""
        return self.word == "default" and self.are_operators(1, ".")

    def label(self, what: str) -> str:
        """Read a name that may be any word: after AS, and after a dot."""
        kind, value = self.kinds[self.position], self.values[self.position]
        if kind in (NAME, WORD):
            self.position += 1
            return value
        raise self.unexpected(what)

    def column(self) -> ColumnName:
        """Read the name of a column of the table at hand."""
        at = self.at
        return ColumnName(at, self.identifier("a column"))

    def columns(self) -> tuple[ColumnName, ...]:
        """Read names of columns in parentheses."""
        self.expect_operator("(")
        names = [self.column()]
        while self.take_operator(","):
            names.append(self.column())
        self.expect_operator(")")
        return tuple(names)

    def object_name(self, what: str) -> ObjectName:
        """Read `name` or `namespace.name`."""
        at = self.at
        parts = [self.identifier(what)]
        if self.take_operator("."):
            parts.append(self.label("a name"))
        if self.is_operator("."):
            raise refuse(self.text, self.at, "a name has at most two parts: namespace.name")
        return ObjectName(at, tuple(parts))

    def string(self, what: str) -> str:
        """Read a string."""
        if self.kinds[self.position] != STRING:
            raise self.unexpected(what)
        self.position += 1
        return self.values[self.position - 1]

    def integer(self, what: str) -> int:
        """Read a whole number without a sign."""
        value = self.values[self.position]
        if self.kinds[self.position] != NUMBER or not value.isdecimal():
            raise self.unexpected(what)
        if len(value) > 20 or int(value) > MAX_INT:
            raise refuse(self.text, self.at, f"{value[:40]} is out of range", Reason.INVALID_VALUE, "22003")
        self.position += 1
        return int(value)

    def if_not_exists(self) -> bool:
        """Step over IF NOT EXISTS."""
        return self._condition("if", "not", "exists")

    def if_exists(self) -> bool:
        """Step over IF EXISTS."""
        return self._condition("if", "exists")

    def _condition(self, *words: str) -> bool:
        if self.word != words[0] or self.word_after() not in ("not", "exists"):
            return False
        self.expect(*words)
        return True

    def cascade(self) -> bool:
        """Step over CASCADE or RESTRICT."""
        return self.take("cascade") or (self.take("restrict") and False)

    def options(self) -> tuple[Option, ...]:
        """Read `(name = literal, ...)`. Each name once."""
        self.expect_operator("(")
        options: dict[str, Option] = {}
        while True:
            at = self.at
            name = self.label("the name of an option").lower()
            if name in options:
                raise refuse(self.text, at, f"the option {name} is given twice")
            self.expect_operator("=")
            options[name] = self._option(at, name)
            if not self.take_operator(","):
                break
        self.expect_operator(")")
        return tuple(options.values())

    def _option(self, at: int, name: str) -> Option:
        value_at = self.at
        sign = "-" if self.take_operator("-") else ""
        kind, value = self.kinds[self.position], self.values[self.position]
        if kind == NUMBER:
            self.position += 1
            return Option(at, name, sign + value, value_at, number=True)
        if sign or kind not in (STRING, WORD):
            raise self.unexpected("a number, a string or a word")
        self.position += 1
        if kind == WORD and value in ("true", "false"):
            return Option(at, name, value == "true", value_at)
        return Option(at, name, None if kind == WORD and value == "null" else value, value_at)

    def span(self, begin: int, tree: Tree) -> Span:
        """The text of an expression that began at the token `begin` and ends before the next one."""
        last = self.position - 1
        end = self.starts[last] + self._length(last)
        return Span(tree, self.text[self.starts[begin] : end])

    def _length(self, token: int) -> int:
        kind, value = self.kinds[token], self.values[token]
        if kind == STRING:
            return len(value) + value.count("'") + 2
        if kind == NAME:
            return len(value) + value.count('"') + 2
        return len(value) + (kind == "parameter")

    # ------------------------------------------------------------------ refusing

    @property
    def what(self) -> str:
        """The next token, for a message."""
        kind, value = self.kinds[self.position], self.values[self.position]
        if kind == END:
            return "the end of the text"
        return f"'{value[:40]}'"

    def unexpected(self, expected: str) -> TopicsError:
        """Make the `syntax_error` of the next token."""
        return refuse(self.text, self.at, f"expected {expected}, not {self.what}")

    def unsupported(self, what: str, at: int | None = None, hint: str = "") -> TopicsError:
        """Make the `unsupported_sql` of the next token, or of `at`; `what` ends with a verb."""
        return refuse(
            self.text,
            self.at if at is None else at,
            f"{what} not supported{hint and f': {hint}'}",
            Reason.UNSUPPORTED_SQL,
        )
