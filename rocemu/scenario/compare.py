"""A packet that came against the line that expects it, and what came in the script's words."""

from rocemu.scenario.actions import build_packet, first_psn, resolve
from rocemu.scenario.data import spell_data
from rocemu.scenario.model import PacketText
from rocemu.scenario.packets import spell_packet
from rocemu.scenario.world import OnWire, World
from rocemu.transport import WC
from rocemu.verbs import WCFlags
from rocemu.wire import ICRC_SIZE, WireError, aeth_kind, opcode_name, parse

__all__ = ["differences", "spell", "spell_completion"]


def differences(world: World, what: PacketText, came: OnWire) -> list[str]:
    """What is different, in words; fields that the line does not name are not compared."""
    if what.to_right is not came.to_right:
        return ["the other direction"]
    body = came.datagram[:-ICRC_SIZE]
    if what.opcode is None:
        return [] if what.data in (body, came.datagram) else ["other bytes"]
    try:
        packet = parse(body)
    except WireError as error:  # no packet, and perhaps that is what was wanted
        return [] if body == build_packet(world, what) else [str(error)]
    if packet.bth.opcode != what.opcode:
        return [f"expected {opcode_name(what.opcode)}"]
    wrong = []
    if what.kind is not None and "aeth" not in what.headers:
        assert packet.aeth is not None
        if aeth_kind(packet.aeth.syndrome) is not what.kind:
            wrong.append(f"expected {what.kind.name.replace('_', ' ')}")
    for header, values in what.headers.items():
        for name, value in values.items():
            expected = resolve(world, what, name, value)
            is_there = int(getattr(getattr(packet, header), name))
            if is_there != expected:
                wrong.append(f"{name}: expected {_shown(name, expected)}")
    if what.payload is not None and packet.payload != what.payload:
        wrong.append(f"payload: expected {spell_data(what.payload)}")
    if what.size is not None and len(packet.payload) != what.size:
        wrong.append(f"size: expected {what.size}, is {len(packet.payload)}")
    for flag, is_set in (("lost", came.lost), ("bad-icrc", came.corrupt)):
        if is_set is not (what.lost if flag == "lost" else what.corrupt):
            wrong.append(f"it is {'' if is_set else 'not '}{flag}")
    return wrong


def _shown(name: str, value: int) -> str:
    return str(value) if name in ("msn", "length", "psn") else hex(value)


def spell(world: World, came: OnWire) -> str:
    """A packet as a line of a script would name it."""
    body = came.datagram[:-ICRC_SIZE]
    try:
        packet = parse(body)
    except WireError:
        text = f"hex:{body.hex()}"
    else:
        opcode = packet.bth.opcode
        regions = world.ends[came.to_right].regions.values()
        places = {mr.rkey: (mr.name, mr.va) for mr in regions}
        text = spell_packet(packet, first_psn(world, opcode, came.to_right), places)
    arrow = ">" if came.to_right else "<"
    flags = " lost" * came.lost + " bad-icrc" * came.corrupt
    return f"{arrow} {text}{flags}"


def spell_completion(came: WC) -> str:
    """A completion as a line of a script would name it."""
    words = f"{came.wr_id} {came.status.name}"
    if came.status == 0:
        words += f" byte_len={came.byte_len}"
        if came.wc_flags & WCFlags.IBV_WC_WITH_IMM:
            words += f" imm={came.imm_data or 0:#x}"
    return words
