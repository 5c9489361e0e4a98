"""Protection domains, memory regions, keys, and the one check that every access passes.

A region becomes reachable by :meth:`ProtectionTable.register`, which gives it an lkey and an rkey;
:meth:`ProtectionTable.authorize` answers an :class:`Access` with a :class:`Verdict` that names
every cause of a refusal.  No I/O, no clock, and nothing here knows what a packet is.
"""

from rocemu.protection.access import SUPPORTED_ACCESS, format_access, parse_access
from rocemu.protection.cache import KeyCache
from rocemu.protection.check import Access, Cause, Verdict, check
from rocemu.protection.entry import EntryState, EntryType, KeyKind, MPTEntry
from rocemu.protection.keys import KeyGenerator, OsKeys, SeededKeys, key_index, key_variant
from rocemu.protection.mpt import ProtectionTable
from rocemu.protection.mr import (
    Buffer,
    FastRegion,
    MemoryRegion,
    RegionInUseError,
    RegistrationError,
)
from rocemu.protection.mw import BindError, BindInfo, MemoryWindow
from rocemu.protection.pd import PDInUseError, ProtectionDomain

__all__ = [
    "SUPPORTED_ACCESS",
    "Access",
    "BindError",
    "BindInfo",
    "Buffer",
    "Cause",
    "EntryState",
    "EntryType",
    "FastRegion",
    "KeyCache",
    "KeyGenerator",
    "KeyKind",
    "MPTEntry",
    "MemoryRegion",
    "MemoryWindow",
    "OsKeys",
    "PDInUseError",
    "ProtectionDomain",
    "ProtectionTable",
    "RegionInUseError",
    "RegistrationError",
    "SeededKeys",
    "Verdict",
    "check",
    "format_access",
    "key_index",
    "key_variant",
    "parse_access",
]
