"""The sequence ladder of a conversation: two lifelines, packets as arrows, notes beside them."""

from dataclasses import dataclass
from enum import StrEnum

from rich.text import Text

__all__ = ["STYLES", "Arrow", "Ladder", "Look", "Note"]


class Look(StrEnum):
    """What an arrow is, and so its colour."""

    REQUEST = "request"
    ANSWER = "answer"
    CM = "cm"
    RETRY = "retry"
    RNR = "rnr"
    NAK = "nak"
    BROKEN = "broken"
    """Malformed, or its ICRC is wrong: it arrives and nothing comes of it."""


#: Colours in the terminal.
STYLES = {
    Look.REQUEST: "cyan",
    Look.ANSWER: "green",
    Look.CM: "blue",
    Look.RETRY: "yellow",
    Look.RNR: "magenta",
    Look.NAK: "bold red",
    Look.BROKEN: "red reverse",
}


@dataclass(frozen=True, slots=True)
class Arrow:
    """A packet from the left end to the right one, or back."""

    to_right: bool
    label: str
    look: Look = Look.REQUEST


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened at one end."""

    right: bool
    label: str
    bad: bool = False


class Ladder:
    """Renders rows of a ladder that is ``width`` columns wide, its margin included."""

    def __init__(self, width: int = 100, margin: int = 0) -> None:
        self._margin = margin
        self._inner = width - margin - 4

    def header(self, left: str, right: str) -> Text:
        """The names of both ends above their lifelines."""
        gap = max(1, self._inner + 4 - len(left) - len(right))
        return Text(" " * self._margin + left + " " * gap + right, style="bold")

    def row(self, entry: Arrow | Note, margin: str = "") -> Text:
        """One line of the ladder; a label that is too long is cut."""
        if isinstance(entry, Arrow):
            body, style = self._arrow(entry), STYLES[entry.look]
        else:
            body, style = self._note(entry), "red" if entry.bad else "green"
        left = margin[: self._margin].ljust(self._margin)
        return Text.assemble((left, "dim"), " │", (body, style), "│")

    def _arrow(self, arrow: Arrow) -> str:
        label = self._cut(arrow.label, 8)
        shaft = self._inner - len(label) - 6
        head, tail = ("✕", "✕") if arrow.look is Look.BROKEN else ("▶", "◀")
        if arrow.to_right:
            return f"── {label} {'─' * shaft}─{head}"
        return f"{tail}─{'─' * shaft} {label} ──"

    def _note(self, note: Note) -> str:
        label = self._cut(note.label, 4)
        if note.right:
            return f"{label} ● ".rjust(self._inner)
        return f" ● {label}".ljust(self._inner)

    def _cut(self, label: str, around: int) -> str:
        room = max(1, self._inner - around)
        return label if len(label) <= room else label[: room - 1] + "…"
