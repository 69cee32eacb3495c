"""Checks of prose for `make lint`: docstrings begin with a noun phrase or a verb, docstrings, comments and messages
avoid phrases that read like a translation, and users read of no "door".

Run as a program: prints each fault with its place, and fails if there are any.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    "service",
    "gateway_http",
    "gateway_kafka",
    "gateway_postgres",
    "sql",
    "sdk/python",
    "spark_connector",
)
GENERATED: Final = ("sdk/python/topics_client/sync/",)
PAGES: Final = ("docs/*.md", "docs/guides/*.md", "README.md", "CHANGELOG.md", "examples/*.md", "mkdocs.yml")

_QUESTION: Final = re.compile(r"(?:What|Whether|Who|Whose|Whoever|Where|How|Which|When|Why)\b")
_TRANSLATED: Final = re.compile(
    r"\b(?:(?:is|are|was|were|been|be) told|told|so many|go(?:es)? on|going on|whoever|nobody|anew|for ever|made again"
    r"|stands? still|as (?:it|they) (?:came|comes?)|what there is|a thing of its own)\b"
)
"""Phrases with a plain or standard word: "gets", "N", "continues", "any client", "none", "again", "unchanged"."""
_DOOR: Final = re.compile(r"\bdoors?\b", re.IGNORECASE)
_NAMES: Final = frozenset({"door"})
"""Literals that are names which programs read: a label of metrics, a member of audit lines."""
_CODE: Final = re.compile(r"```.*?```|`[^`\n]*`|\"door\"|\]\([^)\n]*\)", re.DOTALL)


def sources() -> Iterator[tuple[str, ast.Module]]:
    """The written modules of all packages, by path."""
    for path in _listed(*(f"{package}/**.py" for package in PACKAGES)):
        if not path.startswith(GENERATED):
            yield path, ast.parse((ROOT / path).read_text())


def questions() -> Iterator[str]:
    """The docstrings that begin with a question word, those of attributes too, each with its place."""
    for path, tree in sources():
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                words = text.value.strip()
                if _QUESTION.match(words):
                    yield f"{path}:{text.lineno}: {words.splitlines()[0]!r} begins with a question word"


def questioning_messages() -> Iterator[str]:
    """The messages, help texts and log lines that begin with a question word, each with its place.

    Real questions may.
    """
    for path, tree in sources():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            for given in (*call.args, *(keyword.value for keyword in call.keywords)):
                first = given.values[0] if isinstance(given, ast.JoinedStr) and given.values else given
                text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
                if " " in text and "?" not in text and _QUESTION.match(text[:1].upper() + text[1:]):
                    yield f"{path}:{first.lineno}: {text[:100]!r} begins with a question word"


def translated() -> Iterator[str]:
    """The docstrings, comments and messages with a phrase of `_TRANSLATED`, each with its place.

    Code in backquotes may have any words.
    """
    for path, tree in sources():
        texts = [
            (node.lineno, node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        ]
        tokens = tokenize.generate_tokens(io.StringIO((ROOT / path).read_text()).readline)
        texts += [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
        for line, text in texts:
            words = " ".join(_CODE.sub("", text).split())
            if found := _TRANSLATED.search(words):
                yield f"{path}:{line}: {words[max(0, found.start() - 40) : found.end() + 40]!r} says {found[0]!r}"


def doors_in_literals() -> Iterator[str]:
    """The strings that users may see and that say "door"."""
    for path, tree in sources():
        # A bare string below an assignment documents it: users do not see it.
        unseen = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
        for node in texts:
            text = str(node.value)
            if id(node) not in unseen and text not in _NAMES and _DOOR.search(text):
                yield f"{path}:{node.lineno}: {text.strip()[:100]!r} says door"


def doors_in_pages() -> Iterator[str]:
    """The lines of pages that say "door", but in code and in names of files."""
    for path in _listed(*PAGES):
        text = _CODE.sub(lambda code: "\n" * code[0].count("\n"), (ROOT / path).read_text())
        for number, line in enumerate(text.splitlines(), 1):
            if _DOOR.search(line):
                yield f"{path}:{number}: {line.strip()[:100]} (says door)"


def _listed(*patterns: str) -> list[str]:
    command = ["git", "ls-files", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [path for path in listed if (ROOT / path).exists()]


def main() -> int:
    """The exit code."""
    faults = [*questions(), *questioning_messages(), *translated(), *doors_in_literals(), *doors_in_pages()]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
