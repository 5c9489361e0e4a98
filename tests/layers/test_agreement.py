"""Layers and codec write and read the same bytes, for every opcode, over IPv4 and IPv6."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import NoPayload, Raw, raw

import layers
from rocemu.wire import HEADER_SIZES, OPCODES, Flow, OpcodeInfo, build, parse, seal
from tests.layers.examples import as_layers, fields_of, network
from tests.wire.examples import KERNEL_FILES, bits, flows, packets, read_pcap


@pytest.mark.parametrize("info", OPCODES.values(), ids=lambda info: info.name)
@settings(max_examples=6)
@given(data=st.data(), flow=flows(), ip_id=bits(16))
def test_same_bytes_both_ways(info: OpcodeInfo, data: st.DataObject, flow: Flow, ip_id: int):
    packet = data.draw(packets(info))
    sealed = seal(build(packet), flow, ip_id)

    # layers build what the codec builds
    stack = network(flow, ip_id) / as_layers(packet)
    built = raw(stack)
    assert raw(UDP(built[40 if flow.ipv6 else 20 :]).payload) == sealed

    # layers read what the codec wrote: the same headers in the same order, the same values
    dissected = (IPv6 if flow.ipv6 else IP)(built)
    bth = dissected[layers.BTH]
    assert fields_of(bth, packet.bth) == dataclasses.asdict(packet.bth)
    layer = bth.payload
    for name in info.headers:
        assert type(layer) is getattr(layers, name)
        value = getattr(packet, name.lower())
        assert fields_of(layer, value) == dataclasses.asdict(value)
        layer = layer.payload
    if packet.payload:
        assert (type(layer), layer.load) == (Raw, packet.payload)
    else:
        assert isinstance(layer, NoPayload)
    assert bth.padding == bytes(-len(packet.payload) & 3)
    assert bth.icrc.to_bytes(4, "big") == sealed[-4:]
    assert raw(dissected) == built

    # the codec reads what layers wrote
    assert parse(raw(bth)[:-4]) == packet


@pytest.mark.parametrize("name", KERNEL_FILES)
def test_the_kernels_packets_are_rebuilt(name: str):
    """As they came, and again with everything that build computes left to it."""
    for frame in read_pcap(name):
        packet = (IP if frame[0] >> 4 == 4 else IPv6)(frame)
        bth = packet[layers.BTH]
        assert raw(packet) == frame
        codec = parse(raw(bth)[:-4])
        layer = bth
        for name in codec.info.headers:
            layer = layer.payload
            assert type(layer) is getattr(layers, name)
        assert raw(layer.payload) == codec.payload  # a MAD has layers of its own
        del bth.icrc, bth.pad, bth.padding
        assert raw(packet) == frame


def test_every_header_has_a_layer_of_its_name_and_size():
    sizes = {name: len(raw(getattr(layers, name)())) for name in HEADER_SIZES}
    assert sizes == HEADER_SIZES
