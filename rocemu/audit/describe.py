"""One packet in one line of words."""

from collections.abc import Mapping

from rocemu.wire import Packet, WireError, describe_syndrome, parse_mad

__all__ = ["describe_packet"]


def describe_packet(packet: Packet, regions: Mapping[int, tuple[str, int]] | None = None) -> str:
    """``RC RDMA WRITE Only  ro+0, 16 B  PSN 0x0003e8``.

    ``regions`` tells names and start addresses by R_Key, where they are known.
    """
    if packet.deth is not None and packet.deth.source_qp == packet.bth.dest_qp == 1:
        return _describe_mad(packet)
    words = [packet.info.name]
    if packet.reth is not None:
        where = _place(packet.reth.va, packet.reth.rkey, regions or {})
        words.append(f"{where}, {packet.reth.length} B")
    elif packet.atomiceth is not None:
        words.append(_place(packet.atomiceth.va, packet.atomiceth.rkey, regions or {}))
    elif packet.payload:
        words.append(f"{len(packet.payload)} B")
    words.append(f"PSN {packet.bth.psn:#08x}")
    if packet.immdt is not None:
        words.append(f"immediate {packet.immdt.immediate:#x}")
    if packet.atomicacketh is not None:
        words.append(f"original {packet.atomicacketh.original}")
    if packet.aeth is not None:
        words.append(f"{describe_syndrome(packet.aeth.syndrome)}, MSN {packet.aeth.msn}")
    return "  ".join(words)


def _place(va: int, rkey: int, regions: Mapping[int, tuple[str, int]]) -> str:
    if rkey not in regions:
        return f"@{va:#x}/{rkey:#010x}"
    name, start = regions[rkey]
    return f"{name}{va - start:+d}"


def _describe_mad(packet: Packet) -> str:
    try:
        message = parse_mad(bytes(packet.payload))
    except WireError:
        return f"MAD that is no CM message, {len(packet.payload)} B"
    return f"CM {type(message).__name__.removeprefix('Cm').upper()}"
