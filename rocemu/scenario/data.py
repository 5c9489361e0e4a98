"""Bytes in the script's words."""

from rocemu.daemon.regions import parse_int, parse_size

__all__ = ["fill", "parse_data", "spell_data"]

_SHOWN = 32
_LONGEST = 1 << 26


def fill(count: int) -> bytes:
    """Bytes that differ from place to place, also across path MTUs."""
    return bytes((i + (i >> 8)) % 251 for i in range(count))


def parse_data(word: str) -> bytes:
    """``text``, ``hex:0011ff``, ``zeros:64``, ``fill:1024`` (:func:`fill`), ``u64:7`` (8 bytes in
    host order, as atomics work on); raises ValueError."""
    form, colon, value = word.partition(":")
    if not colon or form not in ("hex", "zeros", "fill", "u64"):
        return word.encode()
    if form == "hex":
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise ValueError(f"{word!r}: pairs of hexadecimal digits follow hex:") from None
    if form == "u64":
        return parse_int(value, "number", (1 << 64) - 1).to_bytes(8, "little")
    size = parse_size(value, most=_LONGEST)
    return bytes(size) if form == "zeros" else fill(size)


def spell_data(data: bytes) -> str:
    """Data as :func:`parse_data` takes it, long data cut with dots."""
    if len(data) > 8 and data == fill(len(data)):
        return f"fill:{len(data)}"
    if len(data) > 8 and not any(data):
        return f"zeros:{len(data)}"
    shown, more = data[:_SHOWN], "..." if len(data) > _SHOWN else ""
    text = shown.decode("ascii", "replace")
    if text.isascii() and text.isprintable() and '"' not in text:
        return f'"{text}{more}"'
    return f"hex:{shown.hex()}{more}"
