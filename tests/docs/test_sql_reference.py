"""docs/sql-reference.md lists each function and type, as they are."""

from pathlib import Path

from topics_service.engine.tables.functions import ALIASES, FUNCTIONS, Volatility
from topics_service.engine.tables.types import Kind

PAGE = (Path(__file__).parents[2] / "docs" / "sql-reference.md").read_text(encoding="utf-8")


def test_functions() -> None:
    wanted = []
    for name, function in FUNCTIONS.items():
        if name == function.name:
            others = ", ".join(f"`{alias}`" for alias, of in ALIASES.items() if of == name)
            volatility = "" if function.volatility is Volatility.IMMUTABLE else function.volatility.value
            wanted.append(f"| `{function.shape}` | {function.summary} | {others} | {volatility} |")
    head = "| function | result | other names | |\n|---|---|---|---|\n"
    assert head in PAGE
    found = PAGE.partition(head)[2].split("\n\n")[0].splitlines()
    assert found == wanted, "\n".join(wanted)


def test_types() -> None:
    table = PAGE.partition("## Types")[2].partition("\n- ")[0]
    missing = [kind.value for kind in Kind if f"`{kind.value}" not in table]
    assert missing == []
    answers = PAGE.partition("## Values in JSON")[2].partition("`null` is NULL")[0]
    assert [kind.value for kind in Kind if f"`{kind.value}`" not in answers] == []
