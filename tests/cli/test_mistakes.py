"""Bad usage of the daemons' commands: one sentence that names the field and what is allowed."""

import re
from pathlib import Path

import pytest

from rocemu.cli.main import main

NUMBERS = {
    "port": ("1 to 65535", ["0", "65536", "-1", "http", "1.5", ""]),
    "qpn": ("2 to 16777214", ["1", "0xffffff", "x"]),
    "psn": ("0 to 16777215", ["-1", "0x1000000", "1e3"]),
    "remote-qpn": ("2 to 16777214", ["1", "99999999"]),
    "remote-psn": ("0 to 16777215", ["16777216", "one"]),
    "timeout": ("0 to 31", ["32", "-1", "soon"]),
    "retry-count": ("0 to 7", ["8", "many"]),
    "rnr-retry": ("0 to 7", ["8", "-1"]),
    "rnr-timer": ("0 to 31", ["32", "x"]),
    "mtu": ("256, 512, 1024, 2048, 4096|256 to 4096", ["1000", "0", "4097", "9000", "big"]),
    "seed": ("0 to ", ["-1", "x"]),
}
BOTH = [
    *((f"--{name}", value, allowed) for name, (allowed, bad) in NUMBERS.items() for value in bad),
    ("--icrc", "maybe", "verify, count, ignore"),
    ("--icrc", "", "verify, count, ignore"),
    ("--mr", "", "a text is needed"),
    ("--mr", "rw", "NAME:SIZE:FLAGS"),
    ("--mr", "rw:4096", "NAME:SIZE:FLAGS"),
    ("--mr", ":4096:none", "letters, digits"),
    ("--mr", "1st:4096:none", "letter first"),
    ("--mr", f"{'x' * 32}:4096:none", "up to 31"),
    ("--mr", "rw:many:none", "a number of bytes, with K, M or G"),
    ("--mr", "rw:-1:none", "a number of bytes"),
    ("--mr", "rw:5G:none", "allowed are 0 to 4294967296"),
    ("--mr", "rw:4096:", "local_write, remote_write, remote_read"),
    ("--mr", "rw:4096:write", "local_write, remote_write, remote_read"),
    ("--mr", "rw:4096:none@0x1000/0x100000000", "0 to 0xffffffff"),
    ("--mr", "rw:4096:none@0x10000000000000000", "0 to 0xffffffffffffffff"),
    ("--qp-access", "everything", "local_write, remote_write, remote_read"),
    ("--qp-access", "", "a text is needed"),
    ("--bind", "", "a text is needed"),
    ("--capture", "", "a text is needed"),
    ("--control", "", "a text is needed"),
    ("--config", "/no/such/file.toml", "/no/such/file.toml: No such file or directory"),
    ("--config", "/", "Is a directory"),
]
RESPONDER = [
    ("--recv", "-1", "0 to 1024"),
    ("--recv", "1025", "0 to 1024"),
    ("--recv", "some", "0 to 1024"),
    ("--recv", "4:", "a number of bytes"),
    ("--recv", "4:17M", "0 to 16M"),
    ("--remote", "127.0.0.1", "only with --static"),
    ("--other-pd", "nosuch", "no region 'nosuch'; there are none"),
]
REQUESTER = [
    ("--expect", "GREAT", "SUCCESS, LOC_LEN_ERR"),
    ("--expect", "", "SUCCESS, LOC_LEN_ERR"),
    ("--expect", "SUCCESS,", "SUCCESS, LOC_LEN_ERR"),
    ("--tx-depth", "0", "1 to 512"),
    ("--tx-depth", "513", "1 to 512"),
    ("--file", "/no/such/file", "/no/such/file: No such file or directory"),
    ("--file", "/bin/sh", "not UTF-8 text"),
]
OPERATIONS = [
    ("dance rw+0", "write, send, read, fetch-add, cmp-swap"),
    ("write", "write needs TARGET DATA"),
    ("write rw+0", "write needs TARGET DATA"),
    ("read rw+0", "read needs TARGET LENGTH"),
    ("send", "send needs DATA"),
    ("fetch-add rw+0", "fetch-add needs TARGET ADDEND"),
    ("cmp-swap rw+0 1", "cmp-swap needs TARGET COMPARE SWAP"),
    ("read rw+x 8", "offset 'x' is no number"),
    ("read rw+-1 8", r"NAME\+OFFSET and @VA/RKEY"),
    ("read @0x1000 8", r"NAME\+OFFSET and @VA/RKEY"),
    ("read @x/1 8", "address 'x' is no number"),
    ("read @0/0x100000000 8", "R_Key 0x100000000 is not in 0 to 0xffffffff"),
    ("read @0x10000000000000000/0 8", "address 0x10000000000000000 is not in 0 to"),
    ("read rw+0 lots", "size 'lots'"),
    ("read rw+0 4G", "allowed are 0 to 4294967295"),
    ("write rw+0 hex:0", "pairs of hexadecimal digits"),
    ("write rw+0 hex:xy", "pairs of hexadecimal digits"),
    ("write rw+0 <src+0", r"<NAME\+OFFSET:LENGTH"),
    ("write rw+0 <src+0:lots", "size 'lots'"),
    ("write rw+0 <:8", r"NAME\+OFFSET"),
    ("write rw+0 'no end", "No closing quotation"),
    ("fetch-add rw+0 -1", "operand -1 is not in 0 to"),
    ("fetch-add rw+0 one", "operand 'one' is no number"),
    ("read rw+0 8 imm=1", "read takes no immediate"),
    ("write rw+0 x imm=", "immediate '' is no number"),
    ("write rw+0 x imm=0x100000000", "immediate 0x100000000 is not in"),
    ("write rw+0 x lkey=no", "lkey 'no' is no number"),
    ("write rw+0 x fast", r"imm=N, lkey=N, >NAME\+OFFSET, fence, solicited, inline, unsignaled"),
    ("write rw+0 x >dst+0", "only what comes back"),
    ("send x >dst+0", "only what comes back"),
    ("read rw+0 8 inline", "inline: read sends no data"),
    ("fetch-add rw+0 8 inline", "inline: fetch-add sends no data"),
    ("write rw+0 <src+0:4097 inline", "inline: 4097 bytes, allowed are 4096"),
    ("write rw+0 <src+0:8", r"no region 'src' of our own \(--mr\); there are: none"),
    ("read rw+0 8 >dst+0", r"no region 'dst' of our own \(--mr\); there are: none"),
]


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The sentence that a command line is refused with."""
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1, "one sentence"
    assert shown.err.startswith(f"rocemu {argv[0]}: ")
    return shown.err


@pytest.mark.parametrize(("option", "value", "allowed"), BOTH + RESPONDER)
def test_options_of_a_responder(
    capsys: pytest.CaptureFixture[str], option: str, value: str, allowed: str
) -> None:
    sentence = refusal(capsys, "responder", "--bind", "127.0.0.1", option, value)
    assert f"Invalid value for {option}: " in sentence
    assert re.search(allowed, sentence)


@pytest.mark.parametrize(("option", "value", "allowed"), BOTH + REQUESTER)
def test_options_of_a_requester(
    capsys: pytest.CaptureFixture[str], option: str, value: str, allowed: str
) -> None:
    sentence = refusal(capsys, "requester", option, value, "127.0.0.1")
    assert f"Invalid value for {option}: " in sentence
    assert re.search(allowed, sentence)


@pytest.mark.parametrize(("operation", "allowed"), OPERATIONS)
def test_operations(capsys: pytest.CaptureFixture[str], operation: str, allowed: str) -> None:
    sentence = refusal(capsys, "requester", "127.0.0.1", "read rw+0 8", operation)
    assert f"Invalid value for OPERATION: {operation!r}: " in sentence
    assert re.search(allowed, sentence)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["requester"], "Invalid value for HOST: the responder's name or address is needed"),
        (["requester", ""], "Invalid value for HOST: '': a text is needed"),
        (["requester", "h", "--daemon"], "Invalid value for --daemon: needs --control PATH"),
        (["requester", "h", "--qpn", "5"], "Invalid value for --qpn: only with --static"),
        (["responder", "--psn", "5"], "Invalid value for --psn: only with --static"),
        (["responder", "--remote-qpn", "5"], "Invalid value for --remote-qpn: only with --static"),
        (["responder", "--static"], "Invalid value for --static: static mode needs --remote-qpn"),
        (
            ["responder", "--static", "--remote-qpn", "5", "--remote-psn", "0"],
            "Invalid value for --static: static mode of a responder needs --remote HOST",
        ),
        (
            ["responder", "--mr", "a:1:none", "--mr", "a:2:none"],
            "Invalid value for --mr: region 'a' is named twice",
        ),
        (["responder", "--nope"], "No such option: --nope"),
        (["responder", "extra"], "Got unexpected extra argument"),
        (["ctl"], "Missing argument 'PATH'"),
        (["ctl", "/tmp/x"], "Missing argument"),
    ],
)
def test_what_does_not_go_together(
    capsys: pytest.CaptureFixture[str], argv: list[str], sentence: str
) -> None:
    assert sentence in refusal(capsys, *argv)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("w:8:remote_write", "IBV_ACCESS_REMOTE_WRITE requires IBV_ACCESS_LOCAL_WRITE"),
        ("a:8:remote_atomic", "IBV_ACCESS_REMOTE_ATOMIC requires IBV_ACCESS_LOCAL_WRITE"),
        ("f:8:none:/no/such/file", "region f: /no/such/file: No such file or directory"),
        ("f:8:none:/", "region f: /: Is a directory"),
        ("f:8:none@0xfffffffffffffff9", "va 0xfffffffffffffff9+8 is not inside 64 bits"),
        ("z:8:zero_based@0x10", "IBV_ACCESS_ZERO_BASED: va is 0, not 0x10"),
        ("k:8:none@0x10/0x12", "rkey 0x00000012: its index is 0 or in use"),
    ],
)
def test_regions_that_cannot_be_registered(
    capsys: pytest.CaptureFixture[str], spec: str, sentence: str
) -> None:
    refused = refusal(capsys, "responder", "--bind", "127.9.9.9", "--mr", spec)
    assert "Invalid value for --mr: " in refused
    assert sentence in refused


# ---------------------------------------------------------------------- TOML

TOML = [
    ("bind 127", "--config: {file} is not TOML: "),
    ("nonsense = 1", "--config: {file}: no field 'nonsense'; there are bind, capture, "),
    ("operations = ['read x+0 1']", "--config: {file}: no field 'operations'; there are "),
    ("[mr]\nrw = 1", "--mr: {{'rw': 1}}: a list is needed"),
    ("mr = 'rw:8:none'", "--mr: 'rw:8:none': a list is needed"),
    ("mr = [8]", "--mr: 8: a text is needed"),
    ("mr = ['rw:8:all']", "--mr: access flag 'all': allowed are "),
    ("bind = 127", "--bind: 127: a text is needed"),
    ("port = true", "--port: True: allowed are 1 to 65535"),
    ("port = 1.5", "--port: 1.5: allowed are 1 to 65535"),
    ("port = [1]", "--port: [1]: allowed are 1 to 65535"),
    ("mtu = '1024.0'", "--mtu: '1024.0': allowed are 256 to 4096"),
    ("json = 'yes'", "--json: 'yes': allowed are true and false"),
    ("static = 1", "--static: 1: allowed are true and false"),
    ("icrc = false", "--icrc: False: allowed are verify, count, ignore"),
    ("icrc = ['verify']", "--icrc: ['verify']: allowed are verify, count, ignore"),
    ("capture = 1", "--capture: 1: a text is needed"),
    ("control = []", "--control: []: a text is needed"),
    ("recv = true", "--recv: 'True': allowed are 0 to 1024"),
    ("recv = [4]", "--recv: '[4]': allowed are 0 to 1024"),
    ("qp-access = ['remote_read']", "--qp-access: ['remote_read']: a text is needed"),
    ("other-pd = 'x'", "--other-pd: 'x': a list is needed"),
    ("seed = 1e400", "--seed: inf: allowed are 0 to "),
    ("psn = 5", "--psn: only with --static"),
    ("port = 1979-05-27", "--port: "),
    ("\x00", "--config: {file} is not TOML: "),
]


@pytest.mark.parametrize(("text", "sentence"), TOML)
def test_toml_of_a_responder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "responder.toml"
    file.write_text(text)
    refused = refusal(capsys, "responder", "--config", str(file))
    assert f"Invalid value for {sentence.format(file=file)}" in refused


def test_toml_that_is_not_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(b"bind = '\xff'")
    assert f"--config: {file} is not TOML: " in refusal(capsys, "responder", "--config", str(file))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("bind = '127.0.0.2'", "HOST: the responder's name or address is needed"),
        ("remote = 5", "HOST: 5: a text is needed"),
        ("remote = 'h'\noperations = 'read rw+0 8'", "OPERATION: 'read rw+0 8': a list is needed"),
        ("remote = 'h'\noperations = [8]", "OPERATION: 8: a text is needed"),
        ("remote = 'h'\noperations = ['dance']", "OPERATION: 'dance': no operation 'dance'"),
        ("remote = 'h'\nexpect = 5", "--expect: 5: a list is needed"),
        ("remote = 'h'\nexpect = [5]", "--expect: 5: a text is needed"),
        ("remote = 'h'\nexpect = ['FINE']", "--expect: no status 'FINE'; there are SUCCESS"),
        ("remote = 'h'\ndaemon = true", "--daemon: needs --control PATH"),
        ("remote = 'h'\nrecv = 3", "--config: {file}: no field 'recv'"),
    ],
)
def test_toml_of_a_requester(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "requester.toml"
    file.write_text(text)
    refused = refusal(capsys, "requester", "--config", str(file))
    assert f"Invalid value for {sentence.format(file=file)}" in refused
