"""How ``rocemu audit`` shows findings, summaries and explained ICRCs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from rocemu.audit.auditor import Summary
from rocemu.audit.findings import KINDS, Finding, Severity
from rocemu.audit.icrc_explain import Explanation

__all__ = ["JsonFindings", "TextFindings", "explanation_json", "explanation_text"]

_SHOWN = 20  # of each code, in text
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


class JsonFindings:
    """One object a line: findings as they come, the summary at the end."""

    def add(self, finding: Finding) -> None:
        print(json.dumps(finding.to_json()))

    def finish(self, summary: Summary) -> None:
        print(json.dumps({"summary": summary.to_json()}))


class TextFindings:
    """Two lines a finding, the first twenty of each code; then the summary."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._shown: Counter[str] = Counter()

    def add(self, finding: Finding) -> None:
        self._shown[finding.code] += 1
        if self._shown[finding.code] > _SHOWN:
            return
        first = finding.packets[:1]
        numbers = "-".join(str(number) for number in (*first, *finding.packets[1:][-1:]))
        if len(finding.packets) < 4:
            numbers = ",".join(map(str, finding.packets))
        self._console.print(
            Text.assemble(
                f"{numbers or '-'}: ",
                (finding.severity.value, _STYLES[finding.severity]),
                f" {finding.code}: {finding.text}",
            )
        )
        where = f"{finding.where}  " if finding.where else ""
        self._console.print(f"    {where}{finding.kind.clause}", style="dim", markup=False)

    def finish(self, summary: Summary) -> None:
        for code, count in self._shown.items():
            if count > _SHOWN:
                print(f"{count - _SHOWN} more of {code}: --json has them all")
        if self._shown:
            print()
        for line in _summary_lines(summary):
            print(line)
        for code in KINDS:
            if self._shown[code]:
                kind = KINDS[code]
                print(f"  {self._shown[code]:>7} {kind.severity.value:<7} {code}: {kind.meaning}")


def _summary_lines(s: Summary) -> Iterator[str]:
    yield (
        f"{s.packets} packets, {s.roce} of them RoCE; ICRC: {s.icrc_right} right, "
        f"{s.icrc_wrong} wrong, {s.icrc_unchecked} not checked"
    )
    marks = (
        f"; {s.congestion_marks} marked CE, {s.cnps} CNPs" if s.congestion_marks or s.cnps else ""
    )
    yield f"{s.exchanges} queue pairs with requests{marks}"
    yield f"{s.errors} errors, {s.warnings} warnings, {s.notes} notes"


# an ICRC explained


def explanation_json(number: int, e: Explanation) -> str:
    return json.dumps(
        {
            "packet": number,
            "sections": [
                {"name": name, "bytes": data.hex(), "masked": sorted(masked)}
                for (name, data), masked in zip(e.sections, e.masked, strict=True)
            ],
            "crc": f"{e.crc:#010x}",
            "computed": e.computed.hex(),
            "stored": e.stored.hex(),
            "right": e.right,
            "causes": [{"name": cause.name, "text": cause.text} for cause in e.causes],
        }
    )


def explanation_text(number: int, e: Explanation) -> Iterator[str]:
    """The stream of the CRC with masked bytes in brackets, the CRC, and what came of it."""
    yield f"packet {number}: what goes into the CRC, masked bytes in brackets"
    width = max(len(name) for name, _ in e.sections)
    for (name, data), masked in zip(e.sections, e.masked, strict=True):
        for at in range(0, len(data), 16):
            label = "" if at else name
            row = "".join(
                f"[{data[k]:02x}]" if k in masked else f" {data[k]:02x} "
                for k in range(at, min(at + 16, len(data)))
            )
            yield f"  {label:<{width}}  {row}".rstrip()
    yield f"CRC-32    {e.crc:#010x}"
    yield f"computed  {e.computed.hex(' ')}   (least significant byte first)"
    yield f"stored    {e.stored.hex(' ')}   {'the same' if e.right else 'another one'}"
    if e.right:
        return
    if not e.causes:
        yield "no usual mistake, and no change of a single byte, gives what is stored"
    for cause in e.causes:
        yield f"{cause.name}: {cause.text}"
