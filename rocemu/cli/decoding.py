"""A datagram as a record for ``--json`` and as one line for people, fields named as they are typed
for ``rocemu send``."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from rocemu.wire import (
    BTH,
    GSI_QPN,
    ICRC_SIZE,
    Flow,
    IcrcMatch,
    Packet,
    WireError,
    describe_syndrome,
    opcode_name,
    parse,
    parse_mad,
)

__all__ = ["Record", "packet_line", "packet_record"]

Record = dict[str, Any]

_DECIMAL = ("psn", "msn", "length", "pad", "tver")
_SHOWN_BYTES = 48
_ICRC = {
    IcrcMatch.EXACT: "right",
    IcrcMatch.KNOWN_ID: "right",
    IcrcMatch.SOLVED: "right for IP ID {ip_id:#06x}",
    IcrcMatch.BAD: "wrong",
}


def packet_record(datagram: bytes, flow: Flow, match: IcrcMatch, ip_id: int) -> Record:
    """A UDP payload (BTH to ICRC), one key a header; what does not parse has ``malformed``."""
    record: Record = {
        "source": flow.source,
        "source_port": flow.source_port,
        "destination": flow.destination,
    }
    body = datagram[:-ICRC_SIZE]
    try:
        packet = parse(body)
    except WireError as error:
        if len(body) >= BTH.SIZE:
            bth = BTH.unpack(body)
            record |= {"opcode": opcode_name(bth.opcode), "bth": asdict(bth)}
        record["malformed"] = str(error)
    else:
        record |= {"opcode": opcode_name(packet.bth.opcode), **_headers(packet)}
        record["payload"] = bytes(packet.payload).hex()
    return record | {"icrc": match.value, "ip_id": ip_id, "datagram": datagram.hex()}


def _headers(packet: Packet) -> Record:
    headers: Record = {}
    for field in fields(packet):
        header = getattr(packet, field.name)
        if field.name != "payload" and header is not None:
            headers[field.name] = asdict(header)
    if packet.aeth is not None:
        headers["aeth"]["name"] = describe_syndrome(packet.aeth.syndrome)
    if packet.cnppad is not None:
        headers["cnppad"]["reserved"] = packet.cnppad.reserved.hex()
    if packet.deth is not None and packet.bth.dest_qp == GSI_QPN:
        try:
            message = parse_mad(packet.payload)
        except WireError as error:
            headers["malformed"] = str(error)
        else:
            name = f"CM {type(message).__name__.removeprefix('Cm').upper()}"
            headers["mad"] = {"transaction_id": message.transaction_id, "name": name}
    return headers


def packet_line(record: Record) -> str:
    """One line of a record of :func:`packet_record`."""
    parts = [f"{record['source']}:{record['source_port']} > {record['destination']}"]
    if "opcode" in record:
        parts.append(record["opcode"])
    for name, header in record.items():
        if isinstance(header, dict):
            parts.append(_header_line(name, header))
    if "malformed" in record:
        parts.append(f"malformed: {record['malformed']}")
    payload = bytes.fromhex(record.get("payload", ""))
    if payload:
        more = " ..." if len(payload) > _SHOWN_BYTES else ""
        parts.append(f"{len(payload)} bytes {payload[:_SHOWN_BYTES]!r}{more}")
    parts.append("ICRC " + _ICRC[IcrcMatch(record["icrc"])].format(ip_id=record["ip_id"]))
    return "  ".join(parts)


def _header_line(name: str, header: Record) -> str:
    shown = dict(header)
    if name == "bth":
        usual = asdict(BTH(header["opcode"], -1, -1))
        shown = {field: value for field, value in header.items() if value != usual[field]}
    words = [_word(field, value) for field, value in shown.items() if field != "name"]
    if "name" in header:
        words.append(f"[{header['name']}]")
    return " ".join(words)


def _word(field: str, value: int | str) -> str:
    if isinstance(value, str) or field in _DECIMAL:
        return f"{field}={value}"
    return f"{field}={int(value)}" if isinstance(value, bool) else f"{field}={value:#x}"
