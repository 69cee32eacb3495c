"""What stands on a terminal while a command works."""

import io

import pytest

from topics_cli import progress
from topics_cli.progress import Progress, amount, plain_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_says_how_far_how_fast_and_how_long() -> None:
    assert plain_line("append", 4_500_000, 10_000_000, "B", 2.0) == (
        "append  [==========>             ]   45%  4.5 MB  2.2 MB/s  2 s left"
    )
    assert plain_line("export", 12345, None, "records", 10.0) == "export  12,345 records  1,234 records/s"
    assert "100%" in plain_line("append", 11, 10, "B", 1.0)
    assert plain_line("append", 0, 10, "B", 0.0).endswith("0 B  0 B/s")


@pytest.mark.parametrize(("number", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e12, "2000.0 GB")])
def test_amounts_of_bytes(number: float, text: str) -> None:
    assert amount(number, "B") == text


def test_it_draws_on_a_terminal_only_and_takes_its_line_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    monkeypatch.setattr(progress, "_rich_progress", lambda *_: None)  # as where rich is not installed
    pipe, terminal = io.StringIO(), Terminal()
    for to in (pipe, terminal):
        with Progress("append", 10, unit="B", to=to) as shown:
            for _ in range(3):
                shown.advance(3, "7 records, 14/s")
        assert shown.done == 9
    assert pipe.getvalue() == ""
    assert "90%" in terminal.getvalue()
    assert "append  7 records, 14/s  [" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
