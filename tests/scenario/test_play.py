"""How scenarios are played: order, windows, wildcards, what is left over, what cannot be done."""

from rocemu.scenario import Report, play, read_scenario


def played(script: str, head: str = "") -> Report:
    return play(
        read_scenario(
            f"title = 'x'\n{head}\n"
            "requester.mr = ['buf:64:local_write']\n"
            "responder.mr = ['rw:1024:local_write,remote_write,remote_read']\n"
            f"script = '''\n{script}\n'''"
        )
    )


def came(script: str, head: str = "") -> str:
    difference = played(script, head).difference
    assert difference is not None
    return difference.came


WRITE = "requester: write rw+0 hello\n"


def test_without_packets_in_the_script_the_wire_is_not_looked_at() -> None:
    assert played(WRITE + "requester: completion 1 SUCCESS").good


def test_with_packets_every_packet_counts() -> None:
    script = WRITE + "requester: completion 1 SUCCESS\n> RDMA WRITE Only psn=+0"
    assert came(script) == "< ACK  psn=+0 msn=1"


def test_dots_stand_for_any_packets_up_to_the_next_named_one() -> None:
    head = "both.path_mtu = 256"
    script = """
        requester: write rw+0 fill:1024
        > RDMA WRITE First psn=+0
        ...
        < ACK psn=+3
        requester: completion 1 SUCCESS"""
    assert played(script, head).good
    assert came(script.replace("psn=+3", "psn=+4"), head) == "nothing within 1 s"
    assert played(WRITE + "...\nrequester: completion 1 SUCCESS").good


def test_what_comes_too_late_or_too_early() -> None:
    head = "latency = '1ms'"
    script = WRITE + "> RDMA WRITE Only psn=+0\n{} < ACK psn=+0\nrequester: completion 1 SUCCESS"
    assert played(script.format("+1ms..1ms"), head).good
    assert played(script.format("+0.5ms.."), head).good
    assert came(script.format("+..0.9ms"), head) == "nothing within 900 us"
    assert came(script.format("+1.1ms.."), head) == "1 ms after the line before"


def test_an_action_waits_from_the_line_before() -> None:
    report = played(
        WRITE + "+5ms responder: set rw+0 later\n+..20us requester: completion 1 SUCCESS"
    )
    assert report.difference is not None
    assert report.difference.came.endswith("after the line before")
    assert [round(line.when * 1e3, 6) for line in report.lines[:2]] == [0, 5]


def test_completions_are_told_with_what_they_brought() -> None:
    assert came(WRITE + "requester: completion 1 REM_OP_ERR") == "1 IBV_WC_SUCCESS byte_len=5"
    script = "responder: recv rw+0:64\nrequester: send hello imm=7\nresponder: receive 1 SUCCESS"
    assert came(f"{script} imm=8\nrequester: completion 1 SUCCESS") == (
        "1 IBV_WC_SUCCESS byte_len=5 imm=0x7"
    )


def test_memory_tells_where_it_differs() -> None:
    script = WRITE + "requester: completion 1 SUCCESS\nresponder: memory rw+0 {}"
    assert came(script.format("help!")) == '"hello"; the first other byte is at rw+3'
    assert came(script.format("zeros:2000")) == "rw has 1024 bytes"


def test_what_no_adapter_does_is_a_difference() -> None:
    assert "no sends can be posted" in came(WRITE, "requester.state = 'RTR'")
    assert "cannot move from IBV_QPS_RTS to IBV_QPS_INIT" in came("requester: modify INIT")
    assert came("responder: set rw+1020 hello") == "rw+1020: 5 bytes, the region has 1024"


def test_what_was_left_is_told_after_a_difference() -> None:
    report = played(WRITE + "+1ms\n> RDMA WRITE Only psn=+1")
    assert report.also == [
        '> RDMA WRITE Only  psn=+0 ackreq va=rw+0 rkey=rw length=5 payload="hello"',
        "< ACK  psn=+0 msn=1",
        "requester: completion 1 IBV_WC_SUCCESS byte_len=5",
    ]
