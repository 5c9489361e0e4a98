"""Regions as the command line and TOML files name them: ``rw:64K:local_write,remote_write``."""

import re
from dataclasses import dataclass
from pathlib import Path

from rocemu.net import RemoteRegion
from rocemu.protection import (
    MemoryRegion,
    ProtectionDomain,
    RegistrationError,
    format_access,
    parse_access,
)
from rocemu.transport import Device
from rocemu.verbs import AccessFlags

__all__ = ["RegionSpec", "parse_int", "parse_size", "region_state"]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"(\d+)([kmg]?)i?b?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,30}")
_PLACE = re.compile(r"@(0x[0-9a-fA-F]+)(?:/(0x[0-9a-fA-F]+))?$")
_FORM = "NAME:SIZE:FLAGS[:FILE][@VA[/RKEY]]"
#: A region lives in this process's memory.
_LARGEST = 1 << 32


def parse_int(text: str, what: str, most: int) -> int:
    """A decimal or 0x number from 0 to ``most``; raises ValueError with a sentence."""
    try:
        value = int(text, 0)
    except ValueError:
        raise ValueError(
            f"{what} {text!r} is no number (decimal, or hexadecimal with 0x)"
        ) from None
    if not 0 <= value <= most:
        raise ValueError(f"{what} {text} is not in 0 to {most:#x}")
    return value


def parse_size(text: str, most: int = _LARGEST) -> int:
    """Bytes of ``4096``, ``64K``, ``1M``, ``2G`` (powers of 1024); raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"size {text!r}: a number of bytes, with K, M or G if you like")
    size = int(match[1]) * _UNITS[match[2].lower()]
    if size > most:
        raise ValueError(f"size {text}: allowed are 0 to {most}")
    return size


@dataclass(frozen=True, slots=True)
class RegionSpec:
    """A region to register: ``NAME:SIZE:FLAGS[:FILE][@VA[/RKEY]]``.

    FILE gives the initial content (no more than SIZE bytes of it); VA and RKEY fix what is
    otherwise chosen, for reproducible exchanges.
    """

    name: str
    size: int
    access: AccessFlags
    file: Path | None = None
    va: int | None = None
    rkey: int | None = None

    @classmethod
    def parse(cls, text: str) -> "RegionSpec":
        """Read a specification; raises ValueError with a sentence that names the part."""
        place = _PLACE.search(text)
        parts = (text[: place.start()] if place else text).split(":", 3)
        if len(parts) < 3:
            raise ValueError(f"{text!r}: the form is {_FORM}, as in rw:64K:local_write,remote_read")
        name, size, flags = parts[:3]
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"region name {name!r}: letters, digits and ._- up to 31, letter first"
            )
        return cls(
            name,
            parse_size(size),
            parse_access(flags),
            Path(parts[3]) if len(parts) == 4 and parts[3] else None,
            parse_int(place[1], "address", (1 << 64) - 1) if place else None,
            parse_int(place[2], "R_Key", 0xFFFFFFFF) if place and place[2] else None,
        )

    def register(self, device: Device, pd: ProtectionDomain) -> MemoryRegion:
        """Make the region; raises RegistrationError, also for a FILE that cannot be read."""
        try:
            memory = bytearray(self.size)
            if self.file is not None:
                with self.file.open("rb") as file:
                    content = file.read(self.size)
                memory[: len(content)] = content
        except MemoryError:
            raise RegistrationError(
                f"region {self.name}: no memory for {self.size} bytes"
            ) from None
        except OSError as error:
            what = f"region {self.name}: {self.file}: {error.strerror}"
            raise RegistrationError(what) from None
        return device.reg_mr(pd, memory, self.access, va=self.va, name=self.name, rkey=self.rkey)


def region_state(mr: MemoryRegion | RemoteRegion) -> dict[str, object]:
    """A region as JSON objects show it."""
    return {
        "name": mr.name,
        "rkey": mr.rkey,
        "va": mr.va,
        "length": mr.length,
        "access": format_access(mr.access),
    }
