"""Access flags as people write them: ``local_write,remote_read``."""

from rocemu.verbs import AccessFlags

__all__ = ["SUPPORTED_ACCESS", "format_access", "parse_access"]

_PREFIX = "IBV_ACCESS_"
_NONE = "none"

#: What a region may be registered with here: everything but on-demand paging and huge pages.
SUPPORTED_ACCESS = (
    AccessFlags.IBV_ACCESS_LOCAL_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_READ
    | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
    | AccessFlags.IBV_ACCESS_MW_BIND
    | AccessFlags.IBV_ACCESS_ZERO_BASED
    | AccessFlags.IBV_ACCESS_FLUSH_GLOBAL
    | AccessFlags.IBV_ACCESS_FLUSH_PERSISTENT
    | AccessFlags.IBV_ACCESS_RELAXED_ORDERING
)


def _short_name(flag: AccessFlags) -> str:
    return str(flag.name).removeprefix(_PREFIX).lower()


_BY_NAME = {_short_name(flag): flag for flag in AccessFlags if flag & SUPPORTED_ACCESS}


def parse_access(text: str) -> AccessFlags:
    """Flags from their names, separated by commas; ``none`` stands for no flag (local read only).

    Raises ValueError with a sentence that says what is allowed.
    """
    flags = AccessFlags(0)
    if text.strip().lower() == _NONE:
        return flags
    for item in text.split(","):
        name = item.strip().lower()
        if name not in _BY_NAME:
            allowed = ", ".join(_BY_NAME)
            raise ValueError(f"access flag {name!r}: allowed are {allowed}, or {_NONE} alone")
        flags |= _BY_NAME[name]
    return flags


def format_access(flags: AccessFlags) -> str:
    """The names of ``flags`` in the order of their values, ``none`` for 0, unknown bits in hex."""
    names = [_short_name(flag) for flag in AccessFlags if flag & flags]
    rest = int(flags) & ~sum(AccessFlags)
    if rest:
        names.append(f"{rest:#x}")
    return ",".join(names) or _NONE
