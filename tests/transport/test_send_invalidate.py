"""SEND with Invalidate: what it closes, and class J, neither ACK nor NAK, for what it may not."""

import pytest

from rocemu.protection import BindInfo, EntryState
from rocemu.transport import SOFT_ROCE
from rocemu.verbs import QPState, WCFlags, WCOpcode, WCStatus, WROpcode
from rocemu.wire import IETH, Op
from tests.transport.fabric import connect, drop, statuses
from tests.transport.windows import SECOND, WRITE, bindable, opened, register

INVALIDATE = WROpcode.IBV_WR_SEND_WITH_INV


@pytest.mark.parametrize("length", [8, 1500])
def test_it_is_silence_and_the_end_of_the_pair(length: int) -> None:
    fabric = connect(a_attr={"retry_cnt": 1})
    a, b = fabric.a, fabric.b
    plain = b.device.reg_mr(b.pd, 64, b.mr.access)
    b.recv(1, b.sge(0, 4096))
    b.recv(2, b.sge(0, 4096))
    a.post(INVALIDATE, a.sge(0, length), invalidate_rkey=plain.rkey)
    fabric.run()
    last = fabric.log[0 if length == 8 else 1].packet
    assert last.ieth == IETH(plain.rkey)
    expected = Op.SEND_ONLY_WITH_INVALIDATE if length == 8 else Op.SEND_LAST_WITH_INVALIDATE
    assert last.bth.opcode == expected
    assert fabric.wire(b) == []
    assert statuses(b.receives()) == [
        (1, WCStatus.IBV_WC_REM_INV_REQ_ERR),
        (2, WCStatus.IBV_WC_WR_FLUSH_ERR),
    ]
    assert b.async_events() == []  # a completion, so no event
    assert b.qp.state is QPState.IBV_QPS_ERR
    assert statuses(a.sends()) == [(1, WCStatus.IBV_WC_RETRY_EXC_ERR)]
    assert b.device.table.lookup(plain.rkey).mr is plain  # type: ignore[union-attr]


def test_soft_roce_acknowledges_it_and_is_silent_then() -> None:
    fabric = connect(profile=SOFT_ROCE, a_attr={"retry_cnt": 1})
    a, b = fabric.a, fabric.b
    b.recv(1, b.sge(0, 64))
    a.post(INVALIDATE, a.sge(0, 8), wr_id=1, invalidate_rkey=0xBAD00)
    a.post(WROpcode.IBV_WR_RDMA_WRITE, a.sge(0, 8), wr_id=2, to=(b.mr, 0))
    fabric.run()
    assert fabric.syndromes(b) == [(0x1F, 0x100, 1)]
    assert statuses(a.sends()) == [
        (1, WCStatus.IBV_WC_SUCCESS),
        (2, WCStatus.IBV_WC_RETRY_EXC_ERR),
    ]
    assert statuses(b.receives()) == [(1, WCStatus.IBV_WC_REM_INV_REQ_ERR)]


@pytest.mark.parametrize("kind", ["window", "fast"])
@pytest.mark.parametrize("length", [0, 8, 1500])
def test_data_is_placed_the_key_closed_and_the_receive_says_which(kind: str, length: int) -> None:
    target = opened(kind)
    fabric, a, b = target.fabric, target.fabric.a, target.fabric.b
    a.mr.write(0, b"\xa5" * 1500)
    b.recv(1, b.sge(0, 4096))
    a.post(INVALIDATE, a.sge(0, length), invalidate_rkey=target.rkey)
    fabric.run()
    assert statuses(a.sends()) == [(1, WCStatus.IBV_WC_SUCCESS)]
    (done,) = b.receives()
    assert (done.status, done.opcode) == (WCStatus.IBV_WC_SUCCESS, WCOpcode.IBV_WC_RECV)
    assert (done.wc_flags, done.invalidated_rkey) == (WCFlags.IBV_WC_WITH_INV, target.rkey)
    assert done.byte_len == length
    assert b.mr.read(0, 1501) == b"\xa5" * length + bytes(1501 - length)
    a.post(WROpcode.IBV_WR_RDMA_WRITE, a.sge(0, 8), remote_addr=target.va, rkey=target.rkey)
    fabric.run()
    assert statuses(a.sends()) == [(1, WCStatus.IBV_WC_REM_ACCESS_ERR)]
    assert bytes(target.memory[:8]) == bytes(8)


def test_a_repeated_send_does_not_invalidate_again() -> None:
    """The ACK is lost, the region opened anew with the same key: the duplicate leaves it alone."""
    target = opened("fast")
    fabric, a, b = target.fabric, target.fabric.a, target.fabric.b
    fabric.link = drop(0, source=b.device.address)
    b.recv(1, b.sge(0, 64))
    a.post(INVALIDATE, a.sge(0, 8), invalidate_rkey=target.rkey)
    fabric.run(limit=0.001)
    assert len(b.receives()) == 1
    register(b, target.mr, target.rkey & 0xFF)  # type: ignore[arg-type]
    fabric.run()
    assert statuses(a.sends()) == [(1, WCStatus.IBV_WC_SUCCESS)]
    assert [op for op, _ in fabric.wire(a)] == [Op.SEND_ONLY_WITH_INVALIDATE] * 2
    assert b.device.table.lookup(target.rkey).state is EntryState.VALID  # type: ignore[union-attr]


def test_a_window_of_another_queue_pair_is_not_the_peers_to_invalidate() -> None:
    fabric = connect(a_attr={"retry_cnt": 1})
    a, b = fabric.a, fabric.b
    mr, mw = bindable(b), b.device.alloc_mw(b.pd, SECOND)
    info = BindInfo(mr, mr.va, 64, WRITE)
    b.device.table.bind(mw, mw.rkey, info, b.pd.handle, b.qp.qp_num + 1)
    b.recv(1, b.sge(0, 64))
    a.post(INVALIDATE, a.sge(0, 8), invalidate_rkey=mw.rkey)
    fabric.run()
    assert fabric.wire(b) == []
    assert statuses(b.receives()) == [(1, WCStatus.IBV_WC_REM_INV_REQ_ERR)]
    assert mr.windows == 1
