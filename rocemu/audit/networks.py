"""Where the RoCE packets of a batch are: link, IP and UDP headers of thousands at once.

What :func:`rocemu.capture.locate` says of one packet, in columns; the tests hold the two against
each other.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rocemu.capture import LinkType, Network, locate
from rocemu.capture.batches import Batch
from rocemu.wire import ROCE_PORT

__all__ = ["GRH", "IPV4", "IPV6", "Flags", "Ints", "Networks", "find_roce", "windows"]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Bytes = NDArray[np.uint8]

#: ``Networks.network``: what is around a packet.
IPV4, IPV6, GRH = 4, 6, 1
_NETWORKS = {Network.IPV4: IPV4, Network.IPV6: IPV6, Network.GRH: GRH}
#: By Ethertype: the network, and whether it is a tag in front of another one.
_NETWORK_OF = np.zeros(1 << 16, np.int64)
_NETWORK_OF[[0x0800, 0x86DD, 0x8915]] = IPV4, IPV6, GRH
_TAGGED = np.zeros(1 << 16, np.bool_)
_TAGGED[[0x8100, 0x88A8, 0x9100]] = True
_MOST_TAGS = 4
#: Link types whose header is so long, up to an Ethertype, or up to the IP header itself.
_TYPED = {LinkType.ETHERNET: 12, LinkType.LINUX_SLL: 14}
_BARE = {
    LinkType.RAW: 0,
    LinkType.DLT_RAW: 0,
    LinkType.IPV4: 0,
    LinkType.IPV6: 0,
    LinkType.NULL: 4,
    LinkType.LOOP: 4,
}
_UDP, _BTH_FOLLOWS = 17, 0x1B
_HEADER = 44  # an IPv6 header with the ports behind it: all that is looked at


@dataclass(slots=True)
class Networks:
    """RoCE packets of a batch; offsets are absolute, into the batch's ``data``."""

    rows: Ints
    """Which packets of the batch."""
    network: Ints
    """:data:`IPV4`, :data:`IPV6` or :data:`GRH` (RoCEv1)."""
    ip: Ints
    """Where the network header begins."""
    bth: Ints
    end: Ints
    """Where the ICRC ends by the headers; behind the packet where the capture cut it."""
    spare: Ints
    """Bytes that the network header has room for and UDP does not use; less than 0 is a lie."""
    captured: Ints
    """Where what was captured ends."""
    ecn: Ints
    source_port: Ints
    fragment: Flags
    near: Ints
    """Packets of the batch that are no RoCE by one bit of a header, ..."""
    near_ip: Ints
    """... and where their network headers begin."""


def windows(data: bytearray, size: int) -> Bytes:
    """``size`` bytes from every offset on, as rows; to be indexed with offsets."""
    return np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), size)


def find_roce(batch: Batch) -> Networks:
    """Packets to UDP port 4791, first fragments of such, and those of Ethertype 0x8915."""
    expected, ip = _behind_links(batch)
    rows = np.flatnonzero(expected)
    expected, ip = expected[rows], ip[rows]
    captured = batch.starts[rows] + batch.sizes[rows]
    head = windows(batch.data, _HEADER)[ip]
    pairs = head.view(">u2")

    def byte(at: int) -> Ints:
        return head[:, at].astype(np.int64)

    def pair(at: int) -> Ints:
        return pairs[:, at // 2].astype(np.int64)

    first = byte(0)
    version = first >> 4
    network = np.where(expected == GRH, np.where(version == 6, GRH, 0), version)
    four, six, grh = network == IPV4, network == IPV6, network == GRH
    size = np.where(four, (first & 15) * 4, 40)
    total = np.where(four, pair(2), pair(4) + 40)
    flags = np.where(four, pair(6), 0)
    protocol = np.where(four, byte(9), byte(6))
    udp = ip + size
    ports = windows(batch.data, 8)[udp].view(">u2").astype(np.int64)
    port = np.where(grh, ROCE_PORT, ports[:, 1])
    next_header = np.where(grh, _BTH_FOLLOWS, _UDP)
    roce = (
        (four | six | grh)
        & (protocol == next_header)
        & (port == ROCE_PORT)
        & (size >= np.where(four, 20, 40))
        & (udp + np.where(grh, 0, 8) <= captured)
        & (flags & 0x1FFF == 0)
    )
    other = np.flatnonzero(~roce)
    near = other[_near(expected[other], head[other])]
    keep = np.flatnonzero(roce)
    room = (total - size)[keep]
    length = np.where(grh, total - size, ports[:, 2])[keep]
    return Networks(
        rows=rows[keep],
        network=network[keep],
        ip=ip[keep],
        bth=(udp + np.where(grh, 0, 8))[keep],
        end=udp[keep] + length,
        spare=room - length,
        captured=captured[keep],
        ecn=np.where(four, byte(1), byte(1) >> 4)[keep] & 3,
        source_port=np.where(grh, 0, ports[:, 0])[keep],
        fragment=(flags & 0x2000 > 0)[keep],
        near=rows[near],
        near_ip=ip[near],
    )


def _near(expected: Ints, head: Bytes) -> Flags:
    """Headers that would be RoCE's but for one bit of what decides about it.

    Fields are looked at where they would be: what a wrong version or header length makes of the
    rest does not matter.
    """
    pairs = head.view(">u2").astype(np.int64)
    first = head[:, 0].astype(np.int64)
    four = _bits(first ^ 0x45) + _bits(head[:, 9] ^ np.uint8(_UDP))
    four += _bits(pairs[:, 3] & 0x1FFF) + _bits(pairs[:, 11] ^ ROCE_PORT)
    version, next_header = _bits(first >> 4 ^ 6), head[:, 6]
    six = version + _bits(next_header ^ np.uint8(_UDP)) + _bits(pairs[:, 21] ^ ROCE_PORT)
    grh = version + _bits(next_header ^ np.uint8(_BTH_FOLLOWS))
    near: Flags = np.where(expected == GRH, grh == 1, (four == 1) | (six == 1))
    return near


def _bits(values: Ints | Bytes) -> Ints:
    return np.bitwise_count(values).astype(np.int64)


def _behind_links(batch: Batch) -> tuple[Ints, Ints]:
    """Network (0 for none) and where its header begins, for every packet of the batch."""
    network, ip = np.zeros(len(batch), np.int64), batch.starts.copy()
    for link in np.unique(batch.linktypes).tolist():
        rows = np.flatnonzero(batch.linktypes == link)
        if link in _BARE:
            ip[rows] += _BARE[link]
            network[rows] = IPV4  # the version decides
        elif link in _TYPED:
            network[rows], ip[rows] = _behind_types(batch, rows, _TYPED[link])
        else:
            for row in rows.tolist():
                start, size = int(batch.starts[row]), int(batch.sizes[row])
                found = locate(link, bytes(batch.data[start : start + size]))
                network[row] = _NETWORKS.get(found.network, 0)
                ip[row] = start + found.network_at
    network[ip >= batch.starts + batch.sizes] = 0
    return network, ip


def _behind_types(batch: Batch, rows: Ints, at: int) -> tuple[Ints, Ints]:
    """The Ethertype that counts, behind the tags that may come before it."""
    place = batch.starts[rows] + at
    last = batch.starts[rows] + batch.sizes[rows]
    pairs = windows(batch.data, 2)
    kind = np.zeros(len(rows), np.int64)
    for _ in range(_MOST_TAGS + 1):
        place = np.minimum(place, last)
        kind = pairs[place].view(">u2")[:, 0].astype(np.int64)
        tagged = _TAGGED[kind]
        if not tagged.any():
            break
        place = place + 4 * tagged
    return _NETWORK_OF[kind], place + 2
