"""Requests that Linux Soft-RoCE sent, played into a responder with its profile: the same answers.

Each capture is of one queue pair between two processes: a WRITE of a flag at 0xcfd000 begins and
ends it, in between is the case, on a region of two pages at 0xcfa000.  R_Keys are the kernel's, and
so are the contents that READs and atomics brought; both are taken from the capture.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from rocemu.capture import open_capture
from rocemu.daemon.replay_script import Script, read_scripts
from tests.daemon.processes import Start, address_of, run_here
from tests.net.pair import next_address

SOFT_ROCE = Path(__file__).parent.parent.parent / "pcaps" / "soft-roce"
FLAG, DATA = 0xCFD000, 0xCFA000
ALL = "local_write,remote_write,remote_read,remote_atomic"
WRITES = "local_write,remote_write"
NO_WRITE, NO_READ, NO_ATOMIC = "remote_read", WRITES, WRITES
#: Captures -> access flags of the data region ("" for none), and other options.
CASES: dict[str, tuple[str, str]] = {
    "ok_send": (ALL, ""),
    "ok_send_imm": (ALL, ""),
    "ok_write": (ALL, ""),
    "ok_write_imm": (ALL, ""),
    "ok_write_zero": (ALL, ""),
    "ok_read": (ALL, ""),
    "ok_read_zero": (ALL, ""),
    "ok_cas": (ALL, ""),
    "ok_faa": (ALL, ""),
    "write_zero_badrkey": ("", ""),
    "write_zero_atend": (ALL, ""),
    "read_zero_badrkey": ("", ""),
    "write_ro_mr": (NO_WRITE, ""),
    "write_badrkey": ("", ""),
    "write_badrkey_multi": ("", ""),
    "write_badkeybyte": ("", ""),
    "write_dereg": ("", ""),
    "write_otherpd": (ALL, "--other-pd data"),
    "write_oob_end": (ALL, ""),
    "write_oob_multi": (ALL, ""),
    "write_oob_below": (ALL, ""),
    "write_oob_justend": (ALL, ""),
    "read_noaccess_mr": (NO_READ, ""),
    "read_badrkey": ("", ""),
    "read_oob": (ALL, ""),
    "faa_noaccess_mr": (NO_ATOMIC, ""),
    "faa_badrkey": ("", ""),
    "faa_oob": (ALL, ""),
    "write_ro_qp": (ALL, "--qp-access remote_read"),
    "read_noaccess_qp": (ALL, f"--qp-access {WRITES}"),
    "faa_noaccess_qp": (ALL, f"--qp-access {WRITES}"),
    "send_rnr_retry0": (ALL, "--recv 0"),
    "write_imm_rnr": (ALL, "--recv 0"),
    "send_too_long": (ALL, "--recv 4:64"),
    "send_too_long_one": (ALL, "--recv 4:16"),
}

#: Where rxe NAKs the request behind one that it answered with RNR NAK, and we wait for the retry.
SILENT = {"send_rnr_retry0": 6, "write_imm_rnr": 6}


def regions(script: Script, access: str, folder: Path) -> str:
    """The regions of the captured responder as options."""
    keys = {}
    for step in script.requests:
        packet = step.packet.packet
        assert packet is not None
        remote = packet.reth or packet.atomiceth
        if remote is not None:
            keys.setdefault("flag" if remote.va == FLAG else "data", remote.rkey)
    found = []
    if "flag" in keys:
        found.append(f"--mr flag:4096:{ALL}@{FLAG:#x}/{keys['flag']:#x}")
    if access:
        content = folder / "content"
        content.write_bytes(
            b"".join(
                bytes(a.packet.packet.payload)
                for a in script.steps
                if not a.is_request and a.packet.packet is not None
            )
        )
        key = f"/{keys['data']:#x}" if "data" in keys else ""
        found.append(f"--mr data:8192:{access}:{content}@{DATA:#x}{key}")
    return " ".join(found)


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_answers(start: Start, tmp_path: Path, name: str) -> None:
    file = SOFT_ROCE / f"{name}.pcap"
    with open_capture(file) as reader:
        (script,) = read_scripts(reader)
    access, more = CASES[name]
    own, address = next_address(), next_address()
    options = (
        f"--json --profile soft-roce --static --bind {address} --remote {own} --mtu 1024 "
        f"--qpn {script.requests[0].dest_qp} --psn 1 --remote-qpn {script.own_qpn} "
        f"--remote-psn {script.first_psn} {regions(script, access, tmp_path)} {more}"
    )
    server = start("responder", *shlex.split(options))
    server.wait_for("qp_state", to="IBV_QPS_RTS")
    run = run_here(
        *("replay", "-r", str(file), address_of(server), "--bind", own, "--static", "-t", "--json")
    )
    silent = {SILENT[name]: ["no answer came"]} if name in SILENT else {}
    found = {r["number"]: r["differences"] for r in run.of("answer") if r["differences"]}
    assert found == silent, "".join(run.output)
    assert run.of("extra") == []
    assert run.code == (1 if silent else 0)
    (summary,) = run.of("summary")
    answers = len(script.steps) - len(script.requests)
    assert summary["answers"] + summary["coalesced"] >= answers > 0
    assert summary["requests"] == len(script.requests)
