"""Comments of protos as Markdown: what they name is linked, what Markdown would take for markup is not."""

import re
from collections.abc import Sequence
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto

_CODE: Final = re.compile(r"(`[^`]*`)")
_WORD: Final = re.compile(r"\b[A-Za-z][A-Za-z0-9_]*(?:\.[a-z][a-z0-9_]*)?\b")
_TWO_PARTS: Final = re.compile(r"[A-Z][A-Za-z0-9]*[a-z0-9][A-Z]\w*$")


class Linker:
    """Knows the page of every message, enum and call."""

    def __init__(self) -> None:
        self._targets: dict[str, str] = {}
        self._words: dict[str, str] = {}

    def add(self, file: FileDescriptorProto, page: str) -> None:
        """Services, calls, messages and enums of a file. Raises ValueError where two would have one anchor."""
        names = [service.name for service in file.service] + [message.name for message in file.message_type]
        names += [enum.name for enum in file.enum_type]
        calls = [method.name for service in file.service for method in service.method]
        for name in names + calls:
            target = f"{page}#{name.lower()}"
            other = self._targets.get(name)
            if other is not None and (name not in calls or other == target):
                raise ValueError(f"two things in the protos are called {name}")
            if other is not None:  # a call of another service on a page of its own: no text means it by its name alone
                continue
            self._targets[name] = target
            if _TWO_PARTS.match(name):  # Record and Watch are English, too
                self._words[name] = self._targets[name]
        for enum in file.enum_type:
            for value in enum.value:
                self._words[value.name] = self._targets[enum.name]

    def add_word(self, word: str, target: str) -> None:
        """Something else that comments name."""
        self._words[word] = target

    def within(self, page: str) -> "PageLinker":
        return PageLinker(page, self._targets, self._words)


class PageLinker:
    """Links from one page."""

    def __init__(self, page: str, targets: dict[str, str], words: dict[str, str]) -> None:
        self._page = page
        self._targets = targets
        self._words = words

    def to(self, name: str) -> str:
        """A link to a message or an enum; other names are left as they are."""
        target = self._targets.get(name)
        return f"[{name}]({self._from_here(target)})" if target else name

    def words(self, text: str) -> str:
        """A paragraph with a link at each name."""
        parts = _CODE.split(text)
        parts[::2] = [_WORD.sub(self._word, _plain(part)) for part in parts[::2]]
        return "".join(parts)

    def _word(self, match: re.Match[str]) -> str:
        word = match[0]
        target = self._words.get(word)
        if target is None and "." in word:  # TopicState.slug
            target = self._targets.get(word.partition(".")[0])
        return f"[{word}]({self._from_here(target)})" if target else word

    def _from_here(self, target: str) -> str:
        return target.removeprefix(self._page) if target.startswith(f"{self._page}#") else target


def cell(paragraphs: Sequence[str], link: PageLinker) -> str:
    """Text for a cell of a table, with a blank behind it unless it is empty."""
    text = "<br>".join(link.words(paragraph) for paragraph in paragraphs)
    return text.replace("|", "\\|") + " " if text else ""


def fields(rows: Sequence[str]) -> str:
    """A table of fields or arguments, which the style sheet knows by its class."""
    return "\n".join(['<div class="fields" markdown>\n', *rows, "\n</div>\n"])


def code(text: str) -> str:
    return f"`{text}`"


def _plain(text: str) -> str:
    return re.sub(r"([*<\[\]])", r"\\\1", text)
