"""Processes that end with the test that started them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.daemon.processes import Command, Start

LONGEST = 120


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeoutError(f"the test took more than {LONGEST} s")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(LONGEST)
    yield
    signal.alarm(0)


@contextmanager
def _starter() -> Iterator[Start]:
    running: list[Command] = []

    def start(*arguments: str, **options: object) -> Command:
        command = Command(*arguments, **options)  # type: ignore[arg-type]
        running.append(command)
        return command

    yield start
    for command in running:
        if command.process.poll() is None:
            command.kill()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a rocemu command; it is killed at the end of the test if it still runs."""
    with _starter() as starter:
        yield starter


@pytest.fixture(scope="module")
def start_shared() -> Iterator[Start]:
    """As ``start``, for a process that the tests of a module share."""
    with _starter() as starter:
        yield starter
