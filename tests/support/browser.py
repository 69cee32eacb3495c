"""A headless browser, driven by the DevTools protocol, and the processes of which a test reads what they print."""

import itertools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

from websockets.sync.client import ClientConnection, connect

from support.waiting import poll

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 25.0


class Lines:
    """A process, and the lines that it has printed."""

    def __init__(self, command: list[str], *, stderr: bool = False) -> None:
        stdout, errors = (subprocess.DEVNULL, subprocess.PIPE) if stderr else (subprocess.PIPE, None)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=errors, text=True)
        self._lines: list[str] = []
        pipe = self.process.stderr if stderr else self.process.stdout
        assert pipe is not None
        self._reader = threading.Thread(target=self._read, args=(pipe,))
        self._reader.start()

    def seen(self) -> list[str]:
        return list(self._lines)

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            self._lines.extend(pipe)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)


class Page:
    """A page of a headless browser, loaded from `url`."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self._session = ""
        target = self._call("Target.createTarget", url=url)["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        poll(lambda: self.run("document.readyState === 'complete' && location.href") == url, SECONDS)

    def run(self, script: str) -> Any:
        """The value of a script, or of the promise that it gives."""
        result = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))
        while True:
            reply = json.loads(self._connection.recv(SECONDS))
            if reply.get("id") == number:
                return dict(reply["result"])


@contextmanager
def open_browser(directory: Path, *flags: str) -> Iterator[ClientConnection]:
    """A browser of our own, with `flags` of Chromium besides."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--remote-debugging-port=0", f"--user-data-dir={directory}/profile", *flags, "about:blank",
    ]  # fmt: skip
    with Lines(command, stderr=True) as browser:

        def endpoint() -> str:
            found = re.search(r"DevTools listening on (ws://\S+)", "".join(browser.seen()))
            return found[1] if found else ""

        with connect(poll(endpoint, SECONDS, "the browser"), proxy=None, max_size=None) as connection:
            yield connection


@contextmanager
def open_page(directory: Path, url: str) -> Iterator[Page]:
    """A browser of our own with one page."""
    with open_browser(directory) as browser:
        yield Page(browser, url)
