"""What the kernel's Soft-RoCE sent: a judge that shares no code with us."""

import pytest

from rocemu.wire import IcrcMatch, build, icrc_of_ip, parse, seal, verify
from tests.wire.examples import KERNEL_FILES, read_pcap, split_ip


@pytest.mark.parametrize("name", KERNEL_FILES)
def test_kernel_packets(name: str):
    frames = list(read_pcap(name))
    assert frames
    for frame in frames:
        flow, ip_id, datagram = split_ip(frame)
        assert verify(datagram, flow, ip_id) == (IcrcMatch.EXACT, ip_id or 0)
        if ip_id is not None:
            assert ip_id != 0
            hidden = IcrcMatch.KNOWN_ID if ip_id < 64 else IcrcMatch.SOLVED
            assert verify(datagram, flow) == (hidden, ip_id)
        assert icrc_of_ip(frame[:-4]).to_bytes(4, "little") == datagram[-4:]
        packet = parse(datagram[:-4])
        assert seal(build(packet), flow, ip_id or 0) == datagram


def names_in(file: str) -> list[str]:
    return [parse(split_ip(frame)[2][:-4]).info.name for frame in read_pcap(file)]


def test_a_read_is_answered_by_first_middle_last():
    names = names_in("ok_read.pcap")
    start = names.index("RC RDMA READ Response First")
    assert names[start : start + 3] == [
        "RC RDMA READ Response First",
        "RC RDMA READ Response Middle",
        "RC RDMA READ Response Last",
    ]


def test_a_refused_write_draws_syndrome_0x62_at_its_own_psn():
    packets = [parse(split_ip(frame)[2][:-4]) for frame in read_pcap("write_ro_mr.pcap")]
    naks = [packet for packet in packets if packet.aeth and packet.aeth.syndrome == 0x62]
    assert len(naks) == 1
    assert naks[0].bth.psn in [packet.bth.psn for packet in packets if packet.reth]


def test_immediate_and_invalidate_and_rnr():
    assert "RC SEND Only with Immediate" in names_in("ok_send_imm.pcap")
    assert "RC RDMA WRITE Only with Immediate" in names_in("ok_write_imm.pcap")
    assert "RC SEND Only with Invalidate" in names_in("send_inv_bad.pcap")
    syndromes = [
        packet.aeth.syndrome >> 5
        for frame in read_pcap("send_rnr_retry0.pcap")
        if (packet := parse(split_ip(frame)[2][:-4])).aeth
    ]
    assert 1 in syndromes
