"""``rocemu audit`` beside tshark and Scapy on one capture: packets per second, ratios, memory.

    python bench/audit.py [--packets 1000000] [--capture FILE]

All three read the same pcapng file, one after the other, from the page cache.  tshark prints
opcode, QP and PSN of every packet and verifies nothing; Scapy's PcapReader dissects a prefix with
contrib.roce; rocemu audit verifies every ICRC and follows every conversation.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from traffic import write

PREFIX = 3_000
FIELDS = ("infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn")
SCAPY = """
import sys, time
from scapy.contrib import roce
from scapy.utils import PcapNgReader
with PcapNgReader(sys.argv[1]) as packets:
    began = time.perf_counter()
    for count, packet in enumerate(packets, 1):
        packet[roce.BTH].psn
        if count == int(sys.argv[2]):
            break
    print(count / (time.perf_counter() - began))
"""


def run(command: Sequence[str]) -> tuple[float, int]:
    """Seconds that a command takes, and the most memory its processes had together, in bytes."""
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
    done.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    return time.perf_counter() - began, peak


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
    audit, used = run([sys.executable, "-m", "rocemu", "audit", "-r", str(path)])
    fields = [word for field in FIELDS for word in ("-e", field)]
    tshark, _ = run(["tshark", "-n", "-r", str(path), "-T", "fields", *fields])
    again, _ = run([sys.executable, "-m", "rocemu", "audit", "-r", str(path)])
    scapy = subprocess.run(
        [sys.executable, "-c", SCAPY, str(path), str(PREFIX)],
        capture_output=True,
        text=True,
        check=True,
    )
    audit = min(audit, again)
    print(f"{packets} packets, {size / packets:.0f} bytes each in the file, {os.cpu_count()} cores")
    print(f"rocemu audit   {packets / audit:>10,.0f} packets/s   {used / 1e6:.0f} MB")
    print(f"tshark         {packets / tshark:>10,.0f} packets/s   ratio {tshark / audit:.1f}")
    rate = float(scapy.stdout)
    print(f"Scapy          {rate:>10,.0f} packets/s   ratio {packets / audit / rate:.0f}")


if __name__ == "__main__":
    main()
