"""RoCEv1, on frames of a real adapter: a WRITE of five bytes and an acknowledge."""

import pytest

from rocemu.audit.dissect import Dissected, Dissector, Icrc
from rocemu.audit.listing import info
from rocemu.capture import CapturedPacket, Interface, Network
from rocemu.wire import WireError
from rocemu.wire.icrc import icrc_of_grh

ETHERNET = bytes.fromhex("7cfe90753cd87cfe90753cd88915")
GIDS = bytes.fromhex("00000000000000000000ffff0f00000200000000000000000000ffff0f000002")
WRITE = bytes.fromhex("6020000000281b40") + GIDS + bytes.fromhex(
    "0a70ffff0000010a80a788bc000055d4c072600000" "0047b3000000050000000001000000e3d856bb"
)  # fmt: skip
ACK = bytes.fromhex("6020000000141b40") + GIDS + bytes.fromhex(
    "1140ffff0000010900a788c00000000525f0c038"
)  # fmt: skip

#: Bytes that may change on the way: traffic class, flow label, hop limit, BTH byte 4.
MASKED = {**dict.fromkeys((1, 2, 3, 7, 44), 0xFF), 0: 0x0F}


def dissect(data: bytes) -> Dissected:
    frame = ETHERNET + data
    return Dissector().dissect(CapturedPacket(0, frame, len(frame), Interface()))


def test_what_they_are() -> None:
    assert info(dissect(WRITE)) == (
        "RC RDMA WRITE Only QP=0x10a PSN=10979516 A M VA=0x55d4c0726000 R_Key=0x000047b3 Len=5 "
        "(5 B)  [ICRC right]"
    )
    assert info(dissect(ACK)) == (
        "RC Acknowledge QP=0x109 PSN=10979520 M ACK credits 0 MSN=5  [ICRC right]"
    )
    packet = dissect(ACK)
    assert packet.network is Network.GRH
    assert (packet.source, packet.destination) == ("15.0.0.2", "15.0.0.2")


@pytest.mark.parametrize("data", [WRITE, ACK], ids=["write", "ack"])
def test_every_flipped_bit_but_the_masked_ones_is_found(data: bytes) -> None:
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            packet = dissect(bytes(changed))
            if MASKED.get(at, 0) >> bit & 1:
                assert packet.icrc is Icrc.RIGHT, (at, bit)
            else:
                assert packet.icrc is not Icrc.RIGHT, (at, bit)


@pytest.mark.parametrize("data", [ACK[:51], b"\x40" + ACK[1:], ACK[:6] + b"\x11" + ACK[7:]])
def test_what_is_no_grh_with_a_bth_is_refused(data: bytes) -> None:
    with pytest.raises(WireError) as refused:
        icrc_of_grh(data)
    assert refused.value.reason == "ip"
