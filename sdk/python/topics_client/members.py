"""Validation of member names in records written by hand: a wrong name would be lost silently."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches


def unknown_member(names: Iterable[str], known: Collection[str]) -> str | None:
    """Return an error for the first name that is not `known`, with the closest match; None if all are known."""
    for name in names:
        if name not in known:
            bare = {each.lstrip("$"): each for each in sorted(known)}
            close = get_close_matches(str(name).lstrip("$"), bare, 1)
            hint = f': is "{bare[close[0]]}" meant?' if close else f", only {', '.join(sorted(known))}"
            return f'a record has no member "{name}"{hint}'
    return None
