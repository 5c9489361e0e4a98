"""What a capture says: packets in words, and the ladder between two ends."""

from rocemu.audit.describe import describe_packet
from rocemu.audit.ladder import Arrow, Ladder, Look, Note

__all__ = ["Arrow", "Ladder", "Look", "Note", "describe_packet"]
