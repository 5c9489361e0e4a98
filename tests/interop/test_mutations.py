"""The checks can fail: each of these faults in what rocemu sends must be noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocemu.net import senders
from rocemu.wire import Flow
from tests.interop.cases import CASES, expected
from tests.interop.exchange import check
from tests.interop.wiretap import ACKNOWLEDGE, Wiretap

pytestmark = pytest.mark.needs_interop

Mutation = Callable[[bytes], bytes]


def add(at: int, size: int, only: Callable[[int], bool]) -> Mutation:
    """One more in a big-endian field of packets whose opcode is meant."""

    def mutate(packet: bytes) -> bytes:
        if not only(packet[0]):
            return packet
        field = int.from_bytes(packet[at : at + size], "big") + 1
        return packet[:at] + field.to_bytes(size, "big") + packet[at + size :]

    return mutate


PSN, MSN = 9, 13
_requests = (0x06, 0x0A, 0x0C).__contains__
_acks = ACKNOWLEDGE.__eq__

MUTATIONS: dict[str, tuple[str, str, Mutation]] = {  # requester, case, fault before the ICRC
    "PSN of a request": ("rocemu", "ok_write", add(PSN, 3, _requests)),
    "PSN of an ACK": ("kernel", "ok_write", add(PSN, 3, _acks)),
    "PSN of a NAK": ("kernel", "write_ro_mr", add(PSN, 3, _acks)),
    "PSN of a READ response": ("kernel", "ok_read", add(PSN, 3, (0x0D).__eq__)),
    "MSN of an ACK": ("kernel", "ok_write", add(MSN, 3, _acks)),
    "MSN of a NAK": ("kernel", "write_ro_mr", add(MSN, 3, _acks)),
}


@pytest.mark.parametrize("what", MUTATIONS)
async def test_a_wrong_number_is_noticed(
    what: str, wire: Wiretap, monkeypatch: pytest.MonkeyPatch
) -> None:
    requester, name, mutate = MUTATIONS[what]
    seal = senders.seal
    monkeypatch.setattr(senders, "seal", lambda packet, flow: seal(mutate(packet), flow))
    with pytest.raises(AssertionError):
        await check(CASES[name], expected(name, requester), requester, wire, ipv6=False)


@pytest.mark.parametrize("requester", ["kernel", "rocemu"])
@pytest.mark.parametrize("bit", [0, 13, 31])
async def test_one_bit_of_the_icrc_is_noticed(
    bit: int, requester: str, wire: Wiretap, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal = senders.seal

    def flipped(packet: bytes, flow: Flow) -> bytes:
        sealed = seal(packet, flow)
        icrc = int.from_bytes(sealed[-4:], "little") ^ 1 << bit
        return sealed[:-4] + icrc.to_bytes(4, "little")

    monkeypatch.setattr(senders, "seal", flipped)
    with pytest.raises(AssertionError):
        await check(CASES["ok_write"], CASES["ok_write"].then, requester, wire, ipv6=False)
