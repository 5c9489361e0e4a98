#!/usr/bin/env python3
"""Makes the captures of this folder: python pcaps/make.py [--to FOLDER] [NAME...]

Real daemons talk in a network namespace that is thrown away afterwards, and write the captures
themselves.  Seeds, fixed keys and documentation addresses make the packets the same in each run;
only the times differ.  Needs Linux with unshare and ip, and root where users may not make
namespaces.  Each command is printed as it could be typed.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROCEMU = [sys.executable, "-m", "rocemu"]

RESPONDER, REQUESTER = "192.0.2.1", "192.0.2.2"
RESPONDER6, REQUESTER6 = "2001:db8::1", "2001:db8::2"
#: No retransmission on a machine that is slow: an ACK timeout of 4 s.
PATIENT = "--timeout 20"
#: The licence fills the region, so that something can be read.
RO = "ro:4096:remote_read:LICENSE@0x10000/0x111100"
RW = "rw:64K:local_write,remote_write,remote_read,remote_atomic@0x20000/0x222200"
TEXT = '"a text of twenty-four B."'
#: What each refused story begins with.
GOOD = ["read ro+0 32", f"write rw+0 {TEXT}"]
REFUSED = "success,success,rem_access_err"


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


class Bench:
    """A place for one recipe: starts daemons, checks how they end."""

    def __init__(self, output: Path, scratch: Path) -> None:
        self.output = output
        """The capture that is made."""
        self.scratch = scratch
        self._responder: subprocess.Popen[str] | None = None

    def start_responder(self, options: str, *, bind: str = RESPONDER) -> None:
        """A responder that captures to ``output`` and has a control socket."""
        control, capture = _quoted(self.scratch / "responder.sock"), _quoted(self.output)
        common = f"--bind {bind} --seed 1 --json --control {control} --capture {capture} {PATIENT}"
        self._responder = self._start("responder", f"{common} {options}")

    def requester(self, *words: str, options: str = "", to: str = RESPONDER) -> None:
        """A requester that does ``words`` and ends well."""
        bind = REQUESTER6 if ":" in to else REQUESTER
        given = shlex.split(f"--bind {bind} --seed 2 {PATIENT} {options}")
        self.run("requester", *given, to, *words)

    def start_requester(self) -> subprocess.Popen[str]:
        """A requester that stays, for :meth:`ctl`."""
        control = f"--daemon --control {_quoted(self.scratch / 'requester.sock')}"
        options = f"--bind {REQUESTER} --seed 2 {PATIENT} --json {control} {RESPONDER}"
        return self._start("requester", options)

    def ctl(self, who: str, *words: str) -> None:
        self.run("ctl", str(self.scratch / f"{who}.sock"), *words)

    def send(self, fields: str) -> None:
        """One crafted packet from the requester's address, and the answer to it."""
        given = f"{RESPONDER} --bind {REQUESTER} --wait 10 --answers 1 {fields}"
        self.run("send", *shlex.split(given))

    def run(self, *words: str) -> None:
        _tell(f"  rocemu {shlex.join(words)}")
        subprocess.run([*ROCEMU, *words], stdout=subprocess.DEVNULL, check=True)

    def _start(self, name: str, options: str) -> subprocess.Popen[str]:
        _tell(f"  rocemu {name} {options} &")
        command = [*ROCEMU, name, *shlex.split(options)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        ready: dict[str, Any] = {"event": None}
        while ready["event"] not in ("listening", "connected"):
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"the {name} ended before it was ready")
            ready = json.loads(line)
        return process

    def stop(self, process: subprocess.Popen[str] | None = None) -> None:
        """End a daemon, by default the responder; its capture is complete then."""
        process = process or self._responder
        if process is not None:
            process.terminate()
            process.communicate()


def permission(bench: Bench) -> None:
    bench.start_responder(f"--mr {RO} --mr {RW}")
    bench.requester(*GOOD, f"write ro+0 {TEXT}", options=f"--expect {REFUSED}")


def bounds(bench: Bench) -> None:
    bench.start_responder(f"--mr {RO} --mr {RW}")
    bench.requester(*GOOD, f"write rw+65528 {TEXT}", options=f"--expect {REFUSED}")


def key(bench: Bench) -> None:
    bench.start_responder(f"--mr {RO} --mr {RW}")
    bench.requester(*GOOD, f"write @0x20000/0xdeadbe00 {TEXT}", options=f"--expect {REFUSED}")


def pd(bench: Bench) -> None:
    other = "--mr other:4096:local_write,remote_write@0x30000/0x333300 --other-pd other"
    bench.start_responder(f"--mr {RO} --mr {RW} {other}")
    bench.requester(*GOOD, f"write other+0 {TEXT}", options=f"--expect {REFUSED}")


def state(bench: Bench) -> None:
    gone = "--mr gone:4096:local_write,remote_write@0x40000/0x444400"
    bench.start_responder(f"--mr {RO} --mr {RW} {gone}")
    requester = bench.start_requester()
    for operation in (*GOOD, f"write gone+0 {TEXT}"):
        bench.ctl("requester", "post", operation)
    bench.ctl("responder", "deregister", "gone")
    bench.ctl("requester", "post", f"write gone+0 {TEXT}")
    bench.ctl("requester", "stop")
    bench.stop(requester)


def lkey(bench: Bench) -> None:
    capture, bench.output = bench.output, bench.scratch / "responder.pcapng"
    bench.start_responder(f"--mr {RW}")
    expected = "success,loc_prot_err,wr_flush_err"
    options = f"--mr src:4096:none --capture {_quoted(capture)} --expect {expected}"
    wrong = "write rw+128 <src+0:32 lkey=0xdeadbe00"
    bench.requester(
        f"write rw+0 {TEXT}", wrong, f"write rw+64 {TEXT}", options=f"{options} --tx-depth 3"
    )


def read(bench: Bench) -> None:
    bench.start_responder(f"--mr {RO}")
    bench.requester("read ro+0 600", options="--mtu 256")


def write(bench: Bench) -> None:
    bench.start_responder(f"--mr {RW}")
    options = "--mtu 256 --mr src:4096:none:LICENSE"
    bench.requester("write rw+0 <src+0:600", "write rw+1024 <src+0:500 imm=0x77", options=options)


def atomics(bench: Bench) -> None:
    bench.start_responder(f"--mr {RW}")
    bench.requester("fetch-add rw+8 5", "cmp-swap rw+8 5 9", "cmp-swap rw+8 5 1", "read rw+8 8")


def rnr(bench: Bench) -> None:
    bench.start_responder("--recv 0 --rnr-timer 14")
    options = "--rnr-retry 1 --expect rnr_retry_exc_err"
    bench.requester(f"send {TEXT}", options=options)


def cm(bench: Bench) -> None:
    bench.start_responder(f"--mr {RW}")
    bench.requester(f"send {TEXT}", f"send {TEXT} imm=0x1234")


def ipv6(bench: Bench) -> None:
    bench.start_responder(f"--mr {RO} --mr {RW}", bind=RESPONDER6)
    options = f"--expect {REFUSED}"
    bench.requester(*GOOD, f"write ro+0 {TEXT}", options=options, to=RESPONDER6)


def _static_responder(bench: Bench) -> str:
    """A responder whose queue pair is there already; gives the WRITE that fits it, without PSN."""
    numbers = "--qpn 0x11 --psn 1000 --remote-qpn 0x12 --remote-psn 2000"
    bench.start_responder(f"--static --remote {REQUESTER} {numbers} --mr {RW}")
    return "rdma_write_only dest_qp=0x11 va=0x20000 rkey=0x222200 payload=sixteen-bytes-ok"


def psn(bench: Bench) -> None:
    fields = _static_responder(bench)
    for number in (2000, 2003, 2001):
        bench.send(f"{fields} psn={number}")


def opcode(bench: Bench) -> None:
    fields = _static_responder(bench)
    bench.send(f"{fields} psn=2000")
    bench.send("0x18 dest_qp=0x11 psn=2001")


RECIPES: dict[str, Callable[[Bench], None]] = {
    recipe.__name__: recipe
    for recipe in (
        permission,
        bounds,
        key,
        pd,
        state,
        lkey,
        read,
        write,
        atomics,
        rnr,
        cm,
        ipv6,
        psn,
        opcode,
    )
}


def _make(name: str, folder: Path) -> None:
    _tell(name)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(folder / f"{name}.pcapng", Path(scratch))
        try:
            RECIPES[name](bench)
        finally:
            bench.stop()


def _enter_namespace(arguments: list[str]) -> int:
    """Run this script again with loopback and our addresses in a namespace of its own."""
    addresses = (f"{RESPONDER}/32", f"{REQUESTER}/32", f"{RESPONDER6}/128", f"{REQUESTER6}/128")
    setup = ["ip link set lo up", *(f"ip address add {address} dev lo" for address in addresses)]
    again = shlex.join([sys.executable, str(Path(__file__).resolve()), "--inside", *arguments])
    mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
    script = " && ".join([*setup, f"exec {again}"])
    return subprocess.run(["unshare", "--net", *mapped, "sh", "-c", script]).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(RECIPES)}")
    parser.add_argument("--to", type=Path, default=HERE, metavar="FOLDER")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    for name in given.names:
        if name not in RECIPES:
            parser.error(f"no capture {name!r}; there are {', '.join(RECIPES)}")
    if not given.inside:
        return _enter_namespace(sys.argv[1:])
    folder = given.to.absolute()
    os.chdir(HERE.parent)  # where the package is, installed or not, and the licence
    for name in given.names or RECIPES:
        _make(name, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
