"""Types of columns, and the Python values that stand for their values inside the engine.

    BOOLEAN                      bool
    SMALLINT, INTEGER, BIGINT    int
    REAL, DOUBLE                 float
    DECIMAL                      decimal.Decimal, of the column's scale
    TEXT (VARCHAR)               str
    BYTES                        bytes
    JSON                         str: compact JSON text
    TIMESTAMP                    int: microseconds since 1970, UTC
    DATE                         int: days since 1970
    TIME                         int: microseconds since midnight
    UUID                         str: 36 lower-case characters

NULL is None in every type.
"""

from decimal import Decimal
from enum import Enum
from typing import Final

from msgspec import Struct

Value = bool | int | float | str | bytes | Decimal | None


class Kind(Enum):
    """The kinds of types. The value is the SQL name, and what the catalog stores."""

    BOOLEAN = "BOOLEAN"
    SMALLINT = "SMALLINT"
    INTEGER = "INTEGER"
    BIGINT = "BIGINT"
    REAL = "REAL"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    TEXT = "TEXT"
    BYTES = "BYTES"
    JSON = "JSON"
    TIMESTAMP = "TIMESTAMP"
    DATE = "DATE"
    TIME = "TIME"
    UUID = "UUID"


class Type(Struct, frozen=True, omit_defaults=True):
    """A type: `length` in characters of VARCHAR(n), `precision` and `scale` of DECIMAL(p, s); 0 means no bound."""

    kind: Kind
    length: int = 0
    precision: int = 0
    scale: int = 0

    @property
    def name(self) -> str:
        """The type as SQL writes it: `DECIMAL(10, 2)`, `VARCHAR(20)`, `BIGINT`."""
        if self.kind is Kind.DECIMAL and self.precision:
            return f"DECIMAL({self.precision}, {self.scale})"
        return f"VARCHAR({self.length})" if self.length else self.kind.value


BOOLEAN: Final = Type(Kind.BOOLEAN)
INTEGER: Final = Type(Kind.INTEGER)
BIGINT: Final = Type(Kind.BIGINT)
REAL: Final = Type(Kind.REAL)
DOUBLE: Final = Type(Kind.DOUBLE)
DECIMAL: Final = Type(Kind.DECIMAL)
TEXT: Final = Type(Kind.TEXT)
JSON: Final = Type(Kind.JSON)
TIMESTAMP: Final = Type(Kind.TIMESTAMP)
DATE: Final = Type(Kind.DATE)
