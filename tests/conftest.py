"""What tests may need from the machine, and how property tests draw their examples.

A test names its need by a marker (``needs_tshark``, ``needs_root``, ``needs_docker``,
``needs_network``).  Where the need is not met the test is skipped with the reason; with
``ROCEMU_CI=1`` it fails instead, so that a green run in CI means that everything was run.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

IN_CI = os.environ.get("ROCEMU_CI") == "1"

# A slow or busy machine is no failure.  Outside CI every run draws new examples, and a failing one
# is printed with the line that replays it; CI repeats the same ones, so that red means a change.
settings.register_profile(
    "rocemu",
    deadline=None,
    print_blob=True,
    derandomize=IN_CI,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rocemu")


def _tshark() -> str | None:
    return None if shutil.which("tshark") else "tshark is not installed"


def _root() -> str | None:
    if os.geteuid() != 0:
        return "root is needed (network namespaces)"
    missing = [tool for tool in ("ip", "tcpdump") if not shutil.which(tool)]
    return f"{' and '.join(missing)} not installed" if missing else None


def _docker() -> str | None:
    if not shutil.which("docker"):
        return "docker is not installed"
    for command, lack in (
        (["docker", "info"], "no Docker engine answers"),
        (["docker", "compose", "version"], "Docker has no Compose plugin"),
    ):
        if subprocess.run(command, capture_output=True, check=False, timeout=30).returncode:
            return lack
    return None


def _network() -> str | None:
    """Whether pip can fetch something small, by pip's own configuration (mirror, proxy, CA)."""
    with tempfile.TemporaryDirectory() as folder:
        fetched = subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "hatchling"],
            capture_output=True,
            check=False,
            timeout=120,
        )
    return "pip cannot reach the package index" if fetched.returncode else None


NEEDS: dict[str, Callable[[], str | None]] = {
    "needs_tshark": functools.cache(_tshark),
    "needs_root": functools.cache(_root),
    "needs_docker": functools.cache(_docker),
    "needs_network": functools.cache(_network),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, lack in NEEDS.items():
        if item.get_closest_marker(marker) and (reason := lack()):
            if IN_CI:
                pytest.fail(f"{marker}: {reason}, and in CI nothing is skipped", pytrace=False)
            pytest.skip(f"{marker}: {reason}")
