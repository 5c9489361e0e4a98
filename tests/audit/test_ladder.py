"""Ladders: what follows from packets at each end, in the terminal, as SVG and as Mermaid."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rocemu.audit.dissect import Dissector
from rocemu.audit.ladder import Arrow, Ladder, Look, Note
from rocemu.audit.ladder_export import mermaid, svg
from rocemu.audit.sequence import Sequence, Sequences
from rocemu.capture import CapturedPacket, Interface, LinkType, open_capture
from rocemu.wire import AETH, BTH, Flow, Op, Packet, build, seal
from tests.audit.made import V4, frames, golden_captures
from tests.wire.examples import GOLDEN

RAW = Interface(LinkType.RAW)


def sequences(stem: str, limit: int = 1000) -> list[Sequence]:
    (path,) = (path for path in golden_captures() if path.stem == stem)
    return of_file(path, limit)


def of_file(path: Path, limit: int = 1000) -> list[Sequence]:
    found = Sequences(limit)
    with open_capture(path) as reader:
        for packet in Dissector().dissect_all(reader):
            found.add(packet)
    return found.conversations()


def steps(sequence: Sequence) -> list[tuple[str, str]]:
    """(``>``, ``<`` with the look; ``L``, ``R`` for notes; the first words)."""
    rows = []
    for row in sequence.rows:
        if isinstance(row.entry, Arrow):
            way = ">" if row.entry.to_right else "<"
            rows.append((f"{way} {row.entry.look}", row.entry.label.split("  ")[0]))
        else:
            rows.append(("R" if row.entry.right else "L", row.entry.label))
    return rows


def test_a_refused_write_puts_both_ends_into_the_error_state() -> None:
    (sequence,) = sequences("write_badrkey")
    assert steps(sequence) == [
        ("> request", "RC RDMA WRITE Only"),
        ("< answer", "RC Acknowledge"),
        ("> request", "RC RDMA WRITE Only"),
        ("< nak", "RC Acknowledge"),
        ("R", "QP -> IBV_QPS_ERR"),
        ("L", "IBV_WC_REM_ACCESS_ERR, QP -> IBV_QPS_ERR"),
        ("> request", "RC RDMA WRITE Only"),
    ]


def test_rnr_and_sequence_naks_say_what_comes_next() -> None:
    (sequence,) = sequences("send_rnr_retry0")
    assert [step for step in steps(sequence) if step[0] in "LR"] == [
        ("L", "waits 0.64 ms, then sends PSN 257"),
        ("L", "goes back to PSN 257"),
    ]
    looks = [row.entry.look for row in sequence.rows if isinstance(row.entry, Arrow)]
    assert Look.RNR in looks
    assert Look.NAK in looks


def test_connecting_and_disconnecting_show_states() -> None:
    (sequence,) = sequences("rping")
    cm = [step for step in steps(sequence) if step[0] in ("L", "R") or step[0].endswith(" cm")]
    assert [way for way, _ in cm] == [
        "> cm", "< cm", "R", "> cm", "L", "R", "> cm", "L", "< cm", "R",
    ]  # fmt: skip
    assert cm[0][1].startswith("CM REQ port 7174")
    assert [text for way, text in cm if way in "LR"] == [
        "QP -> IBV_QPS_RTS",
        "QP -> IBV_QPS_RTS",
        "established",
        "QP -> IBV_QPS_ERR",
        "QP -> IBV_QPS_ERR",
    ]


def ladder_of(*packets: tuple[str, Packet], spoil: int = -1) -> Sequence:
    found, dissector = Sequences(), Dissector()
    for number, (way, packet) in enumerate(packets):
        source, target = ("10.0.0.1", "10.0.0.2")[:: 1 if way == ">" else -1]
        flow = Flow(source, target, V4.source_port)
        payload = bytearray(seal(build(packet), flow, 0))
        payload[-1] ^= number == spoil
        # the header of a golden packet, with our addresses and lengths
        head = bytearray(GOLDEN["ack" if way == "<" else "write"][:28])
        head[2:4] = (28 + len(payload)).to_bytes(2, "big")
        head[20:22] = flow.source_port.to_bytes(2, "big")
        head[24:26] = (8 + len(payload)).to_bytes(2, "big")
        data = bytes(head) + bytes(payload)
        found.add(dissector.dissect(CapturedPacket(0, data, len(data), RAW)))
    (sequence,) = found.conversations()
    return sequence


def send(psn: int) -> tuple[str, Packet]:
    return ">", Packet(BTH(Op.SEND_ONLY, 0x22, psn), b"four")


def reply(psn: int, syndrome: int = 0x1F) -> tuple[str, Packet]:
    return "<", Packet(BTH(Op.ACKNOWLEDGE, 0x11, psn), aeth=AETH(syndrome, 0))


def test_a_retry_and_a_broken_packet_are_told() -> None:
    sequence = ladder_of(send(5), send(5), send(6), reply(6), spoil=2)
    assert steps(sequence) == [
        ("> request", "RC SEND Only"),
        ("> retry", "RC SEND Only"),
        ("> broken", "RC SEND Only"),
        ("R", "dropped: ICRC wrong"),
        ("< answer", "RC Acknowledge"),
    ]
    assert sequence.rows[1].entry.label.endswith("(again)")


@pytest.mark.parametrize(
    ("code", "status"),
    [(1, "IBV_WC_REM_INV_REQ_ERR"), (2, "IBV_WC_REM_ACCESS_ERR"), (3, "IBV_WC_REM_OP_ERR")],
)
def test_each_fatal_nak_has_its_status(code: int, status: str) -> None:
    rows = steps(ladder_of(send(5), reply(5, 0x60 | code)))
    assert rows[-1] == ("L", f"{status}, QP -> IBV_QPS_ERR")


def test_a_reserved_nak_code_has_no_consequence() -> None:
    assert len(steps(ladder_of(send(5), reply(5, 0x7F)))) == 2


def test_what_is_kept_is_bounded_and_the_rest_counted() -> None:
    found, dissector = Sequences(limit=3), Dissector()
    for _ in range(5):
        data = GOLDEN["write"]
        found.add(dissector.dissect(CapturedPacket(0, data, len(data), RAW)))
    assert len(found.conversations()[0].rows) == 3
    assert found.left_out == 2


# in the terminal


def test_a_row_is_as_wide_as_it_was_asked_to_be_and_has_its_colour() -> None:
    ladder = Ladder(60, margin=8)
    arrow = Arrow(True, "RC SEND Only", Look.NAK)
    entries = [arrow, Arrow(False, "x" * 99, Look.RETRY), Note(True, "y" * 99), Note(False, "z")]
    rows = [ladder.row(entry, "   1") for entry in entries]
    assert {len(row.plain) for row in rows} == {59}
    assert all(row.plain.startswith("   1     │") for row in rows)
    styles = [str(row.spans[-1].style) for row in rows]
    assert styles == ["bold red", "yellow", "green", "green"]
    assert rows[0].plain.endswith("▶│")
    assert "◀" in rows[1].plain
    assert "…" in rows[1].plain
    assert rows[2].plain.endswith("● │")
    assert len(ladder.header("left", "right").plain) == 60


def test_a_broken_packet_ends_in_a_cross() -> None:
    assert Ladder(40).row(Arrow(True, "x", Look.BROKEN)).plain.endswith("✕│")


# as SVG


def test_svg_is_xml_with_every_packet_and_note(tmp_path: Path) -> None:
    several = [sequence for stem in ("rping", "send_rnr_retry0") for sequence in sequences(stem)]
    drawn = ElementTree.fromstring(svg(several))
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in drawn.iter(f"{space}text")]
    arrows = [element for element in drawn.iter(f"{space}line") if element.get("marker-end")]
    rows = [row for sequence in several for row in sequence.rows]
    assert len(arrows) == sum(isinstance(row.entry, Arrow) for row in rows)
    assert {row.entry.label for row in rows} <= set(texts)
    assert "10.77.0.2 QP 0x1e" in texts
    markers = {element.get("id") for element in drawn.iter(f"{space}marker")}
    assert {re.sub(r"url\(#(.*)\)", r"\1", arrow.get("marker-end", "")) for arrow in arrows} <= (
        markers
    )
    height = float(drawn.get("height", 0))
    assert all(float(arrow.get("y1", 0)) < height for arrow in arrows)
    entries = [row.entry for row in rows if isinstance(row.entry, Arrow)]
    for arrow, entry in zip(arrows, entries, strict=True):
        assert (float(arrow.get("x1", 0)) < float(arrow.get("x2", 0))) == entry.to_right
    by_row = [float(arrow.get("y1", 0)) for arrow in arrows]
    assert by_row == sorted(set(by_row))


def test_svg_escapes_what_a_capture_may_say() -> None:
    sequence = ladder_of(send(5))
    row = sequence.rows[0]
    sequence.rows.append(row._replace(entry=Note(True, "<&>\"' " + "long " * 99)))
    ElementTree.fromstring(svg([sequence]))


# as Mermaid


def test_mermaid_names_both_ends_and_has_a_line_a_step() -> None:
    (sequence,) = sequences("send_rnr_retry0")
    assert mermaid([sequence]).splitlines() == [
        "sequenceDiagram",
        "  box conversation 0",
        "    participant L0 as 10.77.0.2 QP 0x3e",
        "    participant R0 as 10.77.0.3 QP 0x3e",
        "  end",
        "  L0->>R0: 1  RC RDMA WRITE Only  PSN 256  VA=0xcfd000 R_Key=0x0000743a Len=8  (8 B)",
        "  R0-->>L0: 2  RC Acknowledge  PSN 256  ACK MSN=1",
        "  L0->>R0: 3  RC SEND Only  PSN 257  (64 B)",
        "  R0-->>L0: 4  RC Acknowledge  PSN 257  RNR NAK 0.64 ms MSN=1",
        "  Note over L0: waits 0.64 ms, then sends PSN 257",
        "  L0->>R0: 5  RC RDMA WRITE Only  PSN 258  VA=0xcfd000 R_Key=0x0000743a Len=8  (8 B)",
        "  R0-->>L0: 6  RC Acknowledge  PSN 257  NAK PSN Sequence Error MSN=1",
        "  Note over L0: goes back to PSN 257",
    ]


def test_mermaid_puts_several_conversations_into_one_time() -> None:
    path = next(path for path in golden_captures() if path.stem == "inject")
    several = of_file(path)
    assert len(several) > 20
    numbers = [int(found[1]) for found in re.finditer(r">>\w+: (\d+)  ", mermaid(several))]
    assert numbers == sorted(numbers)


def test_mermaid_escapes_its_own_signs() -> None:
    sequence = ladder_of(send(5))
    sequence.rows.append(sequence.rows[0]._replace(entry=Note(True, "a;b#c")))
    assert mermaid([sequence]).splitlines()[-1] == "  Note over R0: a#59;b#35;c"


def test_every_kind_of_packet_has_a_step() -> None:
    found, dissector = Sequences(), Dissector()
    made = frames()
    for frame in made:
        found.add(dissector.dissect(CapturedPacket(0, frame, len(frame), Interface())))
    numbers = {row.number for sequence in found.conversations() for row in sequence.rows}
    assert len(numbers) == len(made) - 2
    assert mermaid(found.conversations())
    ElementTree.fromstring(svg(found.conversations()))
