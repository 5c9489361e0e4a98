"""Display filters: tshark selects the same packets; what is not supported is refused in words."""

import random
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.audit.dissect import Dissected, Dissector
from rocemu.audit.field_table import ALIASES, FIELDS
from rocemu.audit.fields import Kind, show, values_of
from rocemu.audit.filter import FilterError, compile_filter
from rocemu.capture import open_capture
from rocemu.wire import OPCODES
from tests.audit.made import frames, golden_captures, write_capture

FILTERS = """
infiniband
ip
!infiniband
infiniband.aeth
infiniband.bth.opcode == 17
infiniband.bth.opcode eq 0x11
infiniband.bth.opcode != 17
infiniband.bth.opcode ne 021
infiniband.aeth.syndrome == 0x62 || infiniband.aeth.syndrome == 0x61
infiniband.aeth.syndrome.opcode == 3 and not infiniband.aeth.syndrome.error_code == 2
infiniband.bth.opcode in {4, 10..12, 0x13}
infiniband.bth.opcode in {10 .. 12}
!(infiniband.bth.opcode in {4, 10..12})
infiniband.bth.opcode == 17 or infiniband.bth.opcode == 4 and infiniband.bth.psn == 0
(infiniband.bth.opcode == 17 or infiniband.bth.opcode == 4) and infiniband.bth.psn == 0
ip.addr == 10.77.0.2
ip.addr != 10.77.0.2
!(ip.addr == 10.77.0.2)
ip.src == 10.77.0.0/16
ip.src != 10.77.0.0/16
ip.src in {10.77.0.2, 127.0.0.0/8}
ip.src >= 10.77.0.3
ip.src == ip.dst
ip.src[0:2] == 0a:4d
ipv6.addr == fd77::2
ipv6.src == fd77::/16
ipv6.src > fd77::2
infiniband.bth[4:1] == 40
infiniband.bth[5:3] == 00:00:01
infiniband.bth[5-7] == 000001
infiniband.bth[0] == 11
infiniband.bth[:1] == 64
infiniband.bth[-3:] == 00:00:00
infiniband.bth[9:3] > 00:01:00
infiniband.bth[0,1] == 11:00
infiniband.reth.va >= 0x20000
infiniband.reth.dmalen > 64
infiniband.reth.r_key
infiniband.bth.a
infiniband.bth.a == 0
infiniband.bth.a == True
infiniband.bth.se == false
infiniband.immdt == 00:00:12:34
infiniband.immdt contains 12:34
infiniband.atomiceth.swapdt == 5
infiniband.aeth.msn >= 1 and (infiniband.aeth.msn < 3 or infiniband.aeth.syndrome == 0x60)
infiniband.cm.req
infiniband.cm.req.localqpn > 0x1e
infiniband.mad.attributeid in {0x14 .. 0x16}
infiniband.deth.q_key == 0x80010000
frame.number <= 10
frame.number in {1, 5..7, 100}
frame.len > 100 and frame.len < 200
frame.len == frame.cap_len
frame.time_relative > 0.05
frame.time_delta == 0
frame.time_epoch > 1796112927.07
frame.comment contains "permission"
frame.comment matches "PERM.*write"
frame.comment
frame[0:4] == 52:54:00:77
frame[14] == 45
frame contains 12:b7
udp contains 12:b7
udp.port == 4791
udp.port != 4791
udp.port in {53, 80}
udp.srcport in {49152 .. 65535}
ip.ttl ne 64
ip.flags.df == 1
not ip.id == 0 or infiniband.bth.psn lt 5
! ! infiniband.aeth
eth.addr == 52:54:00:77:00:02
eth.src[0:3] == 52:54:00
infiniband.aeth matches "^b"
""".strip().splitlines()

REFUSED = {
    "": "the filter is empty, at character 1",
    "   ": "the filter is empty, at character 1",
    "infiniband.bth.pns == 1": "no field infiniband.bth.pns; did you mean infiniband.bth.psn?, "
    "at character 1",
    "ip && tcp.port == 1": "no field tcp.port; did you mean udp.port?, at character 7",
    "infiniband.bth.psn ==": "a value is expected, not the end, at character 22",
    "infiniband.bth.psn == abc": "abc is no number, as infiniband.bth.psn is, at character 23",
    "infiniband.bth.psn contains 4": "infiniband.bth.psn is a number, it contains nothing, "
    "at character 20",
    'infiniband.bth.psn matches "4"': "infiniband.bth.psn is a number, matches takes text, "
    "at character 28",
    "infiniband.bth.psn[0:1] == 4": "infiniband.bth.psn is a number, it has no parts, "
    "at character 19",
    "ip.src == 10.0.0": "10.0.0 is no IPv4 address, as ip.src is, at character 11",
    'ip.src == "10.0.0.1"': '"10.0.0.1" is no IPv4 address, as ip.src is, at character 11',
    "ip.src == ipv6.src": "ip.src and ipv6.src are not of one kind, at character 11",
    "infiniband.bth.opcode in {4 10}": "'}' is expected, not '10', at character 29",
    "infiniband.bth.opcode in {}": "a value is expected, not '}', at character 27",
    "infiniband.bth.psn == 1 == 2": "'==' is not expected here, at character 25",
    "(ip": "')' is expected, not the end, at character 4",
    "ip)": "')' is not expected here, at character 3",
    "ip.ttl & 1": "'&' is not supported, at character 8",
    "infiniband.bth.psn === 1": "'===' is not supported, at character 20",
    "infiniband.bth.psn ~= 1": "'~=' is not supported, at character 20",
    "len(frame) > 3": "functions (len) are not supported, at character 1",
    "frame[] == 1": "[] is no slice, at character 6",
    "frame[0:0] == 1": "[0:0] is empty, at character 6",
    "frame[1:2": "'[' is not supported, at character 6",
    'frame.comment contains "open': "'\"' is not supported, at character 24",
    'frame.comment matches "("': '"(" is no regular expression (missing ), unterminated '
    "subpattern at position 0), at character 23",
    "frame.comment matches abc": "matches takes a quoted regular expression, at character 23",
    r'frame.comment == "\q"': r"\q is no escape, at character 19",
    "1 == 1": "no field 1, at character 1",
    "!" * 200 + "ip": "more than 100 levels, at character 102",
    "(" * 200 + "ip": "more than 100 levels, at character 102",
}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filters")
    # tshark reads RD and XRC otherwise, and new opcodes not at all (test_fields_and_tshark)
    usual = [opcode for opcode in OPCODES if opcode >> 5 in (0, 1, 3) and opcode & 0x1F < 0x18]
    made = write_capture(folder / "made.pcapng", frames(usual))
    merged = folder / "all.pcapng"
    subprocess.run(["mergecap", "-a", "-w", merged, *golden_captures(), made], check=True)
    return merged


@pytest.fixture(scope="module")
def packets(capture: Path) -> list[Dissected]:
    with open_capture(capture) as reader:
        return list(Dissector().dissect_all(reader))


def tshark_counts(capture: Path, filters: list[str]) -> list[int]:
    """How many frames each filter selects, by one run of tshark: statistics over one interval,
    whose columns are frames and bytes of each filter."""
    command = ["tshark", "-n", "-q", "-r", str(capture), "--disable-protocol", "rpcordma"]
    command += ["-z", ",".join(["io,stat,0", *filters])]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    row = next(line for line in said.stdout.splitlines() if "<>" in line)
    return [int(cell) for cell in row.split("|")[2:-1:2]]


def tshark_selects(capture: Path, text: str) -> list[int]:
    command = ["tshark", "-n", "-r", str(capture), "--disable-protocol", "rpcordma", "-Y", text]
    command += ["-T", "fields", "-e", "frame.number"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(line) for line in said.stdout.splitlines()]


def selected(text: str, packets: list[Dissected]) -> list[int]:
    test = compile_filter(text)
    return [packet.number for packet in packets if test(packet)]


@pytest.mark.needs_tshark
def test_tshark_selects_as_many_packets(capture: Path, packets: list[Dissected]) -> None:
    filters = [text for text in FILTERS if "," not in text]  # a comma ends a filter of io,stat
    counts = tshark_counts(capture, filters)
    assert {text: len(selected(text, packets)) for text in filters} == dict(
        zip(filters, counts, strict=True)
    )
    assert sum(0 < count < len(packets) for count in counts) > 40


@pytest.mark.needs_tshark
@pytest.mark.parametrize("text", [text for text in FILTERS if "," in text] + FILTERS[:8:3])
def test_tshark_selects_the_same_packets(text: str, capture: Path, packets) -> None:
    assert selected(text, packets) == tshark_selects(capture, text)


OPERATORS = ("==", "!=", "<", ">", "<=", ">=", "eq", "ne", "lt", "gt", "le", "ge")


def random_filter(rng: random.Random, packets: list[Dissected]) -> str:
    """Values that occur, so that about half of the packets match."""
    tests = []
    for _ in range(rng.randrange(1, 4)):
        while True:
            field, packet = rng.choice(COMPARABLE), rng.choice(packets)
            values = values_of(field, packet)
            if values:
                break
        literal = show(field, values[0]).replace("True", "1").replace("False", "0")
        test = f"{field.name} {rng.choice(OPERATORS)} {literal}"
        if rng.random() < 0.2:
            test = f"{field.name} in {{{literal}}}"
        if rng.random() < 0.1:
            test = field.name
        tests.append(rng.choice(("", "", "!", "not ")) + test)
    text = f" {rng.choice(('&&', '||', 'and', 'or'))} ".join(tests)
    return f"!({text})" if rng.random() < 0.3 else text


#: Fields that tshark reads as we do on all opcodes (the differences: test_fields_and_tshark).
COMPARABLE = [
    FIELDS[f"{layer}.{name}"]
    for layer, names in (
        ("frame", ("number", "len", "cap_len")),
        ("eth", ("src", "dst")),
        ("ip", ("len", "id", "ttl", "dsfield", "dsfield.ecn", "flags.df", "src", "dst")),
        ("ipv6", ("src", "dst", "tclass", "flow", "plen", "hlim")),
        ("udp", ("srcport", "dstport", "length")),
        ("infiniband.grh", ("flowlabel", "paylen", "sgid")),
        ("infiniband.bth", ("opcode", "se", "m", "padcnt", "p_key", "destqp", "a", "psn")),
        ("infiniband.reth", ("va", "r_key", "dmalen")),
        ("infiniband.aeth", ("syndrome", "msn", "syndrome.opcode")),
    )
    for name in names
]


@pytest.mark.needs_tshark
@pytest.mark.parametrize("seed", range(3))
def test_random_filters(seed: int, capture: Path, packets: list[Dissected]) -> None:
    rng = random.Random(seed)
    filters = [random_filter(rng, packets) for _ in range(60)]
    counts = tshark_counts(capture, filters)
    for text, count in zip(filters, counts, strict=True):
        assert len(selected(text, packets)) == count, text


def test_our_own_fields(packets: list[Dissected]) -> None:
    wrong = selected('rocemu.icrc == "wrong"', packets)
    assert wrong
    assert set(wrong) == {packet.number for packet in packets if packet.icrc == "wrong"}
    again = selected("rocemu.retry == 1", packets)
    assert 0 < len(again) < 40
    assert selected('rocemu.problem contains "opcode"', packets)


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_says_what_and_where(text: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter(text)
    assert str(refused.value) == REFUSED[text]


def test_every_field_and_alias_is_a_filter(packets: list[Dissected]) -> None:
    for name in (*FIELDS, *ALIASES):
        test = compile_filter(name)
        assert [packet.number for packet in packets if test(packet)] == [
            packet.number
            for packet in packets
            if any(values_of(FIELDS[part], packet) for part in ALIASES.get(name, (name,)))
        ]


_SYMBOLS = (*OPERATORS, "in", "matches", "contains", "&&", "||", "!", "(", ")", "{", "}", "..", ",")
_PIECES = st.sampled_from(
    (*_SYMBOLS, "[0:2]", "[-3:]", "ip", "ip.src", "frame.comment", "infiniband.bth", "10.0.0.1",
     "10.0.0.0/8", "fe80::1", "0x1", "1", "-1", '"a(b"', 'r"\\d+"', "aa:bb", "$", "&", "[", "'")
)  # fmt: skip


@given(st.one_of(st.text(max_size=40), st.lists(_PIECES, max_size=12).map(" ".join)))
def test_any_text_is_a_filter_or_refused_with_a_position(text: str) -> None:
    position = 0
    try:
        test = compile_filter(text)
    except FilterError as error:
        position = error.position
    else:
        assert all(test(packet) in (True, False) for packet in some_packets())
    assert 0 <= position <= len(text)


@cache
def some_packets() -> list[Dissected]:
    (path,) = (path for path in golden_captures() if path.name == "rping.pcap")
    with open_capture(path) as reader:
        return list(Dissector().dissect_all(reader))


def test_kinds_that_a_literal_is_read_for() -> None:
    """Every kind of field has a literal."""
    for kind, name, literal in (
        (Kind.DEC, "infiniband.bth.psn", "0b101"),
        (Kind.HEX, "infiniband.bth.destqp", "017"),
        (Kind.BOOL, "infiniband.bth.a", "TRUE"),
        (Kind.SECONDS, "frame.time_relative", "0.5"),
        (Kind.BYTES, "infiniband.immdt", "0x01020304"),
        (Kind.ETHER, "eth.src", "02-42-00-00-00-01"),
        (Kind.IPV4, "ip.src", "10.0.0.1"),
        (Kind.IPV6, "ipv6.src", "::ffff:10.0.0.1"),
        (Kind.TEXT, "frame.comment", "word"),
    ):
        assert FIELDS[name].kind is kind
        compile_filter(f"{name} == {literal}")
