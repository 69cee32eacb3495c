"""Code blocks that show the same in several languages become tabs.

In the Markdown they stand one behind the other, under a comment that names them and that a code host does not show.
They are ordinary blocks to tests that run what a page shows:

    <!-- tabs: Python, curl -->
    ```python
    …
    ```

    ```sh
    …
    ```
"""

import re
from typing import Final

_MARK: Final = re.compile(r"^<!-- tabs: (.+?) -->\n", re.MULTILINE)
_BLOCK: Final = re.compile(r"\n*(```\w+\n.*?^```\n)", re.DOTALL | re.MULTILINE)


def with_tabs(markdown: str) -> str:
    """The text with tabs in place of marked blocks. Raises ValueError where a mark names more blocks than follow it."""
    parts, done = [], 0
    for mark in _MARK.finditer(markdown):
        parts.append(markdown[done : mark.start()])
        done = mark.end()
        for title in mark[1].split(","):
            block = _BLOCK.match(markdown, done)
            if block is None:
                raise ValueError(f"no code block for the tab {title.strip()!r} of {mark[0].strip()!r}")
            body = re.sub(r"^(?=.)", "    ", block[1], flags=re.MULTILINE)
            parts.append(f'=== "{title.strip()}"\n\n{body}\n')
            done = block.end()
    parts.append(markdown[done:])
    return "".join(parts)
