"""FETCH AND ADD, COMPARE AND SWAP: operands, byte order, what is refused and with which code."""

import pytest

from rocemu.verbs import AccessFlags, AsyncEventType, QPState, WCOpcode, WCStatus, WROpcode
from rocemu.wire import AtomicETH, Op
from tests.transport.fabric import ALL, connect, packet

ADD, SWAP = WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD, WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP
TOP = (1 << 64) - 1


@pytest.mark.parametrize(
    ("before", "add", "after"), [(41, 1, 42), (0, TOP, TOP), (TOP, 1, 0), (TOP, TOP, TOP - 1)]
)
def test_fetch_and_add_wraps_at_64_bits(before: int, add: int, after: int) -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    b.mr.memory[8:16] = before.to_bytes(8, "little")
    a.post(ADD, a.sge(0, 8), to=(b.mr, 8), compare_add=add)
    fabric.run()
    assert bytes(a.mr.memory[:8]) == before.to_bytes(8, "little")
    assert bytes(b.mr.memory[8:16]) == after.to_bytes(8, "little")
    (done,) = a.sends()
    assert (done.status, done.opcode, done.byte_len) == (
        WCStatus.IBV_WC_SUCCESS,
        WCOpcode.IBV_WC_FETCH_ADD,
        8,
    )


@pytest.mark.parametrize(("before", "after"), [(7, 9), (8, 8)])
def test_compare_and_swap(before: int, after: int) -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    b.mr.memory[:8] = before.to_bytes(8, "little")
    a.post(SWAP, a.sge(0, 8), to=(b.mr, 0), compare_add=7, swap=9)
    fabric.run()
    assert bytes(a.mr.memory[:8]) == before.to_bytes(8, "little")
    assert bytes(b.mr.memory[:8]) == after.to_bytes(8, "little")
    assert [wc.opcode for wc in a.sends()] == [WCOpcode.IBV_WC_COMP_SWAP]


def test_the_bytes_on_the_wire() -> None:
    """Swap-or-add comes before compare; operands are big-endian, memory little-endian."""
    fabric = connect()
    a, b = fabric.a, fabric.b
    b.mr.memory[:8] = bytes(range(1, 9))
    a.post(SWAP, a.sge(0, 8), to=(b.mr, 0), compare_add=0xC0FFEE, swap=0x5A)
    a.post(ADD, a.sge(0, 8), to=(b.mr, 0), compare_add=0xADD)
    fabric.run()
    target = f"{b.mr.va:016x}{b.mr.rkey:08x}"
    assert [sent.payload.hex() for sent in fabric.log] == [
        "1300ffff0000001180000100" + target + "000000000000005a" + "0000000000c0ffee",
        "1400ffff0000001180000101" + target + "0000000000000add" + "0000000000000000",
        "1200ffff0000001100000100" + "1f000001" + "0807060504030201",
        "1200ffff0000001100000101" + "1f000002" + "0807060504030201",
    ]


class TestRefusals:
    """0x61 for the queue pair's flags and the alignment, 0x62 for the region and its key (C34)."""

    @pytest.mark.parametrize("opcode", [Op.FETCH_ADD, Op.COMPARE_SWAP])
    @pytest.mark.parametrize(
        ("offset", "access", "rkey_off", "qp_access", "nak"),
        [
            (4, ALL, 0, ALL, 0x61),
            (1, ALL, 0, ALL, 0x61),
            (0, ALL, 0, ALL & ~AccessFlags.IBV_ACCESS_REMOTE_ATOMIC, 0x61),
            (0, ALL & ~AccessFlags.IBV_ACCESS_REMOTE_ATOMIC, 0, ALL, 0x62),
            (0, ALL, 1, ALL, 0x62),
            (4096, ALL, 0, ALL, 0x62),
            (4, ALL, 1, ALL, 0x62),  # misaligned and a bad key: the key counts
            (4092, ALL, 0, ALL, 0x62),  # misaligned and out of bounds
            (0, ALL, 1, ALL & ~AccessFlags.IBV_ACCESS_REMOTE_ATOMIC, 0x61),
        ],
    )
    def test_code(
        self,
        opcode: Op,
        offset: int,
        access: AccessFlags,
        rkey_off: int,
        qp_access: AccessFlags,
        nak: int,
    ) -> None:
        fabric = connect(b_attr={"qp_access_flags": qp_access})
        b = fabric.b
        mr = b.device.reg_mr(b.pd, 4096, access)
        fabric.inject(
            packet(opcode, 0x100, atomiceth=AtomicETH(mr.va + offset, mr.rkey + rkey_off, 1))
        )
        fabric.run()
        assert fabric.syndromes(b) == [(nak, 0x100, 0)]
        assert bytes(mr.memory) == bytes(4096)
        assert b.qp.state is QPState.IBV_QPS_ERR
        assert b.async_events() == [
            AsyncEventType.IBV_EVENT_QP_ACCESS_ERR
            if nak == 0x62
            else AsyncEventType.IBV_EVENT_QP_REQ_ERR
        ]


def test_remote_atomic_alone_is_enough() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    only = AccessFlags.IBV_ACCESS_LOCAL_WRITE | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
    mr = b.device.reg_mr(b.pd, 8, only)
    a.post(ADD, a.sge(0, 8), to=(mr, 0), compare_add=3)
    fabric.run()
    assert mr.load64(0) == 3
    assert [wc.status for wc in a.sends()] == [WCStatus.IBV_WC_SUCCESS]


def test_no_room_for_the_result() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    a.post(ADD, a.sge(0, 7), to=(b.mr, 0), compare_add=1)
    fabric.run()
    assert [wc.status for wc in a.sends()] == [WCStatus.IBV_WC_LOC_LEN_ERR]
    assert fabric.log == []
