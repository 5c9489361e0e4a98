"""Lanes as the audit has them: one sender, receiver, UDP source port and destination QP."""

from dataclasses import dataclass, field
from ipaddress import ip_address

from rocemu.audit.exchange import Exchange

__all__ = ["Key", "PortLane", "where"]

Key = tuple[bytes, bytes, int]
"""Sender, receiver, destination QP."""


@dataclass(slots=True, eq=False)
class PortLane:
    """Packets from one address and UDP port to one queue pair."""

    source: bytes
    destination: bytes
    port: int
    qpn: int
    requests: Exchange | None = None
    answers: Exchange | None = None
    orphans: list[int] = field(default_factory=list)
    """The first and the last answer that no exchange has a request for."""
    orphan_count: int = 0
    tried: int = -1
    """How many exchanges there were when none was found."""
    cnps: int = 0
    last_cnp: int = 0
    cnp_number: int = 0
    closest_cnps: int = 1 << 62
    cnp_numbers: tuple[int, int] = (0, 0)

    def note_cnp(self, number: int, time: int) -> None:
        if self.cnps and time - self.last_cnp < self.closest_cnps:
            self.closest_cnps = time - self.last_cnp
            self.cnp_numbers = self.cnp_number, number
        self.cnps += 1
        self.last_cnp, self.cnp_number = time, number

    @property
    def key(self) -> Key:
        return self.source, self.destination, self.qpn

    def __str__(self) -> str:
        return where(self.key)


def where(key: Key) -> str:
    return f"{ip_address(key[0])} -> {ip_address(key[1])} QP {key[2]:#x}"
