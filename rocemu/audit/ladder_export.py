"""Ladders for documents: SVG, and Mermaid's text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from rocemu.audit.ladder import Arrow, Look, Note
from rocemu.audit.sequence import Row
from rocemu.audit.sequence import Sequence as Steps

__all__ = ["mermaid", "svg"]

_WIDTH, _LEFT, _RIGHT = 1000, 170, 960
_ROW, _TOP, _GAP = 26, 64, 30
_CHARACTER = 6.7  # pixels of one at 11 px, monospaced

_COLOURS = {
    Look.REQUEST: "#0b6e8f",
    Look.ANSWER: "#2e7d32",
    Look.CM: "#3949ab",
    Look.RETRY: "#b26a00",
    Look.RNR: "#8e24aa",
    Look.NAK: "#c62828",
    Look.BROKEN: "#c62828",
}
_GOOD, _BAD = "#2e7d32", "#c62828"

_STYLE = (
    "text{font:11px ui-monospace,'DejaVu Sans Mono',Consolas,monospace;fill:#222}"
    ".title{font-size:13px;font-weight:bold}.dim{fill:#777}.life{stroke:#bbb;stroke-width:2}"
)


def svg(conversations: Sequence[Steps]) -> str:
    """One drawing, a ladder below the other; colours as in the terminal."""
    heights = [_TOP + _ROW * len(steps.rows) + _GAP for steps in conversations]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{sum(heights)}" '
        f'viewBox="0 0 {_WIDTH} {sum(heights)}" xml:space="preserve">',
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        *_markers(),
    ]
    top = 0
    for steps, height in zip(conversations, heights, strict=True):
        parts += _ladder(steps, top, height)
        top += height
    return "\n".join([*parts, "</svg>", ""])


def _markers() -> Iterator[str]:
    yield "<defs>"
    for look, colour in _COLOURS.items():
        shape = "M1,1L9,9M9,1L1,9" if look is Look.BROKEN else "M0,0L10,5L0,10z"
        fill = "none" if look is Look.BROKEN else colour
        yield (
            f'<marker id="{look}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
            f'markerHeight="8" orient="auto"><path d="{shape}" fill="{fill}" '
            f'stroke="{colour}"/></marker>'
        )
    yield "</defs>"


def _text(x: float, y: float, text: str, *, anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def _ladder(steps: Steps, top: int, height: int) -> Iterator[str]:
    conversation = steps.conversation
    title = f"conversation {conversation.number}, paired by {conversation.pairing.value}"
    yield _text(12, top + 22, title, extra=' class="dim"')
    for x, end in zip((_LEFT, _RIGHT), conversation.ends, strict=True):
        anchor = "start" if x == _LEFT else "end"
        yield _text(x, top + 42, str(end), anchor=anchor, extra=' class="title"')
        yield (f'<line class="life" x1="{x}" y1="{top + 50}" x2="{x}" y2="{top + height - _GAP}"/>')
    last = 0
    for index, row in enumerate(steps.rows):
        y = top + _TOP + _ROW * index
        if row.number != last:
            yield _text(12, y + 4, f"{row.number:>5}  {row.time / 1e9:.6f}", extra=' class="dim"')
        last = row.number
        yield _arrow(row.entry, y) if isinstance(row.entry, Arrow) else _note(row.entry, y)


def _arrow(arrow: Arrow, y: int) -> str:
    start, end = (_LEFT, _RIGHT) if arrow.to_right else (_RIGHT, _LEFT)
    colour = _COLOURS[arrow.look]
    dash = ' stroke-dasharray="6 3"' if arrow.look is Look.RETRY else ""
    line = (
        f'<line x1="{start}" y1="{y + 4}" x2="{end}" y2="{y + 4}" stroke="{colour}" '
        f'stroke-width="1.5"{dash} marker-end="url(#{arrow.look})"/>'
    )
    label = _cut(arrow.label, _RIGHT - _LEFT - 30)
    middle = (_LEFT + _RIGHT) / 2
    return line + _text(middle, y - 1, label, anchor="middle", extra=f' style="fill:{colour}"')


def _note(note: Note, y: int) -> str:
    x, colour = _RIGHT if note.right else _LEFT, _BAD if note.bad else _GOOD
    offset, anchor = (-12, "end") if note.right else (12, "start")
    label = _cut(note.label, _RIGHT - _LEFT - 30)
    return f'<circle cx="{x}" cy="{y}" r="4.5" fill="{colour}"/>' + _text(
        x + offset, y + 4, label, anchor=anchor, extra=f' style="fill:{colour}"'
    )


def _cut(label: str, width: int) -> str:
    room = int(width / _CHARACTER)
    return label if len(label) <= room else label[: room - 1] + "…"


#: Mermaid's arrows; a cross at the end is a packet that nothing comes of.
_MERMAID = {Look.BROKEN: "-x", Look.ANSWER: "-->>", Look.NAK: "-->>", Look.RNR: "-->>"}


def mermaid(conversations: Sequence[Steps]) -> str:
    """One sequence diagram; several conversations are boxes beside each other, in one time."""
    lines = ["sequenceDiagram"]
    rows: list[tuple[Row, int]] = []
    for steps in conversations:
        number = steps.conversation.number
        lines.append(f"  box conversation {number}")
        for side, end in enumerate(steps.conversation.ends):
            lines.append(f"    participant {'LR'[side]}{number} as {_plain(str(end))}")
        lines.append("  end")
        rows += [(row, number) for row in steps.rows]
    for row, box in sorted(rows, key=lambda pair: pair[0].number):
        entry = row.entry
        if isinstance(entry, Arrow):
            sides = f"L{box} R{box}" if entry.to_right else f"R{box} L{box}"
            ends = sides.replace(" ", _MERMAID.get(entry.look, "->>"))
            lines.append(f"  {ends}: {row.number}  {_plain(entry.label)}")
        else:
            lines.append(f"  Note over {'LR'[entry.right]}{box}: {_plain(entry.label)}")
    return "\n".join([*lines, ""])


def _plain(text: str) -> str:
    """Text without what Mermaid reads as its own."""
    return text.translate({ord("#"): "#35;", ord(";"): "#59;"})
