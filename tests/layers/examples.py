"""From codec values to Scapy layers: both name their fields alike, but for one.

A Scapy packet has an attribute ``original``, so AtomicAckETH's field is ``original_data`` there.
"""

import dataclasses
from typing import Any

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

import layers
from rocemu.wire import Flow, Packet


def network(flow: Flow, ip_id: int = 0) -> Any:
    """IP and UDP layers of a flow, DF set."""
    if flow.ipv6:
        ip = IPv6(src=flow.source, dst=flow.destination, tc=flow.tos, hlim=flow.ttl)
    else:
        ip = IP(
            src=flow.source,
            dst=flow.destination,
            tos=flow.tos,
            ttl=flow.ttl,
            id=ip_id,
            flags="DF",
        )
    return ip / UDP(sport=flow.source_port, dport=flow.destination_port)


def as_layers(packet: Packet) -> Any:
    """The same packet as a stack from the BTH on; what build computes is left to it."""
    bth = dataclasses.asdict(packet.bth)
    del bth["pad"]
    stack = layers.BTH(**bth)
    for name in packet.info.headers:
        values = dataclasses.asdict(getattr(packet, name.lower()))
        stack /= getattr(layers, name)(**{_field(key): values[key] for key in values})
    return stack / Raw(bytes(packet.payload)) if packet.payload else stack


def fields_of(layer: Any, value: Any) -> dict[str, Any]:
    """The layer's values of the fields that the codec's header has."""
    return {field.name: getattr(layer, _field(field.name)) for field in dataclasses.fields(value)}


def _field(name: str) -> str:
    return "original_data" if name == "original" else name
