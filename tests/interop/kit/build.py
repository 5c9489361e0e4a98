"""Builds the guest that the tests run against: a Linux kernel with rdma_rxe, and its root folder.

    python -m tests.interop.kit.build

The kernel is Debian's source compiled as User Mode Linux: one ordinary program, no virtual machine
monitor, and it boots in half a second.  The root folder is a minimal Debian with the RDMA tools and
pyverbs.  Both stay in the cache folder (``$XDG_CACHE_HOME/rocemu-interop``), each beside a record
of what it was made from; what is there and made from the same is not built again.  Wants root and
apt, on Debian 12.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rocemu-interop"
KERNEL = CACHE / "linux"
ROOT = CACHE / "root"

SOURCE = "linux-source-6.12"
SUITE = "bookworm"
GUEST_PACKAGES = (
    "python3,python3-pyverbs,ibverbs-utils,ibverbs-providers,rdmacm-utils,perftest,"
    "iproute2,iputils-ping,kmod,busybox-static"
)
HOST_COMMANDS = {  # command: its package
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "gcc": "gcc",
    "make": "make",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "xz": "xz-utils",
}

EDITS = (
    # rxe works in a queue of the kernel, and a program that polls gives way to it only at a tick;
    # User Mode Linux has 100 of them a second.
    ("/^config HZ$/,/default/s/default 100/default 1000/", "arch/um/Kconfig"),
    # Room for the processor's state, which is set as a whole or not at all: with AMX it is 11008
    # bytes (ptrace: EFAULT otherwise, and the first process dies).
    ("s/HOST_FP_SIZE, 2696/HOST_FP_SIZE, 12288/", "arch/x86/um/user-offsets.c"),
)

# Big, and nothing here looks at them.
UNWANTED = ("*/drivers/gpu/drm/amd/include/*", "*/tools/testing/*")


class BuildError(Exception):
    """A step failed; the sentence says which, and where its output is."""


def say(text: str) -> None:
    sys.stderr.write(f"interop: {text}\n")
    sys.stderr.flush()


@contextmanager
def step(what: str) -> Iterator[None]:
    say(f"{what} ...")
    begin = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - begin:.0f} s")


def run(*argv: str | Path, log: str, cwd: Path = CACHE) -> None:
    """Run to the end, its output in ``CACHE/log``; BuildError with the last lines if it fails."""
    path = CACHE / log
    with path.open("ab") as output:
        done = subprocess.run(argv, cwd=cwd, stdout=output, stderr=output, check=False)
    if done.returncode:
        last = "\n".join(path.read_text(errors="replace").splitlines()[-5:])
        raise BuildError(f"{argv[0]} failed ({done.returncode}); {path} ends with\n{last}")


def host_packages() -> None:
    missing = [package for command, package in HOST_COMMANDS.items() if not shutil.which(command)]
    if not Path("/usr/include/sys/cdefs.h").exists() and not list(
        Path("/usr/include").glob("*/sys/cdefs.h")
    ):
        missing.append("libc6-dev")
    wait = ("-o", "DPkg::Lock::Timeout=600")
    with step(f"installing {' '.join(missing)}" if missing else "apt's lists"):
        run("apt-get", *wait, "update", "-q", log="apt.log")
        if missing:
            run(
                *("apt-get", *wait, "install", "-y", "--no-install-recommends", *missing),
                log="apt.log",
            )


def build_kernel(target: Path) -> None:
    work = CACHE / "source"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    with step(f"fetching and unpacking {SOURCE}"):
        run("apt-get", "download", SOURCE, log="kernel.log", cwd=work)
        unpack = (
            f"dpkg-deb --fsys-tarfile {SOURCE}_*.deb | tar -xO ./usr/src/{SOURCE}.tar.xz | tar -xJ "
        ) + " ".join(f"--exclude='{pattern}'" for pattern in UNWANTED)
        run("bash", "-o", "pipefail", "-c", unpack, log="kernel.log", cwd=work)
    tree = work / SOURCE
    for edit, path in EDITS:
        run("sed", "-i", edit, path, log="kernel.log", cwd=tree)
    with step("compiling the kernel (6 minutes of one core)"):
        config = f"KCONFIG_ALLCONFIG={HERE / 'linux.config'}"
        run("make", "ARCH=um", config, "allnoconfig", log="kernel.log", cwd=tree)
        run(
            *("make", "ARCH=um", f"-j{os.cpu_count()}", "linux"),
            log="kernel.log",
            cwd=tree,
        )
        run("strip", "-o", target, "linux", log="kernel.log", cwd=tree)
    shutil.rmtree(work)


def build_root(target: Path) -> None:
    with step(f"root folder: Debian {SUITE} with the RDMA tools"):
        shutil.rmtree(target, ignore_errors=True)
        run(
            *("debootstrap", "--variant=minbase", f"--include={GUEST_PACKAGES}"),
            *(SUITE, target, mirror()),
            log="root.log",
        )
        for spare in (
            "var/cache/apt/archives",
            "var/lib/apt/lists",
            "usr/share/doc",
            "usr/share/man",
        ):
            shutil.rmtree(target / spare, ignore_errors=True)
        (target / "share").mkdir()


def mirror() -> str:
    """The first Debian mirror that this machine's apt uses."""
    apt = Path("/etc/apt")
    for path in (apt / "sources.list.d/debian.sources", apt / "sources.list"):
        text = path.read_text() if path.exists() else ""
        if found := re.search(r"^(?:URIs:|deb(?: \[.*?\])?) *(\S+/debian/?)(?:\s|$)", text, re.M):
            return found[1]
    raise SystemExit("apt names no Debian mirror here: the root folder cannot be built")


def recipe(*parts: str | bytes) -> str:
    """What a product was made from, as a digest."""
    joined = b"\0".join(part.encode() if isinstance(part, str) else part for part in parts)
    return hashlib.sha256(joined).hexdigest()


PARTS: tuple[tuple[Path, str, Callable[[Path], None]], ...] = (
    (ROOT, recipe(SUITE, GUEST_PACKAGES), build_root),
    (KERNEL, recipe(SOURCE, *map(str, EDITS), (HERE / "linux.config").read_bytes()), build_kernel),
)


def record(product: Path) -> Path:
    return product.with_suffix(".made-from")


def stale() -> list[tuple[Path, str, Callable[[Path], None]]]:
    """The parts that are missing, or made from something else."""
    return [
        (product, digest, build)
        for product, digest, build in PARTS
        if not product.exists()
        or not record(product).exists()
        or record(product).read_text() != digest
    ]


def main() -> None:
    if os.geteuid():
        raise BuildError("root is needed (debootstrap, network namespaces)")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:  # another run may be building the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        if todo := stale():
            host_packages()
        for product, digest, build in todo:
            build(product)
            record(product).write_text(digest)
    say(f"the kernel peer is in {CACHE}")


if __name__ == "__main__":
    try:
        main()
    except BuildError as error:
        sys.exit(f"interop: {error}")
