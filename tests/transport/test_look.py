"""TOS, TTL, MigReq and P_Key of what a device sends, and the P_Keys that it takes."""

import random

import pytest

from rocemu.transport import Device, PacketLook
from rocemu.verbs import WCStatus, WROpcode
from rocemu.wire import Op
from tests.transport.fabric import connect, packet, statuses

LOOK = PacketLook(tos=0x68, ttl=3, migreq=True, pkey=0x8001)


def test_every_packet_has_the_look() -> None:
    fabric = connect()
    for side in (fabric.a, fabric.b):
        side.device.look = LOOK
    a, b = fabric.a, fabric.b
    b.recv(1, b.sge(0, 4096))
    a.post(WROpcode.IBV_WR_SEND, a.sge(0, 3000), wr_id=1)
    a.post(WROpcode.IBV_WR_RDMA_READ, a.sge(0, 3000), wr_id=2, to=(b.mr, 0))
    a.post(WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD, a.sge(0, 8), wr_id=3, to=(b.mr, 0))
    fabric.run()
    assert [status for _, status in statuses(a.sends())] == [WCStatus.IBV_WC_SUCCESS] * 3
    assert len(fabric.log) == 3 + 1 + 1 + 3 + 1 + 1
    assert {(s.packet.bth.migreq, s.packet.bth.pkey) for s in fabric.log} == {(True, 0x8001)}


def test_mads_have_it_too() -> None:
    device = Device("192.0.2.1", rng=random.Random(1), look=LOOK)
    device.send_mad("192.0.2.2", bytes(256))
    ((flow, (mad,)),) = device.to_send(0.0)
    assert (flow.tos, flow.ttl) == (0x68, 3)
    assert mad[1] & 0x40
    assert mad[2:4] == b"\x80\x01"


@pytest.mark.parametrize(
    ("ours", "theirs", "taken"),
    [
        (0xFFFF, 0xFFFF, True),
        (0xFFFF, 0x7FFF, True),  # full and limited
        (0x7FFF, 0x7FFF, False),  # both limited
        (0xFFFF, 0x8001, False),  # another partition
        (0x8001, 0x0001, True),
        (0x8000, 0x8000, False),  # 0 is no partition
    ],
)
def test_p_keys_match_by_partition_and_membership(ours: int, theirs: int, taken: bool) -> None:
    fabric = connect()
    fabric.b.device.look = PacketLook(pkey=ours)
    fabric.b.recv(1, fabric.b.sge(0, 64))
    raw = bytearray(packet(Op.SEND_ONLY, 0x100, bytes(8)))
    raw[2:4] = theirs.to_bytes(2, "big")
    fabric.inject(bytes(raw))
    assert bool(fabric.b.receives()) is taken
    assert fabric.b.device.counters["pkey"] == (not taken)
