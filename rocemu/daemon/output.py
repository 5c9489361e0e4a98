"""What daemons print: one event, one JSON object or one line for people.

Every event is a dictionary first; its keys are what ``--json`` promises.  :class:`Reporter` writes
it as it is, or through :data:`LINES`, one formatter an event.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any, TextIO

from rocemu.protection import format_access
from rocemu.transport import WC, AsyncEvent, Drop, Event, QPStateChange, Violation
from rocemu.wire import opcode_name

__all__ = ["Reporter", "completion_record", "event_record"]

Record = dict[str, Any]


class Reporter:
    """Writes records to a stream, JSON or text, each with the time of day it was made at.

    A reader that went away or a full disk must not stop a daemon: output ends there.
    """

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json

    def __call__(self, event: str, **fields: Any) -> None:
        """Report an event by name; see :data:`LINES` for the names."""
        record: Record = {"event": event, **fields}
        if self._as_json:
            line = json.dumps(record | {"time": round(time.time(), 6)})
        else:
            line = LINES[event](record)
            if not line:
                return
        try:
            print(line, file=self._stream, flush=True)
        except OSError:  # what is buffered goes nowhere too, or Python would complain at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def event_record(event: Event) -> tuple[str, Record] | None:
    """Name and fields of a device event; None for those that belong to connections."""
    match event:
        case AsyncEvent():
            return "async", {"type": event.type.name, "qp_num": event.qp_num}
        case QPStateChange():
            return "qp_state", {
                "qp_num": event.qp_num,
                "from": event.old.name,
                "to": event.new.name,
            }
        case Violation():
            return "violation", _violation(event)
        case Drop():
            return "drop", _drop(event)
    return None


def _violation(event: Violation) -> Record:
    access, entry = event.verdict.access, event.verdict.entry
    return {
        "side": event.side,
        "qp_num": event.qp_num,
        "causes": [str(cause) for cause in event.verdict.causes],
        "key": access.key,
        "va": access.va,
        "length": access.length,
        "access": format_access(access.needed),
        "mr": entry.name if entry else None,
        "detail": event.verdict.describe(),
    }


def _drop(event: Drop) -> Record:
    record: Record = {
        "reason": event.reason,
        "source": event.datagram.source,
        "detail": event.detail,
    }
    if event.bth is not None:
        record |= {
            "opcode": opcode_name(event.bth.opcode),
            "qp_num": event.bth.dest_qp,
            "psn": event.bth.psn,
        }
    return record


def completion_record(completion: WC, **result: Any) -> Record:
    """Fields of a completion; ``result`` is what the operation brought (data, original, text)."""
    record: Record = {
        "wr_id": completion.wr_id,
        "opcode": completion.opcode.name,
        "status": completion.status.name,
        "status_code": int(completion.status),
        "qp_num": completion.qp_num,
        "byte_len": completion.byte_len,
        "vendor_err": completion.vendor_err,
    }
    if completion.imm_data is not None:
        record["immediate"] = completion.imm_data
    return record | result


# ---------------------------------------------------------------------- lines for people


def _region_line(mr: Record) -> str:
    return (
        f"  MR {mr['name']:<12} va {mr['va']:#x}  length {mr['length']}  "
        f"rkey {mr['rkey']:#010x}  {mr['access']}"
    )


def _listening(record: Record) -> str:
    how = f", CM port {record['cm_port']}" if record.get("cm_port") else ""
    lines = [f"listening on {record['address']} UDP port {record['port']}{how}"]
    return "\n".join(lines + [_region_line(mr) for mr in record.get("mrs", [])])


def _connected(record: Record) -> str:
    local, remote, peer = record["qp_num"], record["remote_qp_num"], record["peer"]
    lines = [f"connected: QP {local:#x} to QP {remote:#x} of {peer}"]
    return "\n".join(lines + [_region_line(mr) for mr in record.get("remote_mrs", [])])


def _printable(data: str) -> str:
    """The first 64 bytes: in quotes when all of it is ASCII text, else in hexadecimal."""
    raw = bytes.fromhex(data)
    head = raw[:64]
    is_text = raw.isascii() and raw.decode("ascii").isprintable()
    shown = repr(head.decode("ascii")) if is_text else head.hex(" ")
    return shown + (" ..." if len(raw) > len(head) else "")


def _completion(record: Record) -> str:
    line = f"completion: wr_id {record['wr_id']}  {record['opcode']}  {record['status']}"
    if record["status_code"] == 0:
        line += f"  {record['byte_len']} bytes"
    if record["vendor_err"]:
        line += f"  vendor_err {record['vendor_err']}"
    for key, shown in (("original", "original {}"), ("immediate", "immediate {:#x}")):
        if key in record:
            line += "  " + shown.format(record[key])
    if record.get("data"):
        line += f"  {_printable(record['data'])}"
    if "operation" in record:
        line += f"   [{record['operation']}]"
    return line


def _drop_line(record: Record) -> str:
    what = f" {record['opcode']} PSN {record['psn']}" if "opcode" in record else ""
    return f"drop: {record['reason']}:{what} from {record['source']}: {record['detail']}"


def _endpoint_line(record: Record) -> str:
    """As ibv_rc_pingpong prints it."""
    return (
        f"  {record['side']} address:  LID 0x0000, QPN 0x{record['qp_num']:06x}, "
        f"PSN 0x{record['psn']:06x}, GID {record['gid']}"
    )


def _qp_state(record: Record) -> str:
    """Nothing for the three moves of connecting, which "connected" tells."""
    if record["to"] in ("IBV_QPS_INIT", "IBV_QPS_RTR", "IBV_QPS_RTS"):
        return ""
    return f"QP {record['qp_num']:#x}: {record['from']} -> {record['to']}"


#: Event name -> the line that people see, "" for none; also the list of events that there are.
LINES: dict[str, Callable[[Record], str]] = {
    "listening": _listening,
    "endpoint": _endpoint_line,
    "connected": _connected,
    "disconnected": lambda r: f"disconnected: QP {r['qp_num']:#x} from {r['peer']}",
    "completion": _completion,
    "async": lambda r: f"async event: {r['type']}  QP {r['qp_num']:#x}",
    "qp_state": _qp_state,
    "violation": lambda r: f"violation ({r['side']}): {r['detail']}",
    "drop": _drop_line,
    "trouble": lambda r: f"trouble: {r['detail']}",
}
