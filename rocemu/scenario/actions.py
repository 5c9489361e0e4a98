"""What a script does: work requests, receives, moves, memory, and the packets of scripted peers."""

from dataclasses import asdict
from typing import Any

from rocemu.daemon.operations import LocalPlace, Operation, fill
from rocemu.net.faults import Passing, wrong_icrc
from rocemu.scenario.model import (
    Deregister,
    Modify,
    PacketText,
    Post,
    Receive,
    Relative,
    SetMemory,
    Step,
)
from rocemu.scenario.packets import header_class
from rocemu.scenario.world import DeviceEnd, World
from rocemu.transport import SGE, QPAttr, RecvWR, SendWR
from rocemu.transport.qp import source_port
from rocemu.verbs import AccessFlags, QPAttrMask, SendFlags
from rocemu.wire import BTH, HEADER_SIZES, OPCODES, AethKind, Flow, ack_syndrome, seal

__all__ = ["Actor", "build_packet", "first_psn", "resolve"]

#: Fields that an Acknowledge of a kind has where the script names none.
_SYNDROMES = {AethKind.ACK: ack_syndrome(), AethKind.RNR_NAK: AethKind.RNR_NAK << 5 | 12}
_MASK64 = (1 << 64) - 1


class Actor:
    """Does the steps of a script in a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sends = dict.fromkeys((end.spec.name for end in world.ends), 0)
        self._receives = dict(self._sends)

    def act(self, step: Step) -> None:
        """Do one step; raises QPError, RegistrationError or ValueError where it cannot be done."""
        what = step.what
        if isinstance(what, PacketText):
            self._send(what)
            return
        end = self._world.device_end(step.who) if step.who else None
        match what, end:
            case Post(), DeviceEnd():
                self._post(what.operation, end)
            case Receive(), DeviceEnd():
                self._receive(what, end)
            case Modify(), DeviceEnd():
                end.qp.modify(QPAttr(qp_state=what.state), QPAttrMask.IBV_QP_STATE)
            case Deregister(), DeviceEnd():
                end.device.dereg_mr(end.regions[what.region])
            case SetMemory(), DeviceEnd():
                _within(end, what.place, len(what.data))
                end.regions[what.place.name].write(what.place.offset, what.data)
        if end is not None:
            end.note(self._world.now)

    # ------------------------------------------------------------------ work requests

    def _post(self, operation: Operation, end: DeviceEnd) -> None:
        peer = next(other for other in self._world.ends if other is not end)
        remote: dict[str, Any] = {}
        if (target := operation.target) is not None:
            region = peer.regions[target.name] if target.name else None
            start = region.va if region else 0
            remote = {
                "remote_addr": start + target.offset & _MASK64,
                "rkey": region.rkey if region else target.rkey,
            }
        self._sends[end.spec.name] += 1
        inline = operation.flags & SendFlags.IBV_SEND_INLINE
        sge = self._sge(operation, end)
        end.qp.post_send(
            SendWR(
                self._sends[end.spec.name],
                operation.opcode,
                () if inline else (sge,),
                operation.flags,
                imm_data=operation.immediate or 0,
                compare_add=operation.compare_add,
                swap=operation.swap,
                inline_data=operation.data if inline else b"",
                invalidate_rkey=operation.invalidate or 0,
                flush_length=operation.extent,
                flush_placement=operation.placement,
                flush_selectivity=operation.selectivity,
                **remote,
            )
        )

    def _sge(self, operation: Operation, end: DeviceEnd) -> SGE:
        """Local memory of an operation: the place that it names, or a region of its own."""
        place = operation.local
        if place is not None:
            addr, length = self._world.address_of(end, place), operation.length
            lkey = end.regions[place.name].lkey
        else:
            mr = end.device.reg_mr(
                end.pd,
                bytearray(operation.data or operation.length),
                AccessFlags.IBV_ACCESS_LOCAL_WRITE,
                name="literal",
            )
            addr, length, lkey = mr.va, mr.length, mr.lkey
        return SGE(addr, length, lkey if operation.lkey is None else operation.lkey)

    def _receive(self, what: Receive, end: DeviceEnd) -> None:
        self._receives[end.spec.name] += 1
        sges = [
            SGE(
                self._world.address_of(end, place),
                length,
                end.regions[place.name].lkey if what.lkey is None else what.lkey,
            )
            for place, length in what.places
        ]
        end.qp.post_recv(RecvWR(self._receives[end.spec.name], sges))

    # ------------------------------------------------------------------ packets by hand

    def _send(self, what: PacketText) -> None:
        """A scripted peer sends a packet, built field by field, right or not."""
        sender, receiver = self._ends(what.to_right)
        port = source_port(sender.qpn, receiver.qpn)
        flow = Flow(sender.address, receiver.address, port)
        body = what.data if what.opcode is None else build_packet(self._world, what)
        sealed = seal(body, flow) if len(body) >= BTH.SIZE else body
        if what.corrupt and len(body) >= BTH.SIZE:
            sealed = wrong_icrc(sealed, flow)
        self._world.put(what.to_right, Passing(sealed, flow, lost=what.lost))

    def _ends(self, to_right: bool) -> list[Any]:
        specs = [end.spec for end in self._world.ends]
        return specs if to_right else specs[::-1]


def _within(end: DeviceEnd, place: LocalPlace, length: int) -> None:
    mr = end.regions[place.name]
    if place.offset + length > mr.length:
        raise ValueError(f"{place.name}+{place.offset}: {length} bytes, the region has {mr.length}")


def build_packet(world: World, what: PacketText) -> bytes:
    """BTH to pad; fields that are not named are zero, the destination and the pad are right."""
    assert what.opcode is not None
    info = OPCODES.get(what.opcode)
    receiver = world.ends[what.to_right].spec
    named = {
        header: {name: resolve(world, what, name, value) for name, value in values.items()}
        for header, values in what.headers.items()
    }
    payload = what.payload if what.payload is not None else fill(what.size or 0)
    bth: dict[str, Any] = {
        "dest_qp": receiver.qpn,
        "psn": first_psn(world, what.opcode, what.to_right),
        "pad": -len(payload) & 3,
        **named.get("bth", {}),
    }
    parts = [BTH(what.opcode, **bth).pack()]
    for header in info.headers if info else ():
        cls, fields = header_class(header), named.get(header.lower(), {})
        if header == "AETH" and "syndrome" not in fields:
            fields["syndrome"] = _SYNDROMES[what.kind or AethKind.ACK]
        blank = cls.unpack(bytes(HEADER_SIZES[header]))
        parts.append(cls(**{**asdict(blank), **fields}).pack())
    return b"".join((*parts, payload, bytes(-len(payload) & 3)))


def first_psn(world: World, opcode: int, to_right: bool) -> int:
    """The first PSN of what a packet belongs to: answers have the PSNs of their requests."""
    info = OPCODES.get(opcode)
    asked_by_sender = info is None or info.is_request
    return world.ends[to_right is not asked_by_sender].spec.psn


def resolve(world: World, what: PacketText, name: str, value: Any) -> int:
    """The number that a field has: PSNs from the first, regions of the receiver by name."""
    if isinstance(value, Relative):
        assert what.opcode is not None
        return first_psn(world, what.opcode, what.to_right) + value.offset & 0xFFFFFF
    if isinstance(value, LocalPlace):
        end = world.ends[what.to_right]
        region = end.regions[value.name]
        return region.rkey if name == "rkey" else world.address_of(end, value)
    return int(value)
