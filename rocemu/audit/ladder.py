"""The sequence ladder of a conversation: two lifelines, packets as arrows, notes beside them."""

from dataclasses import dataclass

from rich.text import Text

__all__ = ["Arrow", "Ladder", "Note"]


@dataclass(frozen=True, slots=True)
class Arrow:
    """A packet from the left end to the right one, or back."""

    to_right: bool
    label: str
    bad: bool = False
    """A NAK: shown in red."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened at one end."""

    right: bool
    label: str
    bad: bool = False


class Ladder:
    """Renders rows of a ladder that is ``width`` columns wide."""

    def __init__(self, width: int = 100) -> None:
        self._inner = width - 4

    def header(self, left: str, right: str) -> Text:
        """The names of both ends above their lifelines."""
        gap = max(1, self._inner + 4 - len(left) - len(right))
        return Text(left + " " * gap + right, style="bold")

    def row(self, entry: Arrow | Note) -> Text:
        """One line of the ladder; a label that is too long is cut."""
        if isinstance(entry, Arrow):
            body = self._arrow(entry)
            style = "bold red" if entry.bad else "cyan"
        else:
            body = self._note(entry)
            style = "red" if entry.bad else "green"
        return Text.assemble(" │", (body, style), "│")

    def _arrow(self, arrow: Arrow) -> str:
        label = self._cut(arrow.label, 8)
        shaft = self._inner - len(label) - 6
        if arrow.to_right:
            return f"── {label} {'─' * shaft}─▶"
        return f"◀─{'─' * shaft} {label} ──"

    def _note(self, note: Note) -> str:
        label = self._cut(note.label, 4)
        if note.right:
            return f"{label} ● ".rjust(self._inner)
        return f" ● {label}".ljust(self._inner)

    def _cut(self, label: str, around: int) -> str:
        room = self._inner - around
        return label if len(label) <= room else label[: room - 1] + "…"
