"""What the kernel sends is odd in two ways, and both are taken: IP IDs, and no UDP checksum."""

from __future__ import annotations

import pytest

from rocemu.net import sockets
from tests.interop.cases import CASES, FINE
from tests.interop.exchange import REQUESTER_PSN, RESPONDER_PSN, check, sides
from tests.interop.sides import Kernel, Link, Rocemu, Send, Setup
from tests.interop.wiretap import Wiretap

pytestmark = pytest.mark.needs_interop


async def read_from(ipv6: bool) -> tuple[Rocemu, list[str]]:
    """Ten READs by rocemu, whose responses the kernel sends; our side and the statuses."""
    async with sides("rocemu", Setup(), ipv6=ipv6) as (ours, kernel):
        assert isinstance(ours, Rocemu)
        assert isinstance(kernel, Kernel)
        await kernel.connect(ours, Link(REQUESTER_PSN, RESPONDER_PSN))
        await ours.connect(kernel, Link(RESPONDER_PSN, REQUESTER_PSN))
        target = kernel.regions["target"]
        await ours.send(
            *(
                Send(n, CASES["ok_read"].op, 3000, "sink", addr=target.va, rkey=target.rkey)
                for n in range(10)
            )
        )
        return ours, [completion.status for completion in await ours.poll("send", 10)]


async def test_the_ip_id_of_every_packet_is_solved_for(wire: Wiretap) -> None:
    ours, statuses = await read_from(ipv6=False)
    assert statuses == ["IBV_WC_SUCCESS"] * 10
    theirs = [packet for packet in wire.take() if packet.source != ours.address]
    assert len(theirs) == 30
    unknown = sum(packet.ip_id not in range(64) for packet in theirs)
    assert unknown > 0
    counters = ours.nic.device.counters
    assert counters["icrc_solved"] == unknown
    assert counters["icrc_solved"] + counters["icrc_known_id"] == len(theirs)
    assert counters["icrc_bad"] == 0


async def test_over_ipv6_the_icrc_is_exact_and_checksum_0_is_taken(wire: Wiretap) -> None:
    ours, statuses = await read_from(ipv6=True)
    assert statuses == ["IBV_WC_SUCCESS"] * 10
    theirs = [packet for packet in wire.take() if packet.source != ours.address]
    assert [packet.udp_checksum for packet in theirs] == [0] * 30
    assert ours.nic.device.counters["icrc_exact"] == 30


async def test_an_ordinary_socket_would_never_see_those(
    wire: Wiretap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_UDP_NO_CHECK6_RX", sockets._UDP_NO_CHECK6_RX - 1)
    ours, statuses = await read_from(ipv6=True)
    assert statuses[0] == "IBV_WC_RETRY_EXC_ERR"
    assert any(packet.source != ours.address for packet in wire.take())
    assert ours.nic.device.counters["received"] == 0


@pytest.mark.parametrize("requester", ["kernel", "rocemu"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.then == FINE])
async def test_the_plain_cases_over_ipv6(name: str, requester: str, wire: Wiretap) -> None:
    await check(CASES[name], FINE, requester, wire, ipv6=True)
