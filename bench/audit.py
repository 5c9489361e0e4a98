"""``rocemu audit`` beside tshark and Scapy on one capture: packets per second, ratios, memory.

    python bench/audit.py [--packets 1000000] [--capture FILE]

All three read the same pcapng file, in turn, from the page cache; the best of two runs counts.
tshark prints opcode, QP and PSN of every packet and verifies nothing; Scapy's reader dissects a
prefix with contrib.roce; rocemu audit verifies every ICRC and follows every conversation.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from traffic import write

PREFIX = 3_000
FIELDS = ("infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn")
ROUNDS = 2
SCAPY = """
import sys
from scapy.contrib import roce
from scapy.utils import PcapNgReader
with PcapNgReader(sys.argv[1]) as packets:
    for count, packet in enumerate(packets, 1):
        packet[roce.BTH].psn
        if count == int(sys.argv[2]):
            break
"""


class Run(NamedTuple):
    """What a command took."""

    seconds: float
    cpu: float
    """Seconds of processor time, of all its processes."""
    memory: int
    """Bytes, the most that its processes had together."""


def run(command: Sequence[str]) -> Run:
    """Run a command to its end, its output thrown away."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, memory(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    process.wait()
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(seconds, cpu, peak)


def memory(pid: int) -> int:
    """Proportional set size of a process and its children: what is shared counts once."""
    total = 0
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0  # it just ended
    for line in rollup.splitlines():
        if line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    return total + sum(memory(int(child)) for child in children)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--capture", type=Path, help="use or make this file; default: a new one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.capture or Path(folder, "bench.pcapng")
        if not path.exists():
            print(f"making {options.packets} packets ...", file=sys.stderr)
            write(options.packets, str(path))
        measure(path, options.packets)


def measure(path: Path, packets: int) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        while file.read(1 << 20):  # into the page cache
            pass
    fields = [word for field in FIELDS for word in ("-e", field)]
    audits, tsharks = [], []
    for _ in range(ROUNDS):
        audits.append(run([sys.executable, "-m", "rocemu", "audit", "-r", str(path)]))
        tsharks.append(run(["tshark", "-n", "-r", str(path), "-T", "fields", *fields]))
    scapys = [
        run([sys.executable, "-c", SCAPY, str(path), str(count)]) for count in (1, PREFIX, PREFIX)
    ]
    audit, tshark = min(audits), min(tsharks)  # by seconds
    start, scapy = scapys[0], min(scapys[1:])  # without what it takes to start
    print(f"{packets} packets, {size / packets:.0f} bytes each in the file, {os.cpu_count()} cores")
    print("                packets/s   ratio   CPU us/packet   ratio")
    for name, seconds, cpu in (
        ("rocemu audit", audit.seconds / packets, audit.cpu / packets),
        ("tshark", tshark.seconds / packets, tshark.cpu / packets),
        ("Scapy", (scapy.seconds - start.seconds) / PREFIX, (scapy.cpu - start.cpu) / PREFIX),
    ):
        print(
            f"{name:<12} {1 / seconds:>12,.0f} {seconds * packets / audit.seconds:>7.1f} "
            f"{cpu * 1e6:>15.2f} {cpu * packets / audit.cpu:>7.1f}"
        )
    print(f"memory of rocemu audit: {audit.memory / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
