"""The kernel peer for all tests here: one guest, booted once, in a network namespace."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.interop.exchange", "tests.interop.wiretap")

from tests.interop.kit import build  # noqa: E402  behind the line that makes its asserts speak
from tests.interop.kit.guest import TAP, guest  # noqa: E402
from tests.interop.wiretap import Wiretap  # noqa: E402


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not item.get_closest_marker("needs_interop"):
        return
    if os.environ.get("ROCEMU_INTEROP") != "1":
        pytest.skip("needs_interop: the kernel peer is asked for by `make interop`")
    if build.stale():
        pytest.fail(f"needs_interop: no kernel peer in {build.CACHE}; `make interop` builds it")


@pytest.fixture(scope="session")
def kernel() -> Iterator[None]:
    """The guest is up, and this process is in the network namespace with it."""
    with guest():
        yield


@pytest.fixture
def wire(kernel: None) -> Iterator[Wiretap]:
    tap = Wiretap(TAP)
    yield tap
    tap.close()
