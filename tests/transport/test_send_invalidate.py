"""SEND with Invalidate of a key that may not be invalidated: class J, neither ACK nor NAK."""

import pytest

from rocemu.transport import SOFT_ROCE
from rocemu.verbs import QPState, WCStatus, WROpcode
from rocemu.wire import IETH, Op
from tests.transport.fabric import connect, statuses

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
