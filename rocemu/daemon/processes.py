"""Daemons as child processes: started, listened to, asked, ended."""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rocemu.daemon.control import ask
from rocemu.net import NetError

__all__ = ["DaemonProcess"]

Record = dict[str, Any]
_PATIENCE = 10.0


class DaemonProcess:
    """A ``rocemu responder`` or ``rocemu requester`` with ``--json`` and a control socket."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, control: Path) -> None:
        self.name = name
        self.records: list[Record] = []
        """Everything that it reported so far."""
        self._process = process
        self._control = control
        self._news = asyncio.Condition()
        self._ended = False
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], control: Path) -> Self:
        """Start a daemon; it is there when :meth:`wait_for` has seen its first record."""
        command = [sys.executable, "-m", "rocemu", name, "--json", "--control", str(control)]
        process = await asyncio.create_subprocess_exec(
            *command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which ends its children
            limit=1 << 24,
        )
        return cls(name, process, control)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._news:
                self.records.append(json.loads(line))
                self._news.notify_all()
        async with self._news:
            self._ended = True
            self._news.notify_all()

    async def wait_for(self, wanted: Callable[[Record], bool], since: int = 0) -> Record:
        """The first record from index ``since`` on that is wanted.

        Raises NetError with the daemon's own sentence when it ends before, or when nothing comes.
        """

        def first() -> Record | None:
            return next(filter(wanted, self.records[since:]), None)

        async with self._news:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await self._news.wait_for(lambda: self._ended or first() is not None)
            found = first()
        if found is None:
            raise NetError(await self._last_words())
        return found

    async def _last_words(self) -> str:
        if not self._ended:
            return f"the {self.name} does not go on"
        assert self._process.stderr is not None
        words = (await self._process.stderr.read()).decode().strip()
        return words.splitlines()[-1] if words else f"the {self.name} ended without a word"

    async def ask(self, *words: str) -> list[Record]:
        """Carry a command over the control socket; raises ControlError."""
        return await asyncio.to_thread(lambda: list(ask(self._control, list(words))))

    async def stop(self) -> int:
        """End the process with SIGTERM and wait for it; gives its exit code."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
        await self._reader
        assert self._process.stderr is not None
        await self._process.stderr.read()
        return await self._process.wait()
