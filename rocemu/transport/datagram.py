"""What comes in from the network: a packet with the IP and UDP fields that matter."""

from dataclasses import dataclass

__all__ = ["Datagram"]


@dataclass(slots=True)
class Datagram:
    """One received UDP datagram to port 4791 whose ICRC was right."""

    payload: bytes
    """BTH to pad, the ICRC taken off."""
    source: str
    destination: str
    source_port: int = 0
    tos: int | None = None
    """DSCP and ECN, None where the socket does not show them; likewise below."""
    ttl: int | None = None
    ip_id: int | None = None
