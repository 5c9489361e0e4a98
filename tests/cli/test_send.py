"""``rocemu send`` against a responder in a process of its own, and the bytes that it promises."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw, raw

import layers
from rocemu.cli.main import main
from rocemu.net import NetError
from rocemu.net.oneshot import OneShot
from rocemu.wire import CNP_OPCODE, HEADER_SIZES, OPCODES, Flow, PayloadRule, icrc_of, seal

# Loopback addresses of this process alone, so that several runs do not meet.
NETWORK = f"127.{os.getpid() >> 8 & 0x7F}.{os.getpid() & 0xFF}"
RESPONDER, SENDER, NOBODY = (f"{NETWORK}.{host}" for host in (1, 2, 3))

QPN, PSN, OUR_QPN, OUR_PSN = 0x11, 1000, 0x12, 2000
RW, RO = "va=0x10000 rkey=0x1234", "va=0x20000 rkey=0x5678"
RESPONDER_OPTIONS = (
    f"--bind {RESPONDER} --static --remote {SENDER} --qpn {QPN} --psn {PSN}"
    f" --remote-qpn {OUR_QPN} --remote-psn {OUR_PSN} --json"
    " --mr rw:4096:local_write,remote_write,remote_read@0x10000/0x1234"
    " --mr ro:4096:remote_read@0x20000/0x5678"
)

Record = dict[str, Any]


class Peer:
    """A responder process in static mode, and the events that it printed."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "rocemu", "responder", *RESPONDER_OPTIONS.split()]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.seen: list[Record] = []
        self.wait_for(lambda event: event.get("to") == "IBV_QPS_RTS")

    def wait_for(self, wanted: Callable[[Record], bool]) -> Record:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(json.loads(line))
            if wanted(self.seen[-1]):
                return self.seen[-1]
        pytest.fail(f"the responder ended after {self.seen}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=10)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.stop()


Send = Callable[..., tuple[int, list[Record]]]


@pytest.fixture
def send(capsys: pytest.CaptureFixture[str]) -> Send:
    """Sends to the responder; gives exit code and what came back, as JSON objects."""

    def run(words: str, *more: str, answers: int = 1, wait: float = 30) -> Any:
        how = ["--json", "--answers", str(answers), "--wait", str(wait)]
        code = main(["send", RESPONDER, "--bind", SENDER, *how, *words.split(), *more])
        out = capsys.readouterr().out.splitlines()
        return code, [json.loads(line) for line in out]

    return run


@pytest.fixture
def dry(capsys: pytest.CaptureFixture[str]) -> Callable[..., bytes]:
    """The UDP payload that would be sent from 10.0.0.1, source port 49152, to 10.0.0.2."""

    def run(*words: str) -> bytes:
        assert main(["send", "10.0.0.2", "--bind", "10.0.0.1", "-n", *words]) == 0
        return bytes.fromhex(capsys.readouterr().out)

    return run


def request(opcode: str, psn: int, rest: str) -> str:
    return f"{opcode} dest_qp={QPN} psn={psn} {rest}"


# ---------------------------------------------------------------------- with a responder


def test_a_write_is_acknowledged_and_can_be_read_back(peer: Peer, send: Send) -> None:
    words = request("rdma_write_only", OUR_PSN, f"{RW} payload=hello")
    code, (sent, answer) = send(words)
    assert code == 0
    assert (sent["event"], sent["source"], sent["destination"]) == ("sent", SENDER, RESPONDER)
    assert sent["reth"] == {"va": 0x10000, "rkey": 0x1234, "length": 5}
    assert (answer["event"], answer["source"]) == ("answer", RESPONDER)
    assert answer["opcode"] == "RC Acknowledge"
    assert (answer["bth"]["dest_qp"], answer["bth"]["psn"]) == (OUR_QPN, OUR_PSN)
    assert answer["aeth"] == {"syndrome": 0x1F, "msn": 1, "name": "ACK"}
    assert answer["icrc"] in ("exact", "known_id")
    assert answer["seconds"] > 0

    words = request("0x0c", OUR_PSN + 1, f"{RW} length=5")
    code, (_, answer) = send(words)
    assert code == 0
    assert answer["opcode"] == "RC RDMA READ Response Only"
    assert bytes.fromhex(answer["payload"]) == b"hello"


def test_a_wrong_icrc_is_not_answered(
    peer: Peer, send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    words = request("rdma_write_only", OUR_PSN, f"{RW} payload=hello")
    assert main(
        ["send", RESPONDER, "--bind", SENDER, *words.split(), "--bad-icrc", "--wait", "0.3"]
    )
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 1
    assert shown.out.startswith("sent ")
    assert "ICRC wrong" in shown.out
    assert shown.err == f"rocemu send: no answer from {RESPONDER} in 0.3 s\n"
    drop = peer.wait_for(lambda event: event["event"] == "drop")
    assert (drop["reason"], drop["source"]) == ("icrc", SENDER)

    code, (_, answer) = send(words)  # nothing moved: the same PSN is still the next one
    assert (code, answer["aeth"]["syndrome"]) == (0, 0x1F)


def test_an_unknown_rkey_draws_a_remote_access_error(peer: Peer, send: Send) -> None:
    words = request("rdma_write_only", OUR_PSN, "va=0x10000 rkey=0xdead payload=hello")
    code, (_, answer) = send(words)
    assert code == 0
    assert answer["aeth"]["syndrome"] == 0x62
    assert answer["aeth"]["name"] == "NAK Remote Access Error"
    violation = peer.wait_for(lambda event: event["event"] == "violation")
    assert violation["causes"] == ["key"]
    peer.wait_for(lambda event: event.get("to") == "IBV_QPS_ERR")


def test_a_reserved_opcode_in_order_is_an_invalid_request(peer: Peer, send: Send) -> None:
    code, (sent, answer) = send(request("0x18", OUR_PSN, ""))
    assert code == 0
    assert sent["opcode"] == "reserved 0x18"
    assert (answer["bth"]["psn"], answer["aeth"]["syndrome"]) == (OUR_PSN, 0x61)
    peer.wait_for(lambda event: event.get("to") == "IBV_QPS_ERR")


def test_a_gap_in_the_psn_draws_a_sequence_nak(peer: Peer, send: Send) -> None:
    words = request("rdma_write_only", OUR_PSN + 5, f"{RW} payload=hello")
    code, (*sent, answer) = send(words, "-c", "3")
    assert code == 0
    assert [record["event"] for record in sent] == ["sent"] * 3
    assert len({record["datagram"] for record in sent}) == 1
    assert (answer["bth"]["psn"], answer["aeth"]["syndrome"]) == (OUR_PSN, 0x60)


def test_malformed_packets_are_dropped_for_their_reason(peer: Peer, send: Send) -> None:
    write = request("rdma_write_only", OUR_PSN, f"{RW} payload=hello")
    for words, reason in (
        (write + " tver=1", "tver"),
        (write + " pad=1", "pad"),
        (write + " --cut 20", "short"),
        ("--hex 0a00ffff", "short"),
        (request("uc_send_only", OUR_PSN, ""), "transport"),
        (f"rdma_write_only dest_qp=0x99 psn={OUR_PSN} {RW}", "qpn"),
    ):
        assert send(words, wait=0)[0] == 0
        drop = peer.wait_for(lambda event: event["event"] == "drop")
        assert drop["reason"] == reason, words


@pytest.mark.needs_tshark
def test_the_capture_has_both_directions(peer: Peer, send: Send, tmp_path: Path) -> None:
    file = tmp_path / "refused.pcapng"
    words = request("rdma_write_only", OUR_PSN, f"{RO} payload=hello")
    send(words, "-w", str(file))
    fields = ("ip.src", "infiniband.bth.opcode", "infiniband.aeth.syndrome", "frame.packet_flags")
    wanted = [word for field in fields for word in ("-e", field)]
    command = ["tshark", "-r", str(file), "-T", "fields", "-E", "separator=,", *wanted]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == [
        f"{SENDER},10,,0x00000002",
        f"{RESPONDER},17,98,0x00000001",
    ]


def test_lines_for_people(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    words = request("rdma_write_only", OUR_PSN, f"{RO} payload=hello sport=50000")
    assert main(["send", RESPONDER, "--bind", SENDER, *words.split(), "--answers", "1"]) == 0
    sent, answer = capsys.readouterr().out.splitlines()
    assert sent == (
        f"sent    {SENDER}:50000 > {RESPONDER}  RC RDMA WRITE Only  dest_qp=0x11 psn=2000 ackreq=1"
        " pad=3  va=0x20000 rkey=0x5678 length=5  5 bytes b'hello'  ICRC right"
    )
    assert answer.startswith(f"answer  {RESPONDER}:")
    assert "RC Acknowledge  dest_qp=0x12 psn=2000" in answer
    assert "syndrome=0x62 msn=0 [NAK Remote Access Error]  ICRC right" in answer


# ---------------------------------------------------------------------- with a socket as the peer


@pytest.fixture
def plain() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((RESPONDER, 4791))
        sock.settimeout(10)
        for option in (socket.IP_RECVTOS, 12):  # 12: IP_RECVTTL
            sock.setsockopt(socket.IPPROTO_IP, option, 1)
        yield sock


def test_what_leaves_is_what_the_dry_run_shows(
    plain: socket.socket, send: Send, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "CNP dest_qp=0x11 tos=0xc1 ttl=9 sport=50001"
    assert main(["send", RESPONDER, "--bind", SENDER, "-n", *words.split()]) == 0
    promised = bytes.fromhex(capsys.readouterr().out)
    code, (sent,) = send(words, wait=0)
    assert code == 0
    datagram, ancillary, _, source = plain.recvmsg(2048, 256)
    assert datagram == promised == bytes.fromhex(sent["datagram"])
    assert source == (SENDER, 50001)
    values = {kind: int.from_bytes(data, "little") for _, kind, data in ancillary}
    assert values == {socket.IP_TOS: 0xC1, socket.IP_TTL: 9}


def test_no_answer_is_awaited_without_a_receiver(plain: socket.socket) -> None:
    command = ["send", RESPONDER, "--bind", RESPONDER, "send_only", "--wait", "0"]
    assert main(command) == 0, "UDP 4791 of the sender is taken, and not needed"
    assert plain.recv(2048)[0] == 0x04


def test_whatever_answers_is_shown(plain: socket.socket, send: Send) -> None:
    """Too short, a wrong ICRC, an ICRC for another IP ID, a stranger: all without a mistake."""
    flow = Flow(RESPONDER, SENDER, 4791)
    ack = bytes.fromhex("1100ffff00000012000003e81f000001")
    right = seal(ack, flow, 0x4321)
    answers = [b"\x11", right[:-1] + bytes((right[-1] ^ 1,)), right, seal(b"\x18" + ack[1:], flow)]

    def answer() -> None:
        plain.recv(2048)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind((NOBODY, 4791))
            stranger.sendto(seal(ack, Flow(NOBODY, SENDER, 4791)), (SENDER, 4791))
        for datagram in answers:
            plain.sendto(datagram, (SENDER, 4791))

    thread = threading.Thread(target=answer)
    thread.start()
    code, (_, stranger, short, bad, solved, reserved) = send("send_only", answers=4)
    thread.join()
    assert code == 0
    assert [r["event"] for r in (short, bad, solved, reserved)] == ["answer"] * 4
    assert short["malformed"]
    assert "bth" not in short
    assert (bad["icrc"], bad["opcode"]) == ("bad", "RC Acknowledge")
    assert (solved["icrc"], solved["ip_id"]) == ("solved", 0x4321)
    assert (reserved["opcode"], reserved["bth"]["psn"]) == ("reserved 0x18", 1000)
    assert (stranger["event"], stranger["source"]) == ("other", NOBODY)


def test_a_stranger_alone_is_no_answer(plain: socket.socket) -> None:
    def strange() -> None:
        plain.recv(2048)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind((NOBODY, 0))
            stranger.sendto(b"hello", (SENDER, 4791))

    thread = threading.Thread(target=strange)
    thread.start()
    code = main(["send", RESPONDER, "--bind", SENDER, "send_only", "--wait", "0.5"])
    thread.join()
    assert code == 1


def test_a_connection_request_is_named(plain: socket.socket, send: Send) -> None:
    mad = bytes.fromhex("01070203" + "00" * 4 + "00000000000000aa" + "0015") + bytes(256 - 18)
    code, (sent,) = send(
        "ud_send_only dest_qp=1 qkey=0x80010000 source_qp=1", f"payload=hex:{mad.hex()}", wait=0
    )
    assert code == 0
    assert sent["mad"] == {"transaction_id": 0xAA, "name": "CM DREQ"}


@pytest.mark.parametrize(
    ("target", "options", "sentence"),
    [
        (NOBODY, ["--bind", SENDER], f"nobody listens on UDP port 4791 of {NOBODY}"),
        (
            RESPONDER,
            ["--bind", RESPONDER],
            f"UDP port 4791 of {RESPONDER} is in use, by another rocemu or by the kernel's "
            "rdma_rxe; --bind takes another address, --wait 0 does not listen",
        ),
        (
            RESPONDER,
            ["--bind", "192.0.2.1"],
            "UDP port 4791 of 192.0.2.1 cannot be bound: the address is not one of this host",
        ),
        (
            RESPONDER,
            ["--bind", SENDER, "sport=4791"],
            f"UDP port 4791 of {SENDER} is in use",
        ),
        ("::1", ["--bind", SENDER], "'::1' has no IPv4 address"),
    ],
    ids=["nobody listens", "responder's port", "not of this host", "taken", "other family"],
)
def test_failures_are_one_sentence(
    plain: socket.socket,
    capsys: pytest.CaptureFixture[str],
    target: str,
    options: list[str],
    sentence: str,
) -> None:
    assert main(["send", target, "--wait", "1", "send_only", *options]) == 1
    assert capsys.readouterr().err == f"rocemu send: {sentence}\n"


def test_what_the_link_cannot_carry(plain: socket.socket) -> None:
    with OneShot(SENDER, RESPONDER, listen=False) as shot:
        shot.send(bytes(65507))
        with pytest.raises(NetError, match=f"cannot send 65508 bytes to {RESPONDER}: more than"):
            shot.send(bytes(65508))


# ---------------------------------------------------------------------- bytes

WRITE = ("RC RDMA WRITE Only", "dest_qp=0x11", "psn=1000", "va=0x1000", "rkey=0x1234")


def judged(body: bytes, opcode: int, pad: int) -> bytes:
    """``body`` (BTH to pad) with the ICRC that scapy.contrib.roce computes for it."""
    from scapy.contrib import roce

    network = IP(src="10.0.0.1", dst="10.0.0.2", id=0, flags="DF") / UDP(sport=0xC000, dport=4791)
    fields = {"dqpn": 0x11, "psn": 1000, "ackreq": 1, "padcount": pad}
    return raw(network / roce.BTH(opcode=opcode, **fields) / Raw(body[12:]))[28:]


def test_a_right_packet(dry: Callable[..., bytes]) -> None:
    datagram = dry(*WRITE, "payload=hello")
    assert datagram[:-4].hex() == (
        "0a30ffff00000011800003e80000000000001000000012340000000568656c6c6f000000"
    )
    assert datagram == judged(datagram[:-4], 10, 3)


@pytest.mark.parametrize(
    "opcode", ["RC RDMA WRITE Only", "rdma_write_only", "RDMA-WRITE-ONLY", "0x0a", "10"]
)
def test_names_of_an_opcode(dry: Callable[..., bytes], opcode: str) -> None:
    assert dry(opcode, "payload=hello") == dry("rdma_write_only", "reth.length=5", "payload=hello")


@pytest.mark.parametrize("size", [5, 37968])  # there flipping the last bit would fit another ID
def test_a_wrong_icrc_is_wrong_for_every_ip_id(dry: Callable[..., bytes], size: int) -> None:
    payload = f"payload={'x' * size}"
    right, wrong = dry("send_only", payload), dry("send_only", payload, "--bad-icrc")
    assert wrong[:-4] == right[:-4]
    flow = Flow("10.0.0.1", "10.0.0.2", 0xC000)
    icrcs = {icrc_of(right[:-4], flow, ip_id).to_bytes(4, "little") for ip_id in range(1 << 16)}
    assert right[-4:] in icrcs
    assert wrong[-4:] not in icrcs


def test_an_icrc_by_number_as_wireshark_shows_it(dry: Callable[..., bytes]) -> None:
    assert dry(*WRITE, "icrc=0xdeadbeef")[-4:].hex() == "deadbeef"


def test_a_transport_version(dry: Callable[..., bytes]) -> None:
    datagram = dry(*WRITE, "payload=hello", "tver=5")
    assert datagram[1] == 0x35
    assert datagram[2:-4] == dry(*WRITE, "payload=hello")[2:-4]


def test_a_wrong_pad_with_its_bytes_and_without(dry: Callable[..., bytes]) -> None:
    short = dry(*WRITE, "payload=hello", "pad=1")
    assert (short[1], short[28:-4]) == (0x10, b"hello\0")
    assert short == judged(short[:-4], 10, 1)
    told = dry(*WRITE, "payload=hello", "pad=1", "padding=hex:aabbcc")
    assert (told[1], told[28:-4]) == (0x10, b"hello\xaa\xbb\xcc")
    assert told == judged(told[:-4], 10, 1)


def test_a_truncated_packet_has_the_icrc_of_what_is_left(dry: Callable[..., bytes]) -> None:
    cut = dry(*WRITE, "payload=hello", "--cut", "20")
    assert cut[:-4] == dry(*WRITE, "payload=hello")[:16]
    assert cut == judged(cut[:-4], 10, 3)


def test_raw_bytes_go_as_they_are(dry: Callable[..., bytes]) -> None:
    assert dry("--hex", "0a00 ff") == b"\x0a\0\xff"
    assert dry("--hex", "") == b""


@pytest.mark.parametrize("opcode", [0x15, 0x18, 0x1F, 0x2C, 0x6F, 0x80, 0xC4, 0xFF])
def test_reserved_opcodes(dry: Callable[..., bytes], opcode: int) -> None:
    datagram = dry(f"{opcode:#04x}", "dest_qp=0x11", "psn=1000", "ackreq=1", "payload=hex:01020304")
    assert datagram[:-4] == bytes((opcode,)) + bytes.fromhex("00ffff00000011800003e801020304")
    assert datagram == judged(datagram[:-4], opcode, 0)


@pytest.mark.parametrize("info", OPCODES.values(), ids=lambda info: info.name)
def test_every_opcode_by_name_and_every_field_of_its_headers(
    dry: Callable[..., bytes], info: Any
) -> None:
    """Every field gets a value of its own, and has it in the dissected packet."""
    values = {}
    words = []
    for number, name in enumerate(info.headers):
        for field in getattr(layers, name).fields_desc:
            if name == "CNPPad":
                values[name, field.name] = bytes(range(16))
                words.append(f"cnppad.{field.name}=hex:{bytes(range(16)).hex()}")
                continue
            values[name, field.name] = value = number + 1
            words.append(f"{name.lower()}.{field.name}={value}")
    payload = b"" if info.payload is PayloadRule.NONE else b"12345678"
    words += [f"payload={payload.decode()}"] if payload else []
    datagram = dry(info.name, "dest_qp=7", *words)
    packet = layers.BTH(datagram)
    for (name, field), value in values.items():
        shown = packet[name].getfieldval(field)
        assert (int(shown) if isinstance(value, int) else shown) == value, (name, field)
    assert datagram[0] == info.opcode
    assert len(datagram) == 12 + sum(HEADER_SIZES[name] for name in info.headers) + len(payload) + 4
    assert datagram[:-4].endswith(payload)
    assert packet.becn == (info.opcode == CNP_OPCODE)
    assert packet.ackreq == (info.is_request and info.transport.name in ("RC", "RD", "XRC"))


def test_names_of_values(dry: Callable[..., bytes]) -> None:
    assert (
        dry("acknowledge", "syndrome=NAK Remote Access Error", "msn=3")[12:16].hex() == "62000003"
    )


def test_ipv6(capsys: pytest.CaptureFixture[str]) -> None:
    from scapy.contrib import roce

    words = ["send_only", "dest_qp=0x11", "psn=1000", "payload=12345678"]
    assert main(["send", "fd00::2", "--bind", "fd00::1", "-n", *words]) == 0
    network = IPv6(src="fd00::1", dst="fd00::2") / UDP(sport=0xC000, dport=4791)
    theirs = network / roce.BTH(opcode=4, dqpn=0x11, psn=1000, ackreq=1) / Raw(b"12345678")
    assert bytes.fromhex(capsys.readouterr().out) == raw(theirs)[48:]


def test_a_dry_run_writes_a_capture_too(tmp_path: Path, dry: Callable[..., bytes]) -> None:
    from scapy.utils import rdpcap

    file = tmp_path / "stimulus.pcapng"
    datagram = dry(*WRITE, "payload=hello", "-w", str(file))
    (packet,) = rdpcap(str(file))
    assert raw(packet[UDP].payload) == datagram
    assert (packet[IP].src, packet[IP].dst, packet[UDP].sport) == ("10.0.0.1", "10.0.0.2", 0xC000)


def test_the_capture_may_be_standard_output() -> None:
    command = [sys.executable, "-m", "rocemu", "send", "10.0.0.2", "--bind", "10.0.0.1", "-n"]
    run = subprocess.run([*command, "0x04", "-w", "-"], capture_output=True, check=True)
    assert run.stdout[:4] == bytes.fromhex("0a0d0d0a")
    assert run.stderr.startswith(b"0400ffff")


# ---------------------------------------------------------------------- help and mistakes


def test_help_names_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["send", "--help"]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: set(line.split()[1:]) for line in out.splitlines() if line.split()}
    for name in ("BTH", *HEADER_SIZES):
        fields = {field.name for field in getattr(layers, name).fields_desc} - {"opcode"}
        assert lines[name.lower()] == fields, name
    assert "rocemu send 10.0.0.1 0x18 dest_qp=0x11 psn=7 tver=1 pad=3\n" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Invalid value for OPCODE: one is needed"),
        (["psn=1"], "Invalid value for OPCODE: one is needed"),
        (["rdma_write"], "Invalid value for OPCODE: no opcode 'rdma_write'; did you mean 'RDMA"),
        (["0x100"], "Invalid value for OPCODE: opcode 0x100: allowed are 0 to 0xff"),
        (["4", "psn"], "Invalid value for FIELD: 'psn': the form is FIELD=VALUE"),
        (["4", "va=1"], "Invalid value for FIELD: no field 'va' in RC SEND Only; there are ackreq"),
        (["0x18", "va=1"], "Invalid value for FIELD: no field 'va' in opcode 0x18; there are ackr"),
        (["4", "opcode=1"], "Invalid value for FIELD: no field 'opcode' in RC SEND Only"),
        (
            ["RD SEND Only", "reserved=1"],
            "Invalid value for FIELD: no field 'reserved' in RD SEND Only",
        ),
        (["4", "psn=0x1000000"], "Invalid value for FIELD: psn=0x1000000: allowed are 0 to 0xffff"),
        (["4", "psn=-1"], "Invalid value for FIELD: psn=-1: allowed are 0 to 0xffffff"),
        (["4", "tver=16"], "Invalid value for FIELD: tver=16: allowed are 0 to 0xf"),
        (["4", "psn=one"], "Invalid value for FIELD: psn=one: a decimal or 0x number is needed"),
        (["4", "psn=1", "psn=1"], "Invalid value for FIELD: psn is given twice"),
        (["4", "ttl=1", "ttl=2"], "Invalid value for FIELD: ttl is given twice"),
        (["4", "ttl=0"], "Invalid value for FIELD: ttl=0: allowed are 1 to 255"),
        (["4", "tos=x"], "Invalid value for FIELD: tos=x: allowed are 0 to 255"),
        (
            ["0x11", "syndrome=NAK Access"],
            "Invalid value for FIELD: syndrome=NAK Access: a decimal or 0x number is needed, or a ",
        ),
        (
            ["CNP", "reserved=x"],
            "Invalid value for FIELD: reserved: 16 bytes are needed, these are",
        ),
        (["4", "payload=hex:0"], "Invalid value for FIELD: 'hex:0': pairs of hexadecimal digits"),
        (["4", "icrc=1", "--bad-icrc"], "Invalid value for --bad-icrc: icrc=VALUE names one al"),
        (["4", "--cut", "1"], "Invalid value for --cut: only 0 bytes follow the BTH"),
        (
            ["4", "payload=" + "x" * 65504],
            "Invalid value for FIELD: 65520 bytes are more than a datag",
        ),
        (["--hex", "00" * 65508], "Invalid value for --hex: 65508 bytes are more than a datagram"),
        (["--hex", "0x"], "Invalid value for --hex: pairs of hexadecimal digits are needed"),
        (["4", "--hex", "00"], "Invalid value for --hex: an opcode and fields have no place in it"),
        (["4", "--wait", "-1"], "Invalid value for '--wait'"),
        (["4", "-c", "0"], "Invalid value for '--count' / '-c'"),
    ],
)
def test_mistakes_are_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["send", RESPONDER, "--bind", SENDER, *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"rocemu send: {sentence}")
    assert shown.err.count("\n") == 1
