"""Whatever the network loses, doubles, delays, reorders and breaks, both ends finish as without it.

Two sides post random work at each other over a link with random faults, and a model without a
network says what memory, results and completions must be in the end.  Each seed is a scenario; one
that fails prints its file, for ``rocemu scenario run``.  ``ROCEMU_SEED=17`` runs one seed.
"""

import os

import pytest

from rocemu.scenario import play, read_scenario
from rocemu.scenario.world import DeviceEnd
from tests.transport.random_work import OPERATIONS, write_scenario

SEEDS = [int(os.environ["ROCEMU_SEED"])] if "ROCEMU_SEED" in os.environ else range(1000)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_ends_finish_as_without_a_network(seed: int) -> None:
    text = write_scenario(seed)
    report = play(read_scenario(text))
    line = report.difference
    if line is not None:
        came = f"expected {line.text}\ncame     {line.came}"
        pytest.fail(f"seed {seed}, at {line.when} s\n{came}\n\n{text}", pytrace=False)
    left, right = report.world.ends
    assert isinstance(left, DeviceEnd)
    assert isinstance(right, DeviceEnd)
    for side, peer in ((left, right), (right, left)):
        # Nothing is stuck, nothing was executed twice, and both ends agree on where they are.
        assert not side.qp.requester.queue
        assert side.qp.requester.una == peer.qp.responder.epsn
        assert peer.qp.responder.msn == OPERATIONS
        assert side.next_timer() is None


def test_the_work_is_as_bad_as_it_should_be() -> None:
    """The seeds lose, double and reorder, wait for receives, and cross the wrap of PSNs."""
    counters: dict[str, int] = {}
    wrapped = 0
    for seed in range(30):
        report = play(read_scenario(write_scenario(seed)))
        for end in report.world.ends:
            assert isinstance(end, DeviceEnd)
            for name, count in end.device.counters.items():
                counters[name] = counters.get(name, 0) + count
            wrapped += end.qp.requester.psn < end.spec.psn
    faults = ("drop", "dup", "delay", "reorder", "corrupt", "bad_icrc")
    assert all(counters[f"fault_{name}"] >= 10 for name in faults), counters
    assert wrapped > 5
