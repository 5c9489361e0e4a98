"""The control socket: ``rocemu ctl PATH COMMAND`` and what daemons make of it.

A Unix stream socket, mode 0600.  A client sends one line, a JSON list of words; the answer is JSON
objects, one a line, of which the last is ``{"ok": true}`` or ``{"error": "a sentence"}``.
"""

import asyncio
import inspect
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["ControlError", "ControlServer", "ask"]

Record = dict[str, Any]


class ControlError(Exception):
    """A command that cannot be carried out, or a socket that cannot be had; a sentence."""


class ControlServer:
    """Serves commands on a socket; each is a function that takes words and gives records."""

    def __init__(self, path: Path, commands: dict[str, Callable[..., Any]]) -> None:
        self._path = path
        self._commands = commands
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, path: Path, commands: dict[str, Callable[..., Any]]) -> "ControlServer":
        """Listen on ``path``, in place of a socket that a dead process left there.

        Raises ControlError when another process listens there or the path cannot be used.
        """
        server = cls(path, commands)
        _clear(path)
        old = os.umask(0o177)
        try:
            server._server = await asyncio.start_unix_server(server._serve, path)
        except OSError as error:
            raise ControlError(f"control socket {path}: {error.strerror or error}") from error
        finally:
            os.umask(old)
        return server

    async def close(self) -> None:
        """Stop listening, drop who still waits for an answer, and remove the socket."""
        assert self._server is not None
        self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        with suppress(FileNotFoundError):
            self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            answer = await self._carry_out(await reader.readline())
            for record in answer:
                writer.write(json.dumps(record).encode() + b"\n")
            await writer.drain()
        except (ConnectionError, ValueError):
            pass  # the client went away, or sent a line without end
        finally:
            self._clients.discard(task)
            writer.close()

    async def _carry_out(self, line: bytes) -> list[Record]:
        try:
            words = json.loads(line)
        except ValueError:
            words = None
        try:
            if not isinstance(words, list) or not words or not all(map(_is_text, words)):
                raise ControlError("a request is a JSON list of words")
            command = self._commands.get(words[0])
            if command is None:
                names = ", ".join(self._commands)
                raise ControlError(f"no command {words[0]!r}; there are {names}")
            try:
                inspect.signature(command).bind(*words[1:])
            except TypeError:
                wanted = " ".join(name.upper() for name in inspect.signature(command).parameters)
                raise ControlError(f"usage: {words[0]} {wanted}".rstrip()) from None
            records = command(*words[1:])
            if inspect.isawaitable(records):
                records = await records
            return [*records, {"ok": True}]
        except (ControlError, ValueError, OSError) as error:
            return [{"error": str(error)}]


def _is_text(word: object) -> bool:
    return isinstance(word, str)


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens on any more."""
    if path.is_socket():
        if _answers(path):
            raise ControlError(f"another process listens on control socket {path}")
        path.unlink()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def ask(path: Path, words: list[str]) -> Iterator[Record]:
    """Carry a command to the daemon behind ``path``; gives its records.

    Raises ControlError with the daemon's sentence, or when nobody listens there (any more).
    """
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
            client.sendall(json.dumps(words).encode() + b"\n")
            with client.makefile("rb") as lines:
                for line in lines:
                    record = json.loads(line)
                    if "error" in record:
                        raise ControlError(record["error"])
                    if "ok" in record:
                        return
                    yield record
        except OSError as error:
            why = error.strerror or error
            raise ControlError(f"no daemon answers on {path}: {why}") from None
    raise ControlError(f"the daemon behind {path} ended before it answered")
