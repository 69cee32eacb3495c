"""sqlglot as it reads our text: an oracle of tests."""

from typing import ClassVar, Final

from sqlglot.dialects.postgres import Postgres
from sqlglot.tokens import TokenType


class WithoutDollarQuotes(Postgres):
    """PostgreSQL's dialect, but that `$1,$2` is two parameters and not a string."""

    class Tokenizer(Postgres.Tokenizer):
        HEREDOC_STRINGS: ClassVar[list[str | tuple[str, str]]] = []
        SINGLE_TOKENS: ClassVar[dict[str, TokenType]] = {**Postgres.Tokenizer.SINGLE_TOKENS, "$": TokenType.PARAMETER}


DIALECT: Final = WithoutDollarQuotes()
