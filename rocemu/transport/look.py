"""What our packets look like where the specification leaves a choice and peers differ."""

from dataclasses import dataclass

from rocemu.wire import BTH

__all__ = ["PacketLook"]

_FULL_MEMBER = 0x8000


@dataclass(frozen=True, slots=True)
class PacketLook:
    """IP and BTH fields of everything that a device sends."""

    tos: int = 0
    """DSCP and ECN (IPv6 traffic class), where the address vector says nothing else."""
    ttl: int = 64
    migreq: bool = False
    """Adapters send MigReq 1 (state Migrated), Soft-RoCE 0; receivers take either."""
    pkey: int = 0xFFFF
    """The default partition; bit 15 is full membership."""

    def bth(self, opcode: int, dest_qp: int, psn: int, *, ackreq: bool = False) -> BTH:
        """A BTH in this look."""
        return BTH(opcode, dest_qp, psn, ackreq=ackreq, migreq=self.migreq, pkey=self.pkey)

    def takes(self, pkey: int) -> bool:
        """Whether a packet's P_Key matches ours: same partition, not both limited members."""
        same = pkey & 0x7FFF == self.pkey & 0x7FFF != 0
        return same and bool((pkey | self.pkey) & _FULL_MEMBER)
