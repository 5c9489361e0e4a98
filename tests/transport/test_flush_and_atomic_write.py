"""RDMA FLUSH and ATOMIC WRITE ([IBTA] Annex A19): answered by an empty READ response, saved."""

import mmap
from pathlib import Path

import pytest

from rocemu.transport import QPError
from rocemu.verbs import (
    AccessFlags,
    AsyncEventType,
    QPState,
    SendFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from rocemu.wire import FETH, RETH, Op
from tests.transport.fabric import ALL, Fabric, connect, drop, packet, statuses

FLUSH, ATOMIC_WRITE = WROpcode.IBV_WR_FLUSH, WROpcode.IBV_WR_ATOMIC_WRITE
GLOBAL = AccessFlags.IBV_ACCESS_FLUSH_GLOBAL
PERSISTENT = AccessFlags.IBV_ACCESS_FLUSH_PERSISTENT
SUCCESS = WCStatus.IBV_WC_SUCCESS


def with_flush(rights: AccessFlags = GLOBAL | PERSISTENT) -> Fabric:
    return connect(b_attr={"qp_access_flags": ALL | rights})


def test_flush_is_answered_by_an_empty_read_response_and_completes() -> None:
    fabric = with_flush()
    a, b = fabric.a, fabric.b
    mr = b.device.reg_mr(b.pd, 4096, ALL | GLOBAL)
    a.post(WROpcode.IBV_WR_RDMA_WRITE, a.sge(0, 8), wr_id=1, to=(mr, 0))
    a.post(FLUSH, wr_id=2, to=(mr, 0), flush_length=8)
    fabric.run()
    done = a.sends()
    assert statuses(done) == [(1, SUCCESS), (2, SUCCESS)]
    assert done[1].opcode is WCOpcode.IBV_WC_FLUSH
    request = fabric.log[1].packet
    assert (request.bth.opcode, request.feth) == (Op.FLUSH, FETH(1, 0))
    assert request.reth == RETH(mr.va, mr.rkey, 8)
    assert not request.payload
    assert fabric.wire(b) == [(Op.ACKNOWLEDGE, 0x100), (Op.RDMA_READ_RESPONSE_ONLY, 0x101)]
    assert fabric.syndromes(b)[1] == (0x1F, 0x101, 2)
    assert not fabric.log[-1].packet.payload


def test_flush_of_a_mapped_file_writes_it_back(tmp_path: Path) -> None:
    fabric = with_flush()
    a, b = fabric.a, fabric.b
    file = tmp_path / "memory"
    file.write_bytes(bytes(4096))
    with file.open("r+b") as stream, mmap.mmap(stream.fileno(), 4096) as mapped:
        mr = b.device.reg_mr(b.pd, mapped, ALL | PERSISTENT)
        a.mr.write(0, b"kept")
        a.post(WROpcode.IBV_WR_RDMA_WRITE, a.sge(0, 4), wr_id=1, to=(mr, 0))
        a.post(FLUSH, wr_id=2, to=(mr, 0), flush_length=4, flush_placement=2)
        fabric.run()
        assert statuses(a.sends()) == [(1, SUCCESS), (2, SUCCESS)]
        assert file.read_bytes()[:4] == b"kept"
        b.device.dereg_mr(mr)
        mr.memory.release()


@pytest.mark.parametrize(
    ("rights", "placement", "syndrome"),
    [(GLOBAL, 2, 0x61), (PERSISTENT, 1, 0x61), (GLOBAL, 3, 0x61), (GLOBAL | PERSISTENT, 3, 0x62)],
)
def test_flush_needs_the_rights_of_its_placement(
    rights: AccessFlags, placement: int, syndrome: int
) -> None:
    """Missing on the queue pair: Invalid Request; missing on the region: Remote Access Error."""
    fabric = with_flush(rights)
    mr = fabric.b.device.reg_mr(fabric.b.pd, 4096, ALL | GLOBAL)
    fabric.a.post(FLUSH, to=(mr, 0), flush_length=8, flush_placement=placement)
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(syndrome, 0x100, 0)]
    assert fabric.b.qp.state is QPState.IBV_QPS_ERR


@pytest.mark.parametrize("feth", [FETH(0, 0), FETH(4, 0), FETH(1, 2), FETH(1, 3)])
def test_reserved_placement_or_selectivity_is_an_invalid_request(feth: FETH) -> None:
    fabric = with_flush()
    mr = fabric.b.device.reg_mr(fabric.b.pd, 4096, ALL | GLOBAL)
    fabric.inject(packet(Op.FLUSH, 0x100, feth=feth, reth=RETH(mr.va, mr.rkey, 8)))
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(0x61, 0x100, 0)]
    assert AsyncEventType.IBV_EVENT_QP_REQ_ERR in fabric.b.async_events()


def test_flush_of_a_whole_region_ignores_address_and_length() -> None:
    fabric = with_flush()
    mr = fabric.b.device.reg_mr(fabric.b.pd, 4096, ALL | GLOBAL)
    fabric.a.post(FLUSH, to=(mr, 1 << 40), flush_length=99, flush_selectivity=1)
    fabric.run()
    assert statuses(fabric.a.sends()) == [(1, SUCCESS)]


def test_flush_of_a_whole_region_still_needs_its_key() -> None:
    fabric = with_flush()
    fabric.a.post(FLUSH, remote_addr=0, rkey=0xDEADBEEF, flush_selectivity=1)
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(0x62, 0x100, 0)]


def test_flush_takes_nothing_inline() -> None:
    fabric = with_flush()
    with pytest.raises(QPError, match="nothing to send inline"):
        fabric.a.post(FLUSH, flags=SendFlags.IBV_SEND_INLINE)


def test_atomic_write_stores_eight_bytes_as_they_are() -> None:
    fabric = connect()
    a, b = fabric.a, fabric.b
    a.mr.write(0, b"8 bytes!")
    a.post(ATOMIC_WRITE, a.sge(0, 8), to=(b.mr, 64))
    fabric.run()
    (done,) = a.sends()
    assert (done.status, done.opcode) == (SUCCESS, WCOpcode.IBV_WC_ATOMIC_WRITE)
    assert b.mr.read(64, 8) == b"8 bytes!"
    request = fabric.log[0].packet
    assert request.reth == RETH(b.mr.va + 64, b.mr.rkey, 8)
    assert bytes(request.payload) == b"8 bytes!"
    assert fabric.wire(b) == [(Op.RDMA_READ_RESPONSE_ONLY, 0x100)]
    assert fabric.syndromes(b) == [(0x1F, 0x100, 1)]


def test_a_lost_answer_does_not_make_atomic_write_happen_twice() -> None:
    fabric = connect(link=drop(0, source="192.0.2.2"))
    a, b = fabric.a, fabric.b
    a.mr.write(0, b"8 bytes!")
    a.post(ATOMIC_WRITE, a.sge(0, 8), to=(b.mr, 0))
    fabric._collect()
    while not b.device.counters["received"]:
        fabric.run(limit=20e-6)
    b.mr.write(0, b"changed!")  # by somebody else, after the first execution
    fabric.run()
    assert statuses(a.sends()) == [(1, SUCCESS)]
    assert b.mr.read(0, 8) == b"changed!"
    assert fabric.wire(b) == [(Op.RDMA_READ_RESPONSE_ONLY, 0x100)] * 2


@pytest.mark.parametrize(
    ("payload", "length", "offset", "syndrome"),
    [(8, 8, 4, 0x61), (8, 16, 0, 0x61), (4, 8, 0, 0x61), (12, 8, 0, 0x61), (8, 8, 1 << 20, 0x62)],
    ids=["misaligned", "RETH not 8", "short", "long", "out of bounds"],
)
def test_faults_of_atomic_write(payload: int, length: int, offset: int, syndrome: int) -> None:
    fabric = connect()
    b = fabric.b
    reth = RETH(b.mr.va + offset, b.mr.rkey, length)
    fabric.inject(packet(Op.ATOMIC_WRITE, 0x100, bytes(payload), reth=reth))
    fabric.run()
    assert fabric.syndromes(b) == [(syndrome, 0x100, 0)]
    assert not any(b.mr.read(0, 64))


def test_atomic_write_needs_remote_write_alone() -> None:
    fabric = connect(b_attr={"qp_access_flags": AccessFlags.IBV_ACCESS_REMOTE_WRITE})
    b = fabric.b
    writable = AccessFlags.IBV_ACCESS_LOCAL_WRITE | AccessFlags.IBV_ACCESS_REMOTE_WRITE
    mr = b.device.reg_mr(b.pd, 64, writable)
    fabric.a.post(ATOMIC_WRITE, fabric.a.sge(0, 8), to=(mr, 0))
    fabric.run()
    assert statuses(fabric.a.sends()) == [(1, SUCCESS)]


def test_atomic_write_of_another_length_is_a_local_error() -> None:
    fabric = connect()
    fabric.a.post(ATOMIC_WRITE, fabric.a.sge(0, 4), to=(fabric.b.mr, 0))
    fabric.run()
    assert statuses(fabric.a.sends()) == [(1, WCStatus.IBV_WC_LOC_LEN_ERR)]
    assert fabric.log == []
