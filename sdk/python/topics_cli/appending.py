"""A run of a command that appends its input, with its progress and the reason of its end."""

import argparse
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from topics_cli import output, server
from topics_cli.inputs import Inputs, InvalidLineError
from topics_cli.progress import Progress
from topics_cli.sending import Batch, Sender, StoppedError
from topics_cli.server import UsageError

INTERRUPTED: Final = 130
_LINGER_SECONDS: Final = 5.0  # time for an interrupted command to append the input read
_TOLD: Final = 5  # reported skipped lines


class Stop(NamedTuple):
    """The reason of a premature end."""

    text: str
    code: int
    file: str = ""
    line: int = 0  # to resume at; 0 if unknown


class Appending:
    """Appends all `inputs`. `stop` is None if everything was appended."""

    def __init__(self, arguments: argparse.Namespace, inputs: Inputs, sender: Sender) -> None:
        self.stop: Stop | None = None
        self.seconds = 0.0
        self._name: str = arguments.command
        self._keyed = getattr(arguments, "key", None) is not None
        self._inputs = inputs
        self._sender = sender

    def run(self, batches: Iterable[Batch]) -> int:
        """Append everything. Reports an error with the progress so far. Returns the exit code."""
        began = time.monotonic()
        with Progress(self._name, self._inputs.total, unit="B") as progress:
            try:
                for batch in batches:
                    if len(batch):
                        self._sender.put(batch)
                    rate = self._sender.count / max(time.monotonic() - began, 1e-3)
                    beside = f"{self._sender.count:,} records, {rate:,.0f}/s"
                    progress.advance(self._inputs.consumed - progress.done, beside)
                self._sender.finish()
            except KeyboardInterrupt:
                self.stop = self._interrupted()
            except InvalidLineError as error:
                self.stop = self._invalid(error)
            except StoppedError as error:
                self.stop = self._stopped(error)
            except (UsageError, UnicodeEncodeError):
                raise
            except (OSError, ValueError) as error:  # reading a file
                self.stop = self._failed(error)
        self.seconds = time.monotonic() - began
        self._tell_skipped()
        if self.stop is None:
            return 0
        return server.complain(self._name, f"{self.stop.text}; {self._how_far(self.stop)}", self.stop.code)

    @property
    def skipped(self) -> int:
        """The number of skipped lines."""
        return self._inputs.skipped + len(self._sender.too_large)

    def _interrupted(self) -> Stop:
        """Append the input read so far, within a time limit."""
        text = "interrupted"
        try:
            if not self._sender.finish(_LINGER_SECONDS):
                self._sender.abandon()
                text = "interrupted; writes in flight may or may not be stored"
        except StoppedError as error:
            return self._stopped(error)._replace(text=f"interrupted; {self._stopped(error).text}", code=INTERRUPTED)
        file, line = self._sender.last or ("", 0)
        return Stop(text, INTERRUPTED, file, line + 1)

    def _invalid(self, error: InvalidLineError) -> Stop:
        """Append the lines before it, unless that fails."""
        hint = "" if error.file else " (a string needs --format text, or JSON quotes)"
        try:
            self._finish()
        except StoppedError as earlier:
            return self._stopped(earlier)
        return Stop(f"{error}{hint}", server.FAILED, error.file, error.line)

    def _failed(self, error: Exception) -> Stop:
        """Append the input read before, unless that fails."""
        try:
            self._finish()
        except StoppedError as earlier:
            return self._stopped(earlier)
        file, line = self._sender.last or ("", 0)
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        return Stop(text, server.FAILED, file, line + 1)

    def _finish(self) -> None:
        if not self._keyed:
            self._sender.finish()

    def _stopped(self, error: StoppedError) -> Stop:
        batch, first, last = error.batch, error.batch.lines[0], error.batch.lines[-1]
        text = server.explained(error.cause)
        if batch.file:
            text += f"; at {batch.file}: {f'line {first}' if first == last else f'lines {first} to {last}'}"
        if error.unknown:
            text += ", without a response: they may or may not be stored"
        return Stop(text, server.exit_code(error.cause), batch.file, first)

    def _how_far(self, stop: Stop) -> str:
        sender = self._sender
        if not sender.count:
            return "nothing was appended"
        if sender.count == 1:
            text = f"1 record before it was appended (seq {sender.last_seq})"
        else:
            text = f"{sender.count:,} records before it were appended (seq {sender.first_seq} to {sender.last_seq})"
        files = self._inputs.files
        if stop.file and stop.line:
            text += f", resume with --start-line {stop.line}"
            if stop.file in files[:-1]:
                text += f" and {' '.join(files[files.index(stop.file) :])}"
        return text

    def _tell_skipped(self) -> None:
        large = [InvalidLineError(each.file, each.lines[0], 0, "it is too large") for each in self._sender.too_large]
        for error in [*self._inputs.invalid, *large][:_TOLD]:
            output.note(f"topics {self._name}: skipped {error}")
        if self.skipped > _TOLD:
            output.note(f"topics {self._name}: skipped {self.skipped:,} in total")
