"""Requests behind the expected PSN: answered again, never executed again, never a NAK."""

import pytest

from rocemu.transport import Drop
from rocemu.verbs import QPState, WCStatus, WROpcode
from rocemu.wire import RETH, AtomicETH, Op
from tests.transport.fabric import B_ADDRESS, Fabric, connect, drop, packet, statuses

OK = WCStatus.IBV_WC_SUCCESS


def answers(fabric: Fabric) -> list[tuple[int, int]]:
    """(opcode, PSN) of what the responder sent since the last call."""
    fabric.run()
    sent = fabric.wire(fabric.b)
    fabric.log.clear()
    return sent


def read(fabric: Fabric, psn: int, length: int, offset: int = 0, rkey: int | None = None) -> bytes:
    mr = fabric.b.mr
    reth = RETH(mr.va + offset, mr.rkey if rkey is None else rkey, length)
    return packet(Op.RDMA_READ_REQUEST, psn, reth=reth)


def write(fabric: Fabric, psn: int, data: bytes, *, ackreq: bool = True) -> bytes:
    reth = RETH(fabric.b.mr.va, fabric.b.mr.rkey, len(data))
    return packet(Op.RDMA_WRITE_ONLY, psn, data, ackreq=ackreq, reth=reth)


def test_a_repeated_write_is_acknowledged_with_the_newest_psn_and_not_executed() -> None:
    fabric = connect()
    for psn, data in ((0x100, b"one!"), (0x101, b"two!"), (0x102, b"tri!")):
        fabric.inject(write(fabric, psn, data))
    fabric.run()
    fabric.log.clear()
    fabric.inject(write(fabric, 0x100, b"old!", ackreq=False))
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(0x1F, 0x102, 3)]
    assert bytes(fabric.b.mr.memory[:4]) == b"tri!"
    fabric.inject(write(fabric, 0x103, b"new!"))
    fabric.run()
    assert fabric.syndromes(fabric.b)[-1] == (0x1F, 0x103, 4)
    assert fabric.b.device.counters["duplicate"] == 0  # that counts those that are dropped


def test_the_acknowledgement_of_a_repetition_ends_before_a_read_that_followed() -> None:
    """To a requester whose READ was not answered, an ACK of that READ says no more than that."""
    fabric = connect()
    for request in (
        write(fabric, 0x100, b"one!"),
        write(fabric, 0x101, b"two!"),
        read(fabric, 0x102, 2048),
        write(fabric, 0x104, b"tri!"),
        read(fabric, 0x105, 8),
    ):
        fabric.inject(request)
    fabric.run()
    fabric.log.clear()
    fabric.inject(write(fabric, 0x100, b"one!"))
    fabric.run()
    fabric.inject(write(fabric, 0x104, b"tri!"))
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(0x1F, 0x101, 2), (0x1F, 0x104, 4)]


def test_a_read_long_ago_does_not_hold_an_acknowledgement_back() -> None:
    fabric = connect()
    fabric.inject(read(fabric, 0x100, 8))
    fabric.run()
    fabric.b.qp.responder.epsn = 0x900100  # as if 9 * 2^20 WRITEs had come
    fabric.log.clear()
    fabric.inject(write(fabric, 0x9000FF, b"data"))
    fabric.run()
    assert [(syndrome, psn) for syndrome, psn, _ in fabric.syndromes(fabric.b)] == [
        (0x1F, 0x9000FF)
    ]


def test_repetitions_that_come_together_are_acknowledged_together() -> None:
    fabric = connect()
    for psn in (0x100, 0x101):
        fabric.inject(write(fabric, psn, b"data"))
    fabric.run()
    fabric.log.clear()
    for psn in (0x100, 0x101):
        fabric.inject(write(fabric, psn, b"data"))
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(0x1F, 0x101, 2)]


def test_a_repeated_send_takes_no_receive() -> None:
    fabric = connect()
    b = fabric.b
    b.recv(1, b.sge(0, 16))
    b.recv(2, b.sge(16, 16))
    for _ in range(3):
        fabric.inject(packet(Op.SEND_ONLY, 0x100, b"message!"))
        fabric.run()
    assert fabric.syndromes(b) == [(0x1F, 0x100, 1)] * 3
    assert statuses(b.receives()) == [(1, OK)]
    assert bytes(b.mr.memory[16:24]) == bytes(8)


def test_a_repeated_middle_packet_leaves_the_message_as_it_is() -> None:
    fabric = connect()
    mr = fabric.b.mr
    first = packet(Op.RDMA_WRITE_FIRST, 0x100, b"1" * 1024, reth=RETH(mr.va, mr.rkey, 2052))
    middle = packet(Op.RDMA_WRITE_MIDDLE, 0x101, b"2" * 1024)
    for payload in (first, middle, first, middle, packet(Op.RDMA_WRITE_LAST, 0x102, b"last")):
        fabric.inject(payload)
        fabric.run()
    assert fabric.syndromes(fabric.b) == [
        (0x1F, 0x100, 0),
        (0x1F, 0x101, 0),
        (0x1F, 0x101, 0),
        (0x1F, 0x101, 0),
        (0x1F, 0x102, 1),
    ]
    assert bytes(mr.memory[:2052]) == b"1" * 1024 + b"2" * 1024 + b"last"


def test_a_repeated_read_reads_memory_again() -> None:
    fabric = connect()
    fabric.b.mr.memory[:8] = b"at first"
    fabric.inject(read(fabric, 0x100, 8))
    fabric.run()
    fabric.b.mr.memory[:8] = b"and then"
    fabric.inject(read(fabric, 0x100, 8))
    fabric.run()
    assert [bytes(sent.packet.payload) for sent in fabric.log] == [b"at first", b"and then"]
    assert fabric.syndromes(fabric.b) == [(0x1F, 0x100, 1)] * 2


def test_the_rest_of_a_read_may_be_asked_for() -> None:
    fabric = connect()
    fabric.b.mr.memory[:4096] = b"0" * 1024 + b"1" * 1024 + b"2" * 1024 + b"3" * 1024
    fabric.inject(read(fabric, 0x100, 4096))
    assert answers(fabric) == [(0x0D, 0x100), (0x0E, 0x101), (0x0E, 0x102), (0x0F, 0x103)]
    fabric.inject(read(fabric, 0x102, 2048, offset=2048))
    fabric.run()
    assert [bytes(sent.packet.payload[:1]) for sent in fabric.log] == [b"2", b"3"]
    assert answers(fabric) == [(0x0D, 0x102), (0x0F, 0x103)]
    fabric.inject(read(fabric, 0x103, 1024, offset=3072))
    assert answers(fabric) == [(0x10, 0x103)]
    fabric.inject(read(fabric, 0x101, 1024, offset=1024))
    assert answers(fabric) == [(0x10, 0x101)]


@pytest.mark.parametrize(
    ("psn", "length", "offset", "rkey"),
    [
        (0xFF, 8, 0, None),  # nothing was saved for it
        (0x100, 4097, 0, None),  # longer than the first
        (0x101, 4096, 1024, None),  # past its end
        (0x101, 1024, 0, None),  # another place
        (0x100, 4096, 0, 0x5500),  # another key
        (0x104, 8, 0, None),  # that PSN was a WRITE
    ],
)
def test_a_read_that_is_no_repetition_is_dropped(
    psn: int, length: int, offset: int, rkey: int | None
) -> None:
    fabric = connect()
    fabric.inject(read(fabric, 0x100, 4096))
    fabric.inject(write(fabric, 0x104, b"data"))
    answers(fabric)
    fabric.inject(read(fabric, psn, length, offset, rkey))
    assert answers(fabric) == []
    assert fabric.b.device.counters["duplicate"] == 1
    assert fabric.b.qp.state is QPState.IBV_QPS_RTS


def test_a_repeated_read_of_a_region_that_is_gone_is_dropped() -> None:
    fabric = connect()
    fabric.inject(read(fabric, 0x100, 8))
    assert answers(fabric) == [(0x10, 0x100)]
    fabric.b.device.dereg_mr(fabric.b.mr)
    fabric.inject(read(fabric, 0x100, 8))
    assert answers(fabric) == []
    fabric.b.drain_events()
    assert [event.reason for event in fabric.b.events if isinstance(event, Drop)] == ["duplicate"]
    assert fabric.b.qp.state is QPState.IBV_QPS_RTS


def test_a_repeated_empty_read_is_answered_whatever_its_key() -> None:
    fabric = connect()
    request = packet(Op.RDMA_READ_REQUEST, 0x100, reth=RETH(0, 0xDEADBEEF, 0))
    for _ in range(2):
        fabric.inject(request)
        assert answers(fabric) == [(0x10, 0x100)]


class TestAtomics:
    def test_the_saved_result_goes_out_again(self) -> None:
        fabric = connect()
        mr = fabric.b.mr
        mr.store64(0, 41)
        request = packet(Op.FETCH_ADD, 0x100, atomiceth=AtomicETH(mr.va, mr.rkey, 1))
        fabric.inject(request)
        fabric.run()
        mr.store64(0, 1000)
        fabric.inject(request)
        fabric.run()
        first, second = (sent.payload for sent in fabric.log)
        assert first == second
        assert first.hex() == "1200ffff00000011" + "00000100" + "1f000001" + f"{41:016x}"
        assert mr.load64(0) == 1000

    def test_a_lost_answer(self) -> None:
        """The requester's time-out gets it the first result, and memory moves once (C48)."""
        fabric = connect(link=drop(0, source=B_ADDRESS))
        a, b = fabric.a, fabric.b
        b.mr.store64(0, 41)
        a.post(WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD, a.sge(8, 8), to=(b.mr, 0), compare_add=1)
        fabric.run()
        assert len(fabric.wire(a)) == 2
        assert fabric.wire(b) == [(0x12, 0x100)] * 2
        assert statuses(a.sends()) == [(1, OK)]
        assert a.mr.load64(8) == 41
        assert b.mr.load64(0) == 42

    @pytest.mark.parametrize("what", ["another address", "another key", "never sent", "a READ"])
    def test_what_is_no_repetition_is_dropped(self, what: str) -> None:
        fabric = connect()
        mr = fabric.b.mr
        fabric.inject(packet(Op.FETCH_ADD, 0x100, atomiceth=AtomicETH(mr.va, mr.rkey, 1)))
        fabric.inject(read(fabric, 0x101, 8))
        answers(fabric)
        psn, va, rkey = {
            "another address": (0x100, mr.va + 8, mr.rkey),
            "another key": (0x100, mr.va, 0x5500),
            "never sent": (0xF0, mr.va, mr.rkey),
            "a READ": (0x101, mr.va, mr.rkey),
        }[what]
        fabric.inject(packet(Op.FETCH_ADD, psn, atomiceth=AtomicETH(va, rkey, 1)))
        assert answers(fabric) == []
        assert fabric.b.device.counters["duplicate"] == 1
        assert mr.load64(0) == 1

    def test_a_read_in_place_of_an_atomic_is_dropped(self) -> None:
        fabric = connect()
        mr = fabric.b.mr
        fabric.inject(packet(Op.FETCH_ADD, 0x100, atomiceth=AtomicETH(mr.va, mr.rkey, 1)))
        answers(fabric)
        fabric.inject(read(fabric, 0x100, 8))
        assert answers(fabric) == []


def test_only_the_newest_max_dest_rd_atomic_are_remembered() -> None:
    fabric = connect(b_attr={"max_dest_rd_atomic": 2})
    requests = [read(fabric, 0x100 + i, 8, offset=8 * i) for i in range(3)]
    for request in requests:
        fabric.inject(request)
        fabric.run()
    answers(fabric)
    for request in requests:
        fabric.inject(request)
    assert answers(fabric) == [(0x10, 0x101), (0x10, 0x102)]


def test_the_newest_request_of_a_psn_is_the_one_repeated() -> None:
    """PSNs come round after 2^24 packets; an old READ at the same PSN must not be taken."""
    fabric = connect()
    responder = fabric.b.qp.responder
    fabric.inject(read(fabric, 0x100, 8, offset=0))
    fabric.run()
    responder.epsn = 0x100  # as if 2^24 - 1 WRITEs had come
    fabric.inject(read(fabric, 0x100, 8, offset=64))
    answers(fabric)
    fabric.b.mr.memory[64:72] = b"the new!"
    fabric.inject(read(fabric, 0x100, 8, offset=64))
    fabric.run()
    assert [bytes(sent.packet.payload) for sent in fabric.log] == [b"the new!"]
