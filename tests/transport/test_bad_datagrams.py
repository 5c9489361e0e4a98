"""Datagrams that are no business of ours: dropped, counted by reason, told, never answered."""

from dataclasses import replace

import pytest

from rocemu.transport import Datagram, Drop
from rocemu.verbs import AsyncEventType, QPState
from rocemu.wire import BTH, OPCODES, RETH, Op, Transport
from tests.transport.fabric import (
    A_ADDRESS,
    B_ADDRESS,
    Fabric,
    connect,
    packet,
)

RESERVED_RC = [op for op in range(0x20) if op not in OPCODES]


def write(fabric: Fabric, **changes: object) -> bytes:
    """A WRITE in order that would be executed, with some fields of its BTH changed."""
    payload = packet(
        Op.RDMA_WRITE_ONLY, 0x100, b"data", reth=RETH(fabric.b.mr.va, fabric.b.mr.rkey, 4)
    )
    return replace(BTH.unpack(payload), **changes).pack() + payload[BTH.SIZE :]  # type: ignore[arg-type]


def dropped(fabric: Fabric, reason: str, count: int = 1) -> list[Drop]:
    """What was dropped for ``reason``, and nothing else happened."""
    fabric.run()
    assert fabric.log == []
    assert fabric.b.device.counters == {"received": count, reason: count}
    fabric.b.drain_events()
    drops = [event for event in fabric.b.events if isinstance(event, Drop)]
    assert fabric.b.events == drops
    assert [drop.reason for drop in drops] == [reason] * count
    assert bytes(fabric.b.mr.memory[:4]) == bytes(4)
    assert fabric.b.qp.state is QPState.IBV_QPS_RTS
    # The next good request is answered as ever.
    fabric.inject(write(fabric))
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(0x1F, 0x100, 1)]
    return drops


@pytest.mark.parametrize("size", range(0, 12))
def test_shorter_than_a_bth(size: int) -> None:
    fabric = connect()
    fabric.inject(write(fabric)[:size])
    (drop,) = dropped(fabric, "short")
    assert drop.bth is None
    assert str(size) in drop.detail


@pytest.mark.parametrize("size", [12, 16, 24])
def test_too_short_for_its_headers(size: int) -> None:
    fabric = connect()
    fabric.inject(write(fabric)[:size])
    (drop,) = dropped(fabric, "short")
    assert drop.bth is not None
    assert drop.bth.psn == 0x100


def test_more_pad_than_there_is_payload() -> None:
    fabric = connect()
    fabric.inject(write(fabric, pad=1)[:28])
    dropped(fabric, "short")


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_not_filled_up_to_four_bytes(cut: int) -> None:
    fabric = connect()
    fabric.inject(write(fabric)[:-cut])
    dropped(fabric, "pad")


@pytest.mark.parametrize("tver", [1, 15])
def test_transport_version(tver: int) -> None:
    fabric = connect()
    fabric.inject(write(fabric, tver=tver))
    dropped(fabric, "tver")


@pytest.mark.parametrize("qpn", [0, 0x10, 0x12, 0xFFFFFF])
def test_unknown_queue_pair(qpn: int) -> None:
    fabric = connect()
    fabric.inject(write(fabric, dest_qp=qpn))
    (drop,) = dropped(fabric, "qpn")
    assert f"{qpn:#x}" in drop.detail


@pytest.mark.parametrize("transport", [Transport.UC, Transport.RD, Transport.UD, Transport.XRC])
def test_another_transport(transport: Transport) -> None:
    fabric = connect()
    fabric.inject(write(fabric, opcode=transport | Op.SEND_ONLY))
    dropped(fabric, "transport")


@pytest.mark.parametrize("pkey", [0x0000, 0x8000, 0x1234, 0xFFFE])
def test_partition_key(pkey: int) -> None:
    fabric = connect()
    fabric.inject(write(fabric, pkey=pkey))
    dropped(fabric, "pkey")


@pytest.mark.parametrize("source", ["192.0.2.3", B_ADDRESS])
def test_source_that_is_not_the_peer(source: str) -> None:
    fabric = connect()
    fabric.b.device.receive([Datagram(write(fabric), source, B_ADDRESS)], 0.0)
    (drop,) = dropped(fabric, "address")
    assert drop.datagram.source == source


def test_destination_that_is_not_ours() -> None:
    fabric = connect()
    fabric.b.device.receive([Datagram(write(fabric), A_ADDRESS, "192.0.2.9")], 0.0)
    dropped(fabric, "address")


@pytest.mark.parametrize(
    "changes",
    [
        {"migreq": True},
        {"pkey": 0x7FFF},
        {"fecn": True, "becn": True, "resv6": 63},
        {"resv7": 127},
        {"se": True},
    ],
    ids=str,
)
def test_fields_that_do_not_matter(changes: dict[str, object]) -> None:
    fabric = connect()
    fabric.inject(write(fabric, **changes))
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(0x1F, 0x100, 1)]
    assert bytes(fabric.b.mr.memory[:4]) == b"data"


def test_the_source_port_does_not_matter() -> None:
    fabric = connect()
    fabric.b.device.receive([Datagram(write(fabric), A_ADDRESS, B_ADDRESS, 1234)], 0.0)
    fabric.run()
    assert fabric.syndromes(fabric.b) == [(0x1F, 0x100, 1)]


class TestReservedOpcodes:
    @pytest.mark.parametrize("opcode", RESERVED_RC, ids=hex)
    @pytest.mark.parametrize("size", [12, 28, 44])
    def test_in_order_on_a_live_pair_is_an_invalid_request(self, opcode: int, size: int) -> None:
        fabric = connect()
        fabric.inject(write(fabric, opcode=opcode)[:12] + bytes(size - 12))
        fabric.run()
        assert fabric.syndromes(fabric.b) == [(0x61, 0x100, 0)]
        assert fabric.b.qp.state is QPState.IBV_QPS_ERR
        assert fabric.b.async_events() == [AsyncEventType.IBV_EVENT_QP_REQ_ERR]
        assert fabric.b.device.counters == {"received": 1}

    @pytest.mark.parametrize(
        "changes",
        [
            {"psn": 0x101},
            {"psn": 0xFF},
            {"dest_qp": 0x12},
            {"pkey": 0x1234},
            {"opcode": 0x36},
            {"opcode": 0x78},
            {"opcode": 0xFF},
        ],
        ids=str,
    )
    def test_anything_else_is_a_drop(self, changes: dict[str, object]) -> None:
        fabric = connect()
        fabric.inject(write(fabric, **({"opcode": 0x18} | changes)))
        dropped(fabric, "opcode")

    def test_in_error(self) -> None:
        fabric = connect()
        for _ in range(2):
            fabric.inject(write(fabric, opcode=0x18))
            fabric.run()
        assert len(fabric.log) == 1
        assert fabric.b.device.counters == {"received": 2, "opcode": 1}

    def test_from_a_stranger(self) -> None:
        fabric = connect()
        stranger = Datagram(write(fabric, opcode=0x18), "192.0.2.3", B_ADDRESS)
        fabric.b.device.receive([stranger], 0.0)
        dropped(fabric, "opcode")


@pytest.mark.parametrize("size", [12, 16, 24, 28, 40, 44, 48, 60, 300])
@pytest.mark.parametrize("qpn", [0, 1, 0x11, 0x4000, 0xFFFFFF], ids=hex)
def test_no_opcode_ever_raises(qpn: int, size: int) -> None:
    """All 256 of them (C08): only RC ones on the live pair may be answered."""
    fabric = connect()
    for opcode in range(256):
        payload = BTH(opcode, qpn, 0x100, ackreq=True).pack() + bytes(size - BTH.SIZE)
        fabric.inject(payload)
        fabric.inject(payload, fabric.a)
        fabric.run(1e-3)
        if opcode >= 0x20 or qpn != 0x11:
            assert not fabric.log
            assert fabric.b.qp.state is QPState.IBV_QPS_RTS
        elif fabric.log or fabric.b.qp.state is not QPState.IBV_QPS_RTS:
            fabric = connect()


def test_congestion_notifications_are_counted_and_not_answered() -> None:
    fabric = connect()
    fabric.inject(BTH(0x81, 0x11, 0, becn=True).pack() + bytes(16))
    fabric.run()
    assert fabric.b.device.counters == {"received": 1, "cnp": 1}
    assert fabric.log == []


def test_infinibands_own_congestion_packet_is_not_roces() -> None:
    fabric = connect()
    fabric.inject(BTH(0x80, 0x11, 0, becn=True).pack() + bytes(16))
    dropped(fabric, "opcode")
