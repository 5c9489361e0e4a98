"""``--fault`` on both daemons: from the command line, from TOML, and what is said of a mistake."""

from pathlib import Path

import pytest

from rocemu.cli.main import main
from rocemu.daemon.config import DaemonConfig, RequesterConfig, ResponderConfig

RULES = ["drop tx psn=+5 once", "dup rx opcode=ACKNOWLEDGE p=0.1"]


@pytest.mark.parametrize(
    ("config", "needed"), [(RequesterConfig, {"remote": "127.0.0.1"}), (ResponderConfig, {})]
)
def test_rules_come_from_options_and_from_toml(
    config: type[DaemonConfig], needed: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "daemon.toml"
    file.write_text(f"fault = {RULES}\n")
    for built in (config.build(None, {"fault": RULES, **needed}), config.build(file, needed)):
        assert [rule.text for rule in built.fault] == RULES


@pytest.mark.parametrize("words", [["requester", "127.0.0.1", "send x"], ["responder"]])
def test_a_mistake_in_a_rule_is_one_sentence(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--fault", "drop tx psn=five"]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"rocemu {words[0]}: Invalid value for --fault: fault 'drop tx psn=five': 'five' is no "
        "number (decimal, or hexadecimal with 0x)\n"
    )
