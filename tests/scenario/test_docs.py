"""The page on scenarios: its example plays, its difference comes so, its lists are whole."""

import re
from pathlib import Path

import pytest

from rocemu.scenario import load, play, read_scenario
from rocemu.scenario.load import _ATTRIBUTES, _HEAD, _OWN
from rocemu.scenario.script import _VERBS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/scenarios.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_example_comes_out() -> None:
    report = play(read_scenario(EXAMPLE))
    assert report.good, report.difference


def test_the_difference_that_is_shown_is_the_one_that_comes() -> None:
    report = play(read_scenario(EXAMPLE.replace("psn=+1 msn=0", "psn=+2 msn=0")))
    assert report.difference is not None
    assert report.difference.step is not None
    assert f"script, line {report.difference.step.line}, at 0.01 ms" in PAGE
    assert f"      came      {report.difference.came}\n" in PAGE


@pytest.mark.parametrize("key", [*_HEAD, *_OWN, *_ATTRIBUTES])
def test_every_key_is_documented(key: str) -> None:
    assert f"`{key}`" in PAGE


@pytest.mark.parametrize("verb", list(_VERBS))
def test_every_verb_is_documented(verb: str) -> None:
    assert re.search(rf"\| `(requester|responder): {verb} ", PAGE)


def test_the_page_names_no_file_that_is_not_there() -> None:
    assert load(ROOT / "scenarios/psn-gap.toml").title
