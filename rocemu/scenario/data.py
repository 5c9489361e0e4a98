"""Words of the script, and bytes in them."""

import re
import shlex

from rocemu.daemon.operations import DATA_FORMS, fill

__all__ = ["spell_data", "split"]

_SHOWN = 32


def split(text: str) -> list[str]:
    """The words of a line, quotes taken off; raises ValueError for a quotation without an end."""
    return shlex.split(text) if re.search(r"[\"'\\]", text) else text.split()  # shlex is slow


def spell_data(data: bytes) -> str:
    """Data as :func:`~rocemu.daemon.operations.parse_data` takes it, long data cut with dots."""
    if len(data) > 8 and data == fill(len(data)):
        return f"fill:{len(data)}"
    if len(data) > 8 and not any(data):
        return f"zeros:{len(data)}"
    shown, more = data[:_SHOWN], "..." if len(data) > _SHOWN else ""
    text = shown.decode("ascii", "replace")
    plain = text.isascii() and text.isprintable() and '"' not in text
    if plain and text.partition(":")[0] not in DATA_FORMS:
        return f'"{text}{more}"'
    return f"hex:{shown.hex()}{more}"
