"""docs/sql-reference.md lists each aggregate and function of windows, as they are."""

from pathlib import Path

from topics_service.engine.tables.aggregates import AGGREGATES

PAGE = (Path(__file__).parents[2] / "docs" / "sql-reference.md").read_text(encoding="utf-8")


def test_aggregates() -> None:
    wanted = [f"| `{function.shape}` | {function.summary} |" for function in AGGREGATES.values()]
    head = "| aggregate | result |\n|---|---|\n"
    assert head in PAGE
    assert PAGE.partition(head)[2].split("\n\n")[0].splitlines() == wanted, "\n".join(wanted)
