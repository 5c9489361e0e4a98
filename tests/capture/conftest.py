"""Golden packets, and tshark as a judge of what we wrote."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rocemu.wire.icrc import Flow

REQUESTER, RESPONDER = "10.0.0.1", "10.0.0.2"


@dataclass(frozen=True)
class Golden:
    """IPv4 header to ICRC, checked by CRCs that are not ours; ID 0, DF, TTL 64."""

    ip: bytes
    flow: Flow

    @property
    def payload(self) -> bytes:
        return self.ip[28:]


def _golden(text: str) -> Golden:
    ip = bytes.fromhex(text)
    to_responder = ip[15] == 1
    source, destination = (REQUESTER, RESPONDER) if to_responder else (RESPONDER, REQUESTER)
    return Golden(ip, Flow(source, destination, 0xC123 if to_responder else 0xC456))


GOLDEN = {
    "write": _golden(
        "4500004400004000401126a70a0000010a000002c12312b7003000000a30ffff00000011800003e8"
        "00007f0000001000001234560000000568656c6c6f0000006cf39ef5"
    ),
    "ack": _golden(
        "4500003000004000401126bb0a0000020a000001c45612b7001c00001100ffff00000012000003e8"
        "1f00000184607287"
    ),
    "nak": _golden(
        "4500003000004000401126bb0a0000020a000001c45612b7001c00001100ffff00000012000003e8"
        "6200000053282069"
    ),
    "read": _golden(
        "4500003c00004000401126af0a0000010a000002c12312b7002800000c00ffff00000011800003e9"
        "00007f00000010000012345600001000ca036557"
    ),
    "fetch_add": _golden(
        "4500004800004000401126a30a0000010a000002c12312b7003400001400ffff00000011800003ea"
        "00007f00000010080012345600000000000000010000000000000000f9ef56a1"
    ),
    "atomic_ack": _golden(
        "4500003800004000401126b30a0000020a000001c45612b7002400001200ffff00000012000003ea"
        "1f000002000000000000002945264cbe"
    ),
}


@pytest.fixture(params=list(GOLDEN))
def golden(request: pytest.FixtureRequest) -> Golden:
    """Each golden packet in turn."""
    return GOLDEN[request.param]


@pytest.fixture
def goldens() -> dict[str, Golden]:
    return GOLDEN


@pytest.fixture
def tshark() -> Callable[..., list[list[str]]]:
    """tshark's value of each field, a row a packet; header checksums are judged too."""

    def fields(path: Path, *names: str) -> list[list[str]]:
        command = ["tshark", "-n", "-r", str(path), "-T", "fields", "-E", "separator=|"]
        for check in ("ip", "udp"):
            command += ["-o", f"{check}.check_checksum:TRUE"]
        for name in names:
            command += ["-e", name]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return [line.split("|") for line in ran.stdout.splitlines()]

    return fields
