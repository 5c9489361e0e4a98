"""No test of sockets may hang: an alarm ends it, and the traceback shows where it was."""

import signal
from collections.abc import Iterator

import pytest

LONGEST = 90


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeoutError(f"the test took more than {LONGEST} s")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(LONGEST)
    yield
    signal.alarm(0)
