"""Every field that both know, on every capture that is kept and on one with everything in it."""

import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from rocemu.audit.dissect import Dissected, Dissector
from rocemu.audit.field_table import ALIASES, FIELDS
from rocemu.audit.fields import Field, Kind, Value, show, values_of
from rocemu.capture import Network, open_capture
from rocemu.wire import OPCODES
from tests.audit.made import frames, golden_captures, write_capture

pytestmark = pytest.mark.needs_tshark

NUMBERS = (Kind.DEC, Kind.HEX, Kind.BOOL)


class Difference(NamedTuple):
    field: str
    ours: list[Value]
    theirs: list[Value]
    packet: Dissected

    @property
    def opcode(self) -> int:
        return self.packet.bth.opcode if self.packet.bth else -1


def _is(*names: str) -> Callable[[Difference], bool]:
    return lambda diff: diff.field in names


def _doubled(diff: Difference) -> bool:
    return diff.field in ("infiniband.immdt", "infiniband.ieth") and diff.theirs == diff.ours * 2


def _opcode_unknown(diff: Difference) -> bool:
    unknown = diff.opcode not in OPCODES or diff.opcode & 0x1F in (0x1C, 0x1D)
    return diff.opcode != -1 and (unknown or diff.opcode == 0x81) and not diff.theirs


def _reliable_datagram(diff: Difference) -> bool:
    return diff.opcode >> 5 == 2 and diff.field.startswith("infiniband.")


def _xrc(diff: Difference) -> bool:
    return diff.opcode >> 5 == 5 and diff.field.startswith("infiniband.")


def _gid_by_network(diff: Difference) -> bool:
    of_gid = diff.field.startswith(("infiniband.cm.req.prim_localgid", "infiniband.cm.req.prim_re"))
    return of_gid and bool(diff.ours) != bool(diff.theirs)


#: What tshark 4.0 shows otherwise -> why.
EXPLAINED: dict[str, Callable[[Difference], bool]] = {
    "the REQ's flow label and packet rate are read from wrong bits": _is(
        *(f"infiniband.cm.req.{path}_{name}" for path in ("prim", "alt")
          for name in ("flowlabel", "pktrate"))
    ),
    "payload goes to sub-dissectors and is data.data": _is("infiniband.payload"),
    "ImmDt and IETH are added twice, as header and as value": _doubled,
    "FLUSH, ATOMIC WRITE, CNP 0x81 and reserved opcodes are not dissected behind the BTH":
        _opcode_unknown,
    "a packet that is too short for its headers has no ICRC": lambda diff: (
        diff.field == "infiniband.invariant.crc"
        and not diff.theirs
        and any("needs" in problem for problem in diff.packet.problems)
    ),
    "the headers of RD are looked for 8 bytes too late": _reliable_datagram,
    "XRC has no XRCETH": _xrc,
    "a GID is shown as IPv4 when the packet is IPv4, not when the GID is": _gid_by_network,
    "an interface without a name is called unknown": lambda diff: (
        diff.field == "frame.interface_name" and not diff.ours and diff.theirs == ["unknown"]
    ),
}  # fmt: skip


@cache
def known_to_tshark() -> frozenset[str]:
    said = subprocess.run(["tshark", "-G", "fields"], capture_output=True, text=True, check=True)
    rows = (line.split("\t") for line in said.stdout.splitlines())
    return frozenset(row[2] for row in rows if row[0] == "F")


def theirs(path: Path, names: list[str]) -> Iterator[list[str]]:
    command = ["tshark", "-n", "-r", str(path), "--disable-protocol", "rpcordma", "-T", "fields"]
    command += ["-E", "separator=/t", "-E", "occurrence=a", "-E", "aggregator=\x01"]
    for name in names:
        command += ["-e", name]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in said.stdout.splitlines():
        yield line.split("\t")


def read(field: Field, text: str) -> list[Value]:
    """What tshark printed, as our values."""
    parts = text.split("\x01") if text else []
    if field.kind in NUMBERS:
        words = {"True": "1", "False": "0"}
        return [int(words.get(part, part), 0) for part in parts]
    return [part.replace(":", "") if field.kind is Kind.BYTES else part for part in parts]


def ours(field: Field, packet: Dissected) -> list[Value]:
    values = values_of(field, packet)
    if field.kind in NUMBERS:
        return list(values)
    plain = field.kind is Kind.BYTES
    return [show(field, value).replace(":", "" if plain else ":") for value in values]


def differences(path: Path) -> tuple[list[Difference], int]:
    """All of them, and how many values were compared."""
    names = [name for name in (*FIELDS, *ALIASES) if name in known_to_tshark()]
    found, compared = [], 0
    with open_capture(path) as reader:
        packets = Dissector().dissect_all(reader)
        for row, packet in zip(theirs(path, names), packets, strict=True):
            for name, text in zip(names, row, strict=True):
                parts = [FIELDS[part] for part in ALIASES.get(name, (name,))]
                we = [value for field in parts for value in ours(field, packet)]
                they = read(parts[0], text)
                compared += len(they)
                if we != they:
                    found.append(Difference(name, we, they, packet))
    return found, compared


def unexplained(found: list[Difference], used: set[str]) -> list[tuple[str, int, object, object]]:
    left = []
    for diff in found:
        reasons = [why for why, explains in EXPLAINED.items() if explains(diff)]
        used.update(reasons)
        if not reasons:
            left.append((diff.field, diff.packet.number, diff.ours, diff.theirs))
    return left


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All captures that are kept, one behind the other, so that tshark starts once."""
    path = tmp_path_factory.mktemp("merged") / "all.pcapng"
    subprocess.run(["mergecap", "-a", "-w", path, *golden_captures()], check=True)
    return path


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("made") / "made.pcapng", frames())


def test_every_field_of_every_kept_capture(merged: Path) -> None:
    found, compared = differences(merged)
    assert compared > 25_000
    assert unexplained(found, set()) == []


def test_every_field_of_a_capture_with_everything(everything: Path, merged: Path) -> None:
    used: set[str] = set()
    found, compared = differences(everything)
    assert compared > 12_000
    assert unexplained(found, used) == []
    unexplained(differences(merged)[0], used)
    assert set(EXPLAINED) == used, "explanations that explain nothing"


def test_every_icrc_of_the_made_capture_is_right_and_every_network_is_in_it(everything) -> None:
    with open_capture(everything) as reader:
        packets = list(Dissector().dissect_all(reader))
    roce = [packet for packet in packets if packet.is_roce]
    assert {packet.icrc for packet in roce} == {"right"}
    assert {packet.network for packet in roce} == {Network.IPV4, Network.IPV6, Network.GRH}
    assert {packet.bth.opcode for packet in roce if packet.bth} == set(OPCODES)
    assert len(packets) - len(roce) == 2


def test_payload_and_pad_are_what_tshark_calls_data(everything: Path) -> None:
    """Only SEND, WRITE and READ responses of RC, UC and UD: the others it does not take apart."""
    checked = 0
    with open_capture(everything) as reader:
        packets = Dissector().dissect_all(reader)
        for (data,), packet in zip(theirs(everything, ["data.data"]), packets, strict=True):
            if packet.bth is None or packet.bth.opcode >> 5 not in (0, 1, 3) or not data:
                continue
            start = packet.layers["payload"][0]
            assert packet.captured.data[start : packet.layers["icrc"][0]].hex() == data
            checked += 1
    assert checked > 80
