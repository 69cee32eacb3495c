"""Arrays in conditions, `x = ANY ($1)` and `x <> ALL (ARRAY[1, 2])`, as the lists of IN that the engine has."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from topics_postgres.errors import PgError, Piece
from topics_sql.tokens import OPERATOR, PARAMETER, WORD

if TYPE_CHECKING:
    from topics_postgres.statements import _Words

MAX_ELEMENTS: Final = 10_000
_ANY: Final = re.compile(r"\b(?:any|some|all)\s*\(", re.IGNORECASE)
_EMPTY: Final = {False: "IS NULL IS NULL", True: "IS NULL IS NOT NULL"}
"""Conditions that are false, and true, whatever stands before them."""


class Place(Struct, frozen=True):
    """A condition on an array, from `start` to `end` in the text: of a parameter, or of what is in the text.

    `cast` is what follows each element, as `::bigint`.
    """

    start: int
    end: int
    negated: bool
    parameter: int
    elements: str
    cast: str


class ArrayQuery(Struct, frozen=True):
    """A statement with conditions on arrays."""

    piece: Piece
    places: tuple[Place, ...]

    def text(self, lists: Mapping[int, str]) -> str:
        """The statement with IN. `lists` has what stands for each parameter, nothing for an empty array."""
        parts, at, text = [], 0, self.piece.text
        for place in self.places:
            listed = lists[place.parameter] if place.parameter else place.elements
            parts.append(text[at : place.start])
            if not listed:
                named = f"IN (${place.parameter}{place.cast}) " if place.parameter else ""  # it stays a parameter
                parts.append(named + _EMPTY[place.negated])
            else:
                elements = ", ".join(each + place.cast for each in listed.split(", ")) if place.cast else listed
                parts.append(f"{'NOT ' if place.negated else ''}IN ({elements})")
            at = place.end
        return "".join((*parts, text[at:]))

    @property
    def parameters(self) -> set[int]:
        """The numbers of the parameters that are arrays."""
        return {each.parameter for each in self.places if each.parameter}

    def spread(self, values: Sequence[Any], given: Sequence[Any]) -> tuple[str, list[Any], tuple[Any, ...]]:
        """The text for these values, its values and their types: elements beyond the first are parameters behind all.

        The number of elements is made a power of two, so that there are few texts. Raises PgError.
        """
        flat, types, lists = list(values), [*given, *(None,) * (len(values) - len(given))], dict[int, str]()
        for number in sorted(self.parameters):
            elements = values[number - 1]
            if elements is not None and not isinstance(elements, list):
                raise PgError("22P02", f"${number} is an array")
            if elements is not None and len(elements) > MAX_ELEMENTS:
                raise PgError("54000", f"${number} has more than {MAX_ELEMENTS} elements")
            flat[number - 1] = elements[0] if elements else None
            if elements is not None and not elements:
                lists[number] = ""
                continue
            more = elements[1:] if elements else []
            size = 1 << len(more).bit_length()
            first = len(flat) + 1
            lists[number] = ", ".join([f"${number}", *(f"${each}" for each in range(first, first + size - 1))])
            flat += [*more, *(flat[number - 1],) * (size - 1 - len(more))]
            types += [types[number - 1]] * (size - 1)
        return self.text(lists), flat, tuple(types)


def places_of(words: "_Words") -> tuple[Place, ...]:
    """The conditions on arrays in a statement. Raises PgError for a parameter that is used in another way too."""
    if _ANY.search(words.piece.text) is None:
        return ()
    kinds, values = words.tokens.kinds, words.tokens.values
    found = []
    for at in range(words.first, words.last - 3):
        if values[at + 1] in ("any", "some", "all") and kinds[at] == OPERATOR and kinds[at + 1] == WORD:
            negated = values[at] in ("<>", "!=") and values[at + 1] == "all"
            if values[at + 2] == "(" and (negated or (values[at] == "=" and values[at + 1] != "all")):
                place = _place(words, at, negated=negated)
                if place is not None:
                    found.append(place)
    numbers = [str(each.parameter) for each in found if each.parameter]
    for number in set(numbers):
        uses = sum(kinds[at] == PARAMETER and values[at] == number for at in range(words.first, words.last))
        if uses != numbers.count(number):
            raise words.refused(f"${number} is an array in one place and none in another")
    return tuple(found)


def _place(words: "_Words", at: int, *, negated: bool) -> Place | None:
    kinds, values, last = words.tokens.kinds, words.tokens.values, words.last
    number, elements, cast = 0, "", ""
    inside = at + 3
    if kinds[inside] == PARAMETER and len(values[inside]) < 6:
        number, inside = int(values[inside]), inside + 1
    elif values[inside] == "array" and values[inside + 1] == "[":
        begin = inside + 2
        inside = begin
        while inside < last and values[inside] not in ("[", "]"):
            inside += 1
        if inside >= last or values[inside] != "]":
            return None
        elements = _between(words, begin, inside)
        inside += 1
    else:
        return None
    if inside < last and values[inside] == "::":
        end = inside + 1
        while end < last and values[end] != "[":
            end += 1
        if end + 1 >= last or values[end + 1] != "]":
            return None
        cast = f"::{_between(words, inside + 1, end)}" if number else ""
        inside = end + 2
    if inside >= last or values[inside] != ")":
        return None
    start = words.tokens.starts[at] - words.piece.start
    return Place(start, words.tokens.starts[inside] + 1 - words.piece.start, negated, number, elements, cast)


def _between(words: "_Words", first: int, last: int) -> str:
    return words.tokens.text[words.tokens.starts[first] : words.tokens.starts[last]].strip()
