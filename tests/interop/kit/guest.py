"""Boots the guest in a network namespace of its own, and takes both down again.

The namespace is named after the process that made it; a later run removes what a killed one left.
On the bridge in it are this side (:data:`HOST4`, :data:`HOST6`) and the guest's RoCE port.  The
guest's agent listens on a second interface: the bridge carries the traffic under test alone.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.interop.kit.build import CACHE, KERNEL, ROOT

HOST4, GUEST4 = "10.77.0.1", "10.77.0.2"
HOST6, GUEST6 = "fd77::1", "fd77::2"
BRIDGE, TAP = "br0", "tap0"
CONTROL_HOST, CONTROL = "10.78.0.1", "10.78.0.2"
AGENT_PORT = 1023
MTU = 9000
HOST_MAC, GUEST_MAC = "52:54:00:77:00:01", "52:54:00:77:00:02"
GUEST_FILES = Path(__file__).parents[1] / "guest"

_PREFIX = "rocemu-interop-"
_RUN = CACHE / "run"
_CLONE_NEWNET = 0x40000000
_BOOT_SECONDS = 60
# The root folder's own process 1 does only what must come before the project's files are there.
_FIRST = """#!/bin/sh
mount -t proc proc /proc
mount -t hostfs none /share -o "$(sed 's/.*rocemu.share=\\([^ ]*\\).*/\\1/' /proc/cmdline)"
exec /share/init
"""


class GuestError(Exception):
    """The guest did not come up, or went; the text ends with its console's last lines."""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _enter(namespace: Path) -> None:
    """Move this thread, and threads and processes begun from it, to a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(namespace, os.O_RDONLY)
    try:
        if libc.setns(fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(fd)


def _make_network(name: str) -> None:
    _ip("netns", "add", name)
    in_it = ("-n", name)
    _ip(*in_it, "link", "set", "lo", "up")
    _ip(*in_it, "link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0")
    for tap in (TAP, "ctl0"):
        _ip(*in_it, "tuntap", "add", tap, "mode", "tap")
    _ip(*in_it, "link", "set", TAP, "mtu", str(MTU), "master", BRIDGE, "up")
    _ip(*in_it, "link", "set", BRIDGE, "address", HOST_MAC, "mtu", str(MTU), "up")
    _ip(*in_it, "addr", "add", f"{HOST4}/24", "dev", BRIDGE)
    _ip(*in_it, "-6", "addr", "add", f"{HOST6}/64", "dev", BRIDGE, "nodad")
    # Neighbours are known: a lost question for one would hold everything up for a second.
    for address in (GUEST4, GUEST6):
        _ip(*in_it, "neigh", "add", address, "lladdr", GUEST_MAC, "dev", BRIDGE)
    # The guest has room for a packet, and loses those that the kernel here joins into a larger one.
    _ip(*in_it, "link", "set", "ctl0", "gso_max_segs", "1", "up")
    _ip(*in_it, "addr", "add", f"{CONTROL_HOST}/24", "dev", "ctl0")


def _boot(run: Path) -> subprocess.Popen[bytes]:
    first = ROOT / "init"
    if not first.exists() or first.read_text() != _FIRST:
        first.write_text(_FIRST)
        first.chmod(0o755)
    settings = {
        "share": GUEST_FILES,
        "ip4": GUEST4,
        "ip6": GUEST6,
        "control": CONTROL,
        "mtu": MTU,
        "host4": HOST4,
        "host6": HOST6,
        "host_mac": HOST_MAC,
    }
    words = [
        *("mem=512M", "quiet", "panic=-1", "con=null", "con0=null,fd:1"),
        *(f"uml_dir={run}", f"umid={run.name}"),
        *("root=none", "rootfstype=hostfs", f"rootflags={ROOT}", "ro", "init=/init"),
        f"vec0:transport=tap,ifname={TAP},depth=64,mac={GUEST_MAC},mtu={MTU}",
        "vec1:transport=tap,ifname=ctl0,depth=64,mac=52:54:00:77:01:02",
        *(f"rocemu.{name}={value}" for name, value in settings.items()),
    ]
    with (run / "console").open("wb") as console:
        guest = subprocess.Popen(
            [KERNEL, *words],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
        )
    (run / "pid").write_text(str(guest.pid))
    return guest


def _await_agent(guest: subprocess.Popen[bytes], run: Path) -> None:
    end = time.monotonic() + _BOOT_SECONDS
    while True:
        with suppress(OSError):
            socket.create_connection((CONTROL, AGENT_PORT), timeout=1).close()
            return
        if guest.poll() is not None or time.monotonic() > end:
            last = (run / "console").read_text(errors="replace").splitlines()[-8:]
            raise GuestError("\n".join(["the guest does not answer; its console:", *last]))
        time.sleep(0.05)


@contextmanager
def guest() -> Iterator[None]:
    """A guest that takes commands; meanwhile this thread is in the namespace with it."""
    sweep()
    name = f"{_PREFIX}{os.getpid()}"
    run = _RUN / name
    run.mkdir(parents=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    process = None
    try:
        _make_network(name)
        _enter(Path("/run/netns") / name)
        process = _boot(run)
        _await_agent(process, run)
        yield
    finally:
        _enter(Path(f"/proc/self/fd/{home}"))
        os.close(home)
        _take_down(name)
        if process is not None:
            process.wait()


def sweep() -> None:
    """Take down what runs left that were killed."""
    left = {
        path.name for folder in (_RUN, Path("/run/netns")) for path in folder.glob(f"{_PREFIX}*")
    }
    for name in left:
        if not Path(f"/proc/{name.removeprefix(_PREFIX)}").exists():
            _take_down(name)


def _take_down(name: str) -> None:
    run = _RUN / name
    with suppress(OSError, ValueError):
        _kill(int((run / "pid").read_text()), name)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    shutil.rmtree(run, ignore_errors=True)


def _kill(pid: int, name: str) -> None:
    """End the guest and its helpers, which are one process group; nothing else by that number."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    if not re.search(rf"umid={name}\b".encode(), command):
        return
    os.killpg(pid, signal.SIGKILL)
