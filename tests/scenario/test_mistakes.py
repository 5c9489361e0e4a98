"""Files that are no scenario: one sentence, with the table and key or the line of the file."""

import pytest

from rocemu.scenario import ScenarioError, read_scenario

RIGHT = """title = "x"
responder.mr = ["rw:64:local_write,remote_write"]
script = '''
requester: write rw+0 hello
'''
"""


def with_line(line: str) -> str:
    return RIGHT.replace("requester: write rw+0 hello", line)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("title = ", "not TOML: "),
        ('title = "x"', "key 'script' is missing"),
        ("script = ''", "key 'title' is missing"),
        (f"titel = 1\n{RIGHT}", "key 'titel': there is no such key; there are title, about"),
        (f"seed = -1\n{RIGHT}", "key 'seed': -1: allowed are 0 to"),
        (f"latency = 5\n{RIGHT}", "key 'latency': 5: a text is needed"),
        (f'limit = "soon"\n{RIGHT}', "key 'limit': 'soon' is no time"),
        (f"target.psn = 1\n{RIGHT}", "table 'target': there are requester, responder and both"),
        (f"requester.sqn = 1\n{RIGHT}", "table 'requester', key 'sqn': there is no such key"),
        (f"both.psn = 0x1000000\n{RIGHT}", "key 'psn': 16777216: allowed are 0 to 16777215"),
        (f"both.path_mtu = 1000\n{RIGHT}", "key 'path_mtu': path MTU 1000: allowed are 256"),
        (f'both.state = "UP"\n{RIGHT}', "key 'state': 'UP': allowed are RESET, INIT, RTR, RTS"),
        (f'both.profile = "mlx5"\n{RIGHT}', "key 'profile': 'mlx5': allowed are spec, soft-roce"),
        (f"requester.raw = 1\n{RIGHT}", "table 'requester', key 'raw': 1: allowed are true"),
        (f'both.fault = ["lose tx"]\n{RIGHT}', "key 'fault': fault 'lose tx': no action"),
        (f'requester.mr = ["a:1"]\n{RIGHT}', "table 'requester', key 'mr': 'a:1': the form is"),
        (f"requester.mr = 1\n{RIGHT}", "table 'requester', key 'mr': 1: a list is needed"),
        (f'requester.other_pd = ["b"]\n{RIGHT}', "key 'other_pd': no region 'b'"),
        (f'requester.address = "x"\n{RIGHT}', "table 'requester', key 'address': 'x' is no IP"),
        (f'responder.address = "::1"\n{RIGHT}', "table 'requester': ::1 cannot be reached from"),
        (RIGHT.replace("local_write,", ""), "table 'responder': "),
        (f"responder.raw = true\n{RIGHT}", "key 'mr': a raw participant has no regions"),
    ],
)
def test_a_wrong_key_is_named(text: str, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read_scenario(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("write rw+0 hello", "a line begins with requester:, responder:, > or <"),
        ("somebody: write rw+0 x", "a line begins with requester:, responder:"),
        ("requester: wriet rw+0 x", "no 'wriet'; there are write, send, read"),
        ("requester: write rw+0", "write needs TARGET DATA"),
        ("requester: write ro+0 x", "responder has no region 'ro'; there are rw"),
        ("requester: write rw+0 <buf+0:1", "requester has no region 'buf'; there are none"),
        ("responder: recv rw+0", "the form is recv NAME+OFFSET:LENGTH"),
        ("responder: recv bad+0:4", "responder has no region 'bad'"),
        ("responder: modify GONE", "no IBV_QPS_GONE; there are RESET"),
        ("responder: modify", "the form is modify STATE"),
        ("responder: state RTS RTS", "'RTS': nothing belongs here"),
        ("requester: completion 1", "the form is completion WR_ID STATUS"),
        ("requester: completion one SUCCESS", "wr_id 'one' is no number"),
        ("requester: completion 1 GOOD", "no IBV_WC_GOOD; there are SUCCESS"),
        ("requester: completion 1 SUCCESS len=5", "allowed are byte_len=N, imm=N, vendor_err=N"),
        ("responder: event BOOM", "no IBV_EVENT_BOOM; there are CQ_ERR"),
        ("responder: violation", "causes are missing: key, state, pd, permission, bounds, qp"),
        ("responder: violation rights", "causes rights: key, state, pd"),
        ("responder: memory rw+0 hex:0", "pairs of hexadecimal digits follow hex:"),
        ("+soon requester: state RTS", "takes a window"),
        ("+5ms requester: state RTS", "+5ms: what is expected takes a window, +1ms..2ms"),
        ("+1..2 requester: state RTS", "'1' is no time"),
        ("+1ms..2ms requester: write rw+0 x", "'1ms..2ms' is no time"),
        ("> RDMA WRIET Only psn=+0", "no opcode 'RDMA WRIET Only'; did you mean 'RDMA WRITE Only'"),
        ("> psn=+0", "a packet begins with its opcode"),
        (">", "a packet begins with its opcode"),
        ("> ACK va=0", "'va=0': RC Acknowledge has no such field; there are dest_qp, psn"),
        ("> ACK psn=x", "psn 'x' is no number"),
        ("> ACK msn=0x1000000", "msn 0x1000000 is not in 0 to 0xffffff"),
        ("> RDMA WRITE Only rkey=ro", "responder has no region 'ro'"),
        ("> hex:0a psn=+0", "hex: is the whole packet"),
        ('> SEND Only payload="x', "No closing quotation"),
    ],
)
def test_a_wrong_line_is_named(line: str, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read_scenario(with_line(line))
    assert str(caught.value).startswith("script, line 4: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_raw_participant_has_packets_only() -> None:
    text = with_line("requester: send x").replace("title", "requester.raw = true\ntitle")
    with pytest.raises(ScenarioError, match="line 5: requester is raw: it sends and is sent"):
        read_scenario(text)


def test_comments_and_quotes() -> None:
    steps = read_scenario(with_line('requester: send "a # b"  # c')).steps
    assert [step.text for step in steps] == ['requester: send "a # b"']
    assert steps[0].what.operation.data == b"a # b"
