"""What the audit says of captures that are kept: the kernel's, and those with a story."""

from pathlib import Path

import pytest

from tests.audit.talk import audit_file

PCAPS = Path(__file__).parents[2] / "pcaps"
KERNEL = PCAPS / "soft-roce"

#: The kernel's captures of operations that are refused: the packets of the finding are the request
#: and the NAK, as tshark shows them.
_REFUSED = {
    "nak-remote-access": """faa_badrkey faa_noaccess_mr faa_oob read_badrkey read_noaccess_mr
        read_oob write_badkeybyte write_badrkey write_badrkey_multi write_dereg write_oob_below
        write_oob_end write_oob_justend write_oob_multi write_otherpd write_ro_mr""",
    "nak-invalid-request": "faa_noaccess_qp read_noaccess_qp read_rdatom0 write_ro_qp",
    "nak-remote-operational": "send_bad_recv_lkey send_too_long send_too_long_one",
}
KERNEL_FINDINGS = {
    **{name: {code} for code, names in _REFUSED.items() for name in names.split()},
    # the request behind the one that had to wait draws a sequence NAK: rxe does not suppress it
    "send_rnr_retry0": {"rnr-nak", "nak-psn-sequence"},
    "write_imm_rnr": {"rnr-nak", "nak-psn-sequence"},
    # the client sends before the server is ready: the kernel drops that in silence
    "rc_pingpong_v6": {"retransmission"},
    # rxe acknowledges the SEND whose Invalidate fails, does not count it, and is silent after that
    "send_inv_bad": {"msn", "retransmission", "ack-missing"},
}


@pytest.mark.parametrize("file", sorted(KERNEL.glob("*.pcap")), ids=lambda file: file.stem)
def test_the_kernel_is_clean_but_for_what_is_explained(file: Path):
    findings, summary = audit_file(file)
    assert {finding.code for finding in findings} == KERNEL_FINDINGS.get(file.stem, set())
    assert summary.icrc_wrong == summary.icrc_unchecked == 0
    assert summary.icrc_right == summary.roce > 0


def test_a_refusal_names_request_nak_and_causes():
    (finding,), _ = audit_file(KERNEL / "write_ro_mr.pcap")
    assert finding.packets == (3, 4)
    assert finding.where == "10.77.0.2 -> 10.77.0.3 QP 0x2c"
    for cause in ("R_Key unknown", "another PD", "out of bounds", "region without remote_write"):
        assert cause in finding.text


#: Packets made by hand, from the description of each case: number -> code of an error.
INJECTED = {
    **dict.fromkeys((2, 3, 4, 5, 19), "icrc-bad"),
    10: "tver",
    18: "tver",
    28: "atomic-alignment",
    30: "atomic-alignment",
    32: "atomic-alignment",
    68: "opcode-sequence",
    71: "payload-length",
    75: "write-length",
    77: "write-length",
    81: "write-length",
    83: "dma-length",
    85: "opcode-reserved",
    86: "opcode-reserved",
    95: "pad",
    98: "datagram-short",
}


def test_what_was_injected_by_hand_is_found_and_the_answers_are_paired():
    findings, summary = audit_file(KERNEL / "by-hand" / "inject.pcap")
    errors = {
        finding.packets[-1]: finding.code
        for finding in findings
        if finding.severity == "error" and finding.packets[-1] < 135
    }
    assert errors == INJECTED
    # 135 on: datagrams filled with 0x78
    rest = {f.code for f in findings if f.packets[-1] >= 135 and f.severity == "error"}
    assert rest == {"tver", "icrc-bad"}
    assert summary.icrc_wrong == 25
    # every queue pair there answers to QP 0x77: the source port tells which one it is
    refused = {f.packets: f.code for f in findings if f.code.startswith("nak-")}
    assert refused[22, 23] == "nak-remote-access"
    assert refused[28, 29] == refused[30, 31] == refused[81, 82] == "nak-invalid-request"
    assert refused[32, 33] == refused[122, 123] == "nak-remote-access"
    text = next(f.text for f in findings if f.packets == (81, 82))
    assert "it breaks a rule, write-length" in text


#: What each story implies; the captures' README tells the stories.
GOLDEN_FINDINGS = {
    **{name: [] for name in ("atomics", "cm", "lkey", "read", "write")},
    **{
        name: [("nak-remote-access", (8, 9))]
        for name in ("bounds", "key", "pd", "permission", "ipv6")
    },
    "state": [("nak-remote-access", (10, 11))],
    "opcode": [("opcode-reserved", (3,)), ("nak-invalid-request", (3, 4))],
    "psn": [
        ("nak-psn-sequence", (1, 3, 4)),
        ("psn-gap", (1, 3, 5)),
        ("retransmission", (5,)),
    ],
    "rnr": [("rnr-nak", (4, 5)), ("rnr-nak", (6, 7)), ("retransmission", (4, 6))],
}


@pytest.mark.parametrize("file", sorted(PCAPS.glob("*.pcapng")), ids=lambda file: file.stem)
def test_golden_captures_show_what_their_story_implies(file: Path):
    findings, summary = audit_file(file)
    found = [(finding.code, finding.packets) for finding in findings]
    assert sorted(found) == sorted(GOLDEN_FINDINGS[file.stem])
    assert summary.icrc_right == summary.roce > 0
