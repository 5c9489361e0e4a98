"""What build computes, and that what a user sets survives."""

import subprocess
import sys

import pytest
from scapy.fields import RawVal
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw, raw

from layers import (
    AETH,
    BTH,
    DETH,
    FETH,
    IETH,
    RDETH,
    RETH,
    XRCETH,
    AtomicAckETH,
    AtomicETH,
    CNPPad,
    ImmDt,
)
from rocemu.wire import OPCODES, icrc_of_ip
from tests.wire.examples import CONNECTX_CNP, GOLDEN

TO, BACK = (
    IP(src="10.0.0.1", dst="10.0.0.2", id=0, flags="DF") / UDP(sport=0xC123, chksum=0),
    IP(src="10.0.0.2", dst="10.0.0.1", id=0, flags="DF") / UDP(sport=0xC456, chksum=0),
)
STACKS = {
    "write": TO
    / BTH(dest_qp=0x11, psn=1000, ackreq=1)
    / RETH(va=0x7F0000001000, rkey=0x123456)
    / Raw(b"hello"),
    "ack": BACK / BTH(dest_qp=0x12, psn=1000) / AETH(msn=1),
    "nak": BACK / BTH(dest_qp=0x12, psn=1000) / AETH(syndrome="NAK Remote Access Error"),
    "read": TO
    / BTH(dest_qp=0x11, psn=1001, ackreq=1)
    / RETH(va=0x7F0000001000, rkey=0x123456, length=4096),
    "fetch_add": TO
    / BTH(opcode="RC FetchAdd", dest_qp=0x11, psn=1002, ackreq=1)
    / AtomicETH(va=0x7F0000001008, rkey=0x123456, swap_or_add=1),
    "atomic_ack": BACK / BTH(dest_qp=0x12, psn=1002) / AETH(msn=2) / AtomicAckETH(original_data=41),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors(name: str):
    assert raw(STACKS[name]) == GOLDEN[name]


def test_cnp_of_a_connectx():
    ip = IP(src="10.0.17.1", dst="10.0.18.1", id=0x718C, flags="DF", tos=0xC2)
    cnp = ip / UDP(sport=0, chksum=0) / BTH(dest_qp=0x118) / CNPPad()
    assert raw(cnp) == CONNECTX_CNP


@pytest.mark.parametrize(
    ("headers", "payload", "name"),
    [
        ([], b"", "RC SEND Only"),
        ([], b"x", "RC SEND Only"),
        ([ImmDt()], b"x", "RC SEND Only with Immediate"),
        ([IETH()], b"x", "RC SEND Only with Invalidate"),
        ([RETH()], b"x", "RC RDMA WRITE Only"),
        ([RETH(), ImmDt()], b"x", "RC RDMA WRITE Only with Immediate"),
        ([RETH(), ImmDt()], b"", "RC RDMA WRITE Only with Immediate"),
        ([RETH()], b"", "RC RDMA READ Request"),
        ([AETH()], b"x", "RC RDMA READ Response Only"),
        ([AETH()], b"", "RC Acknowledge"),
        ([AETH(), AtomicAckETH()], b"", "RC ATOMIC Acknowledge"),
        ([AtomicETH()], b"", "RC CmpSwap"),
        ([FETH(), RETH()], b"", "RC FLUSH"),
        ([DETH()], b"x", "UD SEND Only"),
        ([DETH(), ImmDt()], b"x", "UD SEND Only with Immediate"),
        ([XRCETH(), RETH()], b"x", "XRC RDMA WRITE Only"),
        ([RDETH(), DETH(), RETH()], b"", "RD RDMA READ Request"),
        ([CNPPad()], b"", "CNP"),
        ([AETH(), RETH()], b"", "RC SEND Only"),
        ([BTH(), RETH()], b"", "RC SEND Only"),
    ],
)
def test_the_opcode_follows_from_the_stack(headers: list[object], payload: bytes, name: str):
    stack = IP() / UDP() / BTH()
    for header in headers:
        stack /= header
    data = raw(stack / Raw(payload))
    assert OPCODES[data[28]].name == name


@pytest.mark.parametrize("opcode", range(256))
def test_a_given_opcode_survives(opcode: int):
    data = raw(IP() / UDP() / BTH(opcode=opcode, dest_qp=1) / RETH() / Raw(b"x"))
    assert data[28] == opcode
    assert IP(data)[BTH].opcode == opcode


def test_a_cnp_has_becn_unless_told_otherwise():
    assert raw(IP() / UDP() / BTH() / CNPPad())[32] == 0x40
    assert raw(IP() / UDP() / BTH(becn=0) / CNPPad())[32] == 0


@pytest.mark.parametrize("size", range(10))
@pytest.mark.parametrize("ip", [IP(), IPv6()], ids=["ipv4", "ipv6"])
def test_pad_and_lengths(ip: IP | IPv6, size: int):
    data = raw(ip / UDP() / BTH() / RETH() / Raw(b"\xee" * size))
    udp = len(raw(ip))
    pad = -size % 4
    assert data[udp + 9] >> 4 & 3 == pad
    assert data[udp + 36 : -4] == b"\xee" * size + bytes(pad)
    assert int.from_bytes(data[udp + 4 : udp + 6], "big") == len(data) - udp
    assert int.from_bytes(data[udp + 32 : udp + 36], "big") == size  # RETH length: no pad
    assert data[-4:] == icrc_of_ip(data[:-4]).to_bytes(4, "little")


def test_the_rethes_length_counts_no_immediate_and_may_be_set():
    assert raw(BTH(icrc=0) / RETH() / ImmDt() / Raw(b"12345678"))[24:28] == b"\0\0\0\x08"
    assert raw(BTH(icrc=0) / RETH(length=0) / Raw(b"12345678"))[24:28] == bytes(4)


@pytest.mark.parametrize(
    "ip",
    [
        IP(),
        IP(id=0xBEEF, flags="DF", tos=3, ttl=1),
        IP(id=7, flags=0),
        IP(len=99),
        IP(options=b"\x01\x01\x01\x00"),
        IPv6(tc=226, fl=0x1FACE, hlim=2),
        IPv6(plen=99),
    ],
    ids=["defaults", "DF", "no flags", "wrong length", "options", "IPv6", "wrong IPv6 length"],
)
def test_the_icrc_is_of_the_headers_that_are_there(ip: IP | IPv6):
    data = raw(ip / UDP(sport=1234) / BTH(fecn=1, resv6=5) / RETH() / Raw(b"hello"))
    assert data[-4:] == icrc_of_ip(data[:-4]).to_bytes(4, "little")


def test_wrong_udp_length_is_what_the_icrc_covers():
    data = raw(IP() / UDP(len=1000) / BTH() / Raw(b"hello"))
    assert data[24:26] == (1000).to_bytes(2, "big")
    assert data[-4:] == icrc_of_ip(data[:-4]).to_bytes(4, "little")


def test_deliberately_wrong_values_survive():
    bth = BTH(icrc=0xDEADBEEF, pad=1, padding=b"\xaa\xbb", tver=3)
    data = raw(IP() / UDP() / bth / Raw(b"1234"))
    assert data[28:30] == bytes((0x04, 0x13))
    assert data[40:] == b"1234\xaa\xbb\xde\xad\xbe\xef"
    assert raw(IP() / UDP() / BTH(icrc=0) / Raw(b"1234"))[-4:] == bytes(4)


def test_pad_bytes_follow_a_given_pad_count():
    assert raw(BTH(pad=3, icrc=0) / Raw(b"1234"))[12:] == b"1234" + bytes(3 + 4)


def test_a_packet_without_icrc():
    assert raw(IP() / UDP() / BTH(icrc=RawVal(b"")) / Raw(b"1234"))[40:] == b"1234"


def test_ports_by_default_and_given():
    packet = IP() / UDP() / BTH()
    assert (packet[UDP].sport, packet[UDP].dport) == (0xC000, 4791)
    packet = IP() / UDP(sport=50000, dport=1) / BTH()
    assert (packet[UDP].sport, packet[UDP].dport) == (50000, 1)


def test_without_ip_there_is_a_warning_and_no_icrc(caplog: pytest.LogCaptureFixture):
    assert raw(UDP() / BTH() / Raw(b"1234"))[-4:] == bytes(4)
    assert "the ICRC is left 0" in caplog.text


def test_a_changed_packet_gets_a_new_icrc_when_the_old_one_is_deleted():
    packet = IP(GOLDEN["write"])
    packet[RETH].rkey = 7
    assert raw(packet)[-4:] == GOLDEN["write"][-4:]
    del packet[BTH].icrc
    data = raw(packet)
    assert data[-4:] == icrc_of_ip(data[:-4]).to_bytes(4, "little") != GOLDEN["write"][-4:]


def test_a_scapy_shell_needs_one_import():
    """From a fresh interpreter; and of rocemu nothing but the ground floor is loaded."""
    code = (
        "from scapy.all import *\nfrom layers import *\n"
        "p = IP(dst='127.0.0.1')/UDP()/BTH(dest_qp=17, psn=1)/RETH(va=1, rkey=2)/Raw(b'hello')\n"
        "q = IP(raw(p)); print(q.summary()); print(raw(q).hex())\n"
        "import sys; print({m.split('.')[1] for m in sys.modules if m.startswith('rocemu.')}"
        " - {'wire', 'verbs'})"
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    summary, data, floors = run.stdout.splitlines()
    assert summary.endswith("/ RC RDMA WRITE Only QP 0x11 PSN 1 / RETH / Raw")
    packet = bytes.fromhex(data)
    assert packet[-4:] == icrc_of_ip(packet[:-4]).to_bytes(4, "little")
    assert floors == "set()"
