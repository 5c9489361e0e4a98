"""Captures of Soft-RoCE (``rdma_rxe`` of Linux 6.12), to be played again to ends of our own."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rocemu.capture import decode_frame, open_capture
from rocemu.protection import MemoryRegion
from rocemu.transport import (
    SGE,
    AddressVector,
    Device,
    QPAttr,
    QPInitAttr,
    QueuePair,
    RecvWR,
)
from rocemu.verbs import AccessFlags, QPState
from rocemu.wire import Packet, WireError, parse
from tests.transport.fabric import ALL, TO_INIT, TO_RTR, TO_RTS

SOFT_ROCE = Path(__file__).parents[2] / "pcaps" / "soft-roce"
CLIENT, SERVER = "10.77.0.2", "10.77.0.3"


class Spoken(NamedTuple):
    """A packet of a capture, BTH to pad; ``packet`` is None where it is none of RoCEv2."""

    source: str
    destination: str
    payload: bytes
    packet: Packet | None


class Answer(NamedTuple):
    """What of an answer is compared: numbers 0 and bytes empty where it has no such field."""

    opcode: int
    psn: int
    syndrome: int = 0
    msn: int = 0
    original: int = 0
    data: bytes = b""


def spoken(name: str) -> list[Spoken]:
    """The packets of a capture, in order."""
    packets = []
    with open_capture(SOFT_ROCE / f"{name}.pcap") as capture:
        for captured in capture:
            frame = decode_frame(captured.linktype, captured.data)
            assert frame is not None
            payload = frame.payload[:-4]
            try:
                packet = parse(payload)
            except WireError:
                packet = None
            packets.append(Spoken(frame.flow.source, frame.flow.destination, payload, packet))
    return packets


def answer(packet: Packet) -> Answer:
    aeth, atomic = packet.aeth, packet.atomicacketh
    return Answer(
        packet.bth.opcode,
        packet.bth.psn,
        aeth.syndrome if aeth else 0,
        aeth.msn if aeth else 0,
        atomic.original if atomic else 0,
        bytes(packet.payload),
    )


R, W, A = (
    AccessFlags.IBV_ACCESS_REMOTE_READ,
    AccessFlags.IBV_ACCESS_REMOTE_WRITE,
    AccessFlags.IBV_ACCESS_REMOTE_ATOMIC,
)
L = AccessFlags.IBV_ACCESS_LOCAL_WRITE
SIZE = 8192
BAD_KEY = 0x12345600
#: Syndromes that were seen.
ACK, RNR, SEQUENCE = 0x1F, 0x2C, 0x60
INVALID, ACCESS, OPERATIONAL = 0x61, 0x62, 0x63


class Case(NamedTuple):
    """A request that was recorded, between two good WRITEs; how it differed from a good one."""

    operation: str
    length: int
    offset: int = 0
    key: int = 0
    """Added to the good R_Key."""
    mr: AccessFlags = ALL
    qp: AccessFlags = R | W | A
    receives: tuple[int, ...] = ()
    receive_key: int = 0
    responder_resources: int = 4
    gone: bool = False
    other_pd: bool = False


CASES = {
    "ok_write": Case("write", 3000),
    "ok_read": Case("read", 3000),
    "ok_send": Case("send", 3000, receives=(4096,)),
    "ok_send_imm": Case("send_imm", 100, receives=(4096,)),
    "ok_write_imm": Case("write_imm", 100, receives=(0,)),
    "ok_faa": Case("faa", 8),
    "ok_cas": Case("cas", 8),
    "ok_write_zero": Case("write", 0),
    "ok_read_zero": Case("read", 0),
    "write_zero_badrkey": Case("write", 0, 1 << 40, 0x12345678),
    "read_zero_badrkey": Case("read", 0, 1 << 40, 0x12345678),
    "write_zero_atend": Case("write", 0, SIZE + 4096),
    "write_badrkey": Case("write", 64, key=BAD_KEY),
    "write_badrkey_multi": Case("write", 3000, key=BAD_KEY),
    "write_badkeybyte": Case("write", 64, key=1),
    "write_dereg": Case("write", 64, gone=True),
    "write_otherpd": Case("write", 64, other_pd=True),
    "write_ro_mr": Case("write", 64, mr=L | R | A),
    "write_ro_qp": Case("write", 64, qp=R | A),
    "write_oob_end": Case("write", 64, SIZE - 32),
    "write_oob_multi": Case("write", 3000, SIZE - 1500),
    "write_oob_below": Case("write", 64, -32),
    "write_oob_justend": Case("write", 8, SIZE),
    "read_noaccess_mr": Case("read", 64, mr=L | W | A),
    "read_noaccess_qp": Case("read", 64, qp=W | A),
    "read_badrkey": Case("read", 64, key=BAD_KEY),
    "read_oob": Case("read", 3000, SIZE - 1500),
    "read_rdatom0": Case("read", 64, responder_resources=0),
    "faa_noaccess_mr": Case("faa", 8, mr=L | W | R),
    "faa_noaccess_qp": Case("faa", 8, qp=W | R),
    "faa_badrkey": Case("faa", 8, key=BAD_KEY),
    "faa_oob": Case("faa", 8, SIZE),
    "send_rnr_retry0": Case("send", 64),
    "write_imm_rnr": Case("write_imm", 64),
    "send_too_long": Case("send", 3000, receives=(100,)),
    "send_too_long_one": Case("send", 100, receives=(64,)),
    "send_bad_recv_lkey": Case("send", 64, receives=(64,), receive_key=1),
}


@dataclass
class End:
    """A device of ours with one queue pair, the region under test and one for receives."""

    device: Device
    qp: QueuePair
    mr: MemoryRegion
    scratch: MemoryRegion


def end(
    address: str,
    peer: str,
    *,
    qpn: int,
    dest_qpn: int,
    psn: int,
    peer_psn: int,
    case: Case,
    va: int,
    rkey: int,
) -> End:
    """A device whose queue pair is in RTS as the recorded one was, with the region under test."""
    device = Device(address, rng=random.Random(1))
    pd = device.alloc_pd()
    home = device.alloc_pd() if case.other_pd else pd
    mr = device.reg_mr(home, SIZE, case.mr, va=va, rkey=rkey)
    scratch = device.reg_mr(pd, 65536, ALL, va=1 << 50)
    if case.gone:
        device.dereg_mr(mr)
    qp = device.create_qp(pd, QPInitAttr(device.create_cq(), device.create_cq()), qpn)
    attr = QPAttr(
        qp_access_flags=case.qp,
        av=AddressVector(peer),
        dest_qp_num=dest_qpn,
        rq_psn=peer_psn,
        sq_psn=psn,
        max_dest_rd_atomic=case.responder_resources,
        max_rd_atomic=4,
        min_rnr_timer=12,
        timeout=17,
        retry_cnt=2,
        rnr_retry=0,
    )
    for state, mask in (
        (QPState.IBV_QPS_INIT, TO_INIT),
        (QPState.IBV_QPS_RTR, TO_RTR),
        (QPState.IBV_QPS_RTS, TO_RTS),
    ):
        attr.qp_state = state
        qp.modify(attr, mask)
    for i, length in enumerate(case.receives):
        qp.post_recv(RecvWR(i, [SGE(scratch.va, length, scratch.lkey + case.receive_key)]))
    return End(device, qp, mr, scratch)


def sent(device: Device) -> list[bytes]:
    """All that a device wants to send now."""
    packets = []
    while batches := device.to_send(0.0):
        packets += [payload for _, batch in batches for payload in batch]
    return packets


def region_of(name: str, talk: list[Spoken]) -> tuple[int, int]:
    """Address and R_Key of a case's region, from the request that names it."""
    case = CASES[name]
    for said in talk:
        if said.source == CLIENT and said.packet and said.packet.bth.psn == 0x101:
            target = said.packet.reth or said.packet.atomiceth
            if target is not None:
                return target.va - case.offset, target.rkey - case.key & 0xFFFFFFFF
    return 1 << 40, 0x5500  # a SEND; or its QP was in ERR before the request left
