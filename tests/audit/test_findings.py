"""Every code is drawn by its fault, and by nothing but it."""

import pytest

from rocemu.audit.findings import KINDS
from tests.audit import cases_of_answers, cases_of_requests
from tests.audit.cases import CASES, Case
from tests.audit.talk import Talk

REGISTERED = (cases_of_answers, cases_of_requests)  # as they are imported
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_every_code_has_a_case():
    assert set(CASES) == set(KINDS)


@every_case
def test_the_fault_draws_its_code(case: Case):
    talk = Talk()
    case.make(talk, True)
    assert talk.codes() == {case.code, *case.also}


@every_case
def test_without_the_fault_it_is_not_drawn(case: Case):
    talk = Talk()
    case.make(talk, False)
    assert case.code not in case.without
    assert talk.codes() == case.without


@every_case
def test_findings_say_where(case: Case):
    talk = Talk()
    case.make(talk, True)
    for finding in talk.audit():
        assert finding.text
        assert finding.kind.clause.startswith("[IBTA] ")
        assert list(finding.packets) == sorted(set(finding.packets))
        assert all(1 <= number <= len(talk.frames) for number in finding.packets)
