"""Next to scapy.contrib.roce: as a judge of our ICRC, and as a neighbour on port 4791."""

import subprocess
import sys

import pytest
from hypothesis import given, settings

from rocemu.wire import Flow, Packet, build
from tests.layers.examples import as_layers, network
from tests.wire.examples import GOLDEN, flows, packets


@settings(max_examples=60)
@given(packet=packets(), flow=flows())
def test_contrib_computes_the_same_icrc(packet: Packet, flow: Flow):
    from scapy.contrib import roce
    from scapy.packet import Raw, raw

    ours = raw(network(flow, 0x1234) / as_layers(packet))
    bth, data = packet.bth, build(packet)
    theirs = network(flow, 0x1234) / roce.BTH(
        opcode=bth.opcode,
        solicited=bth.se,
        migreq=bth.migreq,
        padcount=bth.pad,
        pkey=bth.pkey,
        fecn=bth.fecn,
        becn=bth.becn,
        resv6=bth.resv6,
        dqpn=bth.dest_qp,
        ackreq=bth.ackreq,
        resv7=bth.resv7,
        psn=bth.psn,
    )
    if len(data) > 12:
        theirs /= Raw(data[12:])
    # the UDP checksum is over the ICRC too: equal bytes all over
    assert raw(theirs) == ours


CHECK = f"""
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw, raw
NAK = bytes.fromhex("{GOLDEN["nak"].hex()}")
DOWN = IP(src="10.0.0.2", dst="10.0.0.1", id=0, flags="DF") / UDP(sport=0xC456, chksum=0)

packet = IP(NAK)
assert type(packet[UDP].payload) is layers.BTH, packet
assert type(packet[UDP].payload.payload) is layers.AETH, packet
assert packet[layers.AETH].syndrome == 0x62
assert raw(DOWN / layers.BTH(dest_qp=0x12, psn=1000) / layers.AETH(syndrome=0x62)) == NAK

built = raw(DOWN / roce.BTH(opcode=0x11, dqpn=0x12, psn=1000) / roce.AETH(syndrome=0x62))
assert built == NAK, built.hex()
theirs = roce.BTH(NAK[28:])
assert theirs.dqpn == 0x12 and theirs[roce.AETH].syndrome == 0x62 and theirs.icrc == 0x53282069
assert not theirs.haslayer(layers.BTH)
assert type(roce.GRH(raw(roce.GRH()) + NAK[28:]).payload) is roce.BTH
print("both usable")
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import layers\nfrom scapy.contrib import roce",
        "from scapy.contrib import roce\nimport layers",
        "import layers\nfrom scapy.main import load_contrib\nload_contrib('roce')\n"
        "from scapy.contrib import roce",
        "from scapy.main import load_contrib\nload_contrib('roce')\nimport layers\n"
        "from scapy.contrib import roce",
    ],
    ids=["after", "before", "load_contrib after", "load_contrib before"],
)
def test_port_4791_is_ours_and_both_are_usable(imports: str):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", imports + CHECK],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, "both usable", "")
