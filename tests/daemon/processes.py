"""rocemu commands as processes of their own: started, listened to, ended, never left behind.

What needs no process of its own runs in this one (:func:`run_here`), which saves its start; it
talks to the other process over loopback all the same.
"""

import io
import json
import signal
import subprocess
import sys
import threading
import unittest.mock
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import IO, Any

from rocemu.cli.main import main
from rocemu.daemon import control
from tests.net.pair import next_address

Record = dict[str, Any]
PATIENCE = 30.0
RW = "rw:64K:local_write,remote_write,remote_read,remote_atomic"
RO = "ro:4096:remote_read"


class Command:
    """A running ``rocemu NAME ...``; what it prints is read as it comes.

    With ``--json`` among the arguments, ``records`` are its events so far.  ``prefix`` is a command
    to run it under, such as ``ip netns exec NAME``.
    """

    def __init__(
        self, *arguments: str, stdin: str | None = None, prefix: Sequence[str] = ()
    ) -> None:
        self.records: list[Record] = []
        self.output: list[str] = []
        self.errors = ""
        self._as_json = "--json" in arguments
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "rocemu", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(stdin or "")
            self.process.stdin.close()
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._take_line)),
            threading.Thread(target=self._read, args=(self.process.stderr, self._take_error)),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], take: Callable[[str], None]) -> None:
        with stream:
            for line in stream:
                with self._news:
                    take(line)
                    self._news.notify_all()

    def _take_line(self, line: str) -> None:
        self.output.append(line)
        if self._as_json:
            self.records.append(json.loads(line))

    def _take_error(self, line: str) -> None:
        self.errors += line

    # ------------------------------------------------------------------ what it tells

    def of(self, event: str) -> list[Record]:
        """The records of an event so far."""
        with self._news:
            return [record for record in self.records if record["event"] == event]

    def wait_for(self, event: str, count: int = 1, **fields: object) -> Record:
        """The ``count``-th record of an event that has these fields."""

        def matching() -> list[Record]:
            return [
                record
                for record in self.records
                if record["event"] == event and fields.items() <= record.items()
            ]

        with self._news:
            came = self._news.wait_for(lambda: len(matching()) >= count, PATIENCE)
            assert came, f"no {event} {fields} from {self.process.args}: {self._told()}"
            return matching()[count - 1]

    def wait_for_error(self, text: str) -> None:
        """Wait until it said something on standard error."""
        with self._news:
            assert self._news.wait_for(lambda: text in self.errors, PATIENCE), self._told()

    def _told(self) -> str:
        return f"{''.join(self.output)}\n{self.errors}"

    # ------------------------------------------------------------------ its end

    def finish(self) -> int:
        """Wait until it ends by itself; gives the exit code."""
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    @property
    def code(self) -> int:
        """The exit code, once it has ended."""
        return int(self.process.returncode)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it with a signal; gives the exit code."""
        self.process.send_signal(number)
        return self.finish()

    def kill(self) -> None:
        """No questions asked."""
        self.process.kill()
        self.finish()


Start = Callable[..., Command]


class Finished:
    """A command that ran here, to its end."""

    def __init__(self, code: int, output: str, errors: str) -> None:
        self.code = code
        self.output = output.splitlines(keepends=True)
        self.errors = errors
        self.records: list[Record] = [
            json.loads(line) for line in self.output if line.startswith("{")
        ]

    def of(self, event: str) -> list[Record]:
        return [record for record in self.records if record["event"] == event]


def run_here(*arguments: str, stdin: str = "") -> Finished:
    """Run a command in this process."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        redirect_stdout(output),
        redirect_stderr(errors),
        unittest.mock.patch("sys.stdin", io.StringIO(stdin)),
    ):
        code = main(arguments)
    return Finished(code, output.getvalue(), errors.getvalue())


def responder(start: Start, *arguments: str, regions: tuple[str, ...] = (RO, RW)) -> Command:
    """A responder at an address of its own that listens by the time this returns."""
    options = [word for region in regions for word in ("--mr", region)]
    command = start("responder", "--json", "--bind", next_address(), *options, *arguments)
    command.wait_for("listening")
    return command


def address_of(command: Command) -> str:
    return str(command.of("listening")[0]["address"])


def requester(start: Start, to: Command | str, *arguments: str, **options: object) -> Command:
    """A requester at an address of its own; still running."""
    host = to if isinstance(to, str) else address_of(to)
    return start("requester", "--json", "--bind", next_address(), host, *arguments, **options)


def run(to: Command | str, *arguments: str, stdin: str = "") -> Finished:
    """As :func:`requester`, but here, and to its end."""
    host = to if isinstance(to, str) else address_of(to)
    return run_here("requester", "--json", "--bind", next_address(), host, *arguments, stdin=stdin)


def ask(path: Path | str, *words: str) -> list[Record]:
    """What ``rocemu ctl PATH WORDS`` prints as JSON; raises ControlError."""
    return list(control.ask(Path(path), list(words)))
