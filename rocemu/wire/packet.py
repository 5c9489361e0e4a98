"""A RoCEv2 packet from BTH to pad, without the ICRC: :func:`parse` and :func:`build`."""

from dataclasses import dataclass
from typing import Any

from rocemu.wire.errors import WireError
from rocemu.wire.headers import (
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
from rocemu.wire.opcodes import OPCODES, OpcodeInfo

__all__ = ["Packet", "build", "parse"]

_PAD = (b"", b"\0", b"\0\0", b"\0\0\0")


@dataclass(slots=True)
class Packet:
    """A BTH, the extension headers that its opcode asks for, and the payload without pad.

    Header attributes that the opcode does not have are None.
    """

    bth: BTH
    payload: bytes | memoryview = b""
    reth: RETH | None = None
    aeth: AETH | None = None
    deth: DETH | None = None
    immdt: ImmDt | None = None
    ieth: IETH | None = None
    atomiceth: AtomicETH | None = None
    atomicacketh: AtomicAckETH | None = None
    xrceth: XRCETH | None = None
    rdeth: RDETH | None = None
    feth: FETH | None = None
    cnppad: CNPPad | None = None

    @property
    def info(self) -> OpcodeInfo:
        """The opcode's row; raises KeyError for a reserved opcode."""
        return OPCODES[self.bth.opcode]


_CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        RETH,
        AETH,
        DETH,
        ImmDt,
        IETH,
        AtomicETH,
        AtomicAckETH,
        XRCETH,
        RDETH,
        FETH,
        CNPPad,
    )
}
# opcode -> ((attribute, class, offset), ...), end of headers
_PLANS: dict[int, tuple[tuple[tuple[str, Any, int], ...], int]] = {}
for _opcode, _info in OPCODES.items():
    _offset, _plan = BTH.SIZE, []
    for _name in _info.headers:
        _plan.append((_name.lower(), _CLASSES[_name], _offset))
        _offset += _CLASSES[_name].SIZE
    _PLANS[_opcode] = (tuple(_plan), _offset)


def parse(data: bytes | memoryview) -> Packet:
    """Read a packet (BTH to pad, the ICRC already taken off); the payload is a view of ``data``.

    Raises :class:`WireError`, and nothing else, for any bytes that are no packet: reasons
    ``short`` (no room for BTH, headers or pad), ``pad`` (not filled up to 4 bytes), ``tver``
    (transport version not 0) and ``opcode`` (reserved; a caller that must tell a queue pair's own
    reserved opcodes reads the BTH itself).
    """
    size = len(data)
    if size < BTH.SIZE:
        raise WireError("short", f"{size} bytes, a BTH alone is {BTH.SIZE}")
    if size & 3:  # every header is a multiple of 4, so this is the same as a wrong PadCnt
        raise WireError("pad", f"{size} bytes with pad {data[1] >> 4 & 3}: not a multiple of 4")
    bth = BTH.unpack(data)
    if bth.tver:
        raise WireError("tver", f"transport header version {bth.tver}, only 0 exists")
    plan = _PLANS.get(bth.opcode)
    if plan is None:
        raise WireError("opcode", f"reserved opcode {bth.opcode:#04x}")
    headers, start = plan
    end = size - bth.pad
    if end < start:
        raise WireError(
            "short",
            f"{size} bytes with pad {bth.pad}, {OPCODES[bth.opcode].name} needs {start + bth.pad}",
        )
    packet = Packet(bth, memoryview(data)[start:end])
    for attribute, cls, offset in headers:
        setattr(packet, attribute, cls.unpack(data, offset))
    return packet


def build(packet: Packet) -> bytes:
    """Write a packet, BTH to pad; sets ``bth.pad`` to (-payload length) mod 4.

    Raises WireError (reason ``headers``) when a header that the opcode needs is missing.
    """
    bth = packet.bth
    plan = _PLANS.get(bth.opcode)
    if plan is None:
        raise WireError("opcode", f"reserved opcode {bth.opcode:#04x}")
    bth.pad = -len(packet.payload) & 3
    parts: list[bytes | memoryview] = [bth.pack()]
    for attribute, _, _ in plan[0]:
        header = getattr(packet, attribute)
        if header is None:
            raise WireError("headers", f"{OPCODES[bth.opcode].name} needs {attribute}")
        parts.append(header.pack())
    parts += (packet.payload, _PAD[bth.pad])
    return b"".join(parts)
