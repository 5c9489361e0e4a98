"""Every case, with the kernel as the requester of rocemu and the other way round."""

from __future__ import annotations

import pytest

from tests.interop.cases import CASES, expected
from tests.interop.exchange import check
from tests.interop.wiretap import Wiretap

pytestmark = pytest.mark.needs_interop


@pytest.mark.parametrize(
    ("name", "requester"),
    [(name, requester) for name, case in CASES.items() for requester in case.requesters],
)
async def test_case(name: str, requester: str, wire: Wiretap) -> None:
    await check(CASES[name], expected(name, requester), requester, wire, ipv6=False)
