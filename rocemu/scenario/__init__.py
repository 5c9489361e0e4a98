"""Scripted exchanges with expectations, in one process and on virtual time.

A file names two participants (emulated devices, or peers that only the script moves), what they do,
and what must be seen of it: packets, completions, events, states, memory.  ``docs/scenarios.md`` is
the format; :func:`load` reads a file, :func:`play` runs it, :func:`play_live` plays one part of it
against a live peer.
"""

from rocemu.scenario.live import play_live
from rocemu.scenario.load import PARTICIPANTS, load, read_scenario
from rocemu.scenario.model import Scenario, ScenarioError
from rocemu.scenario.run import Line, Report, play
from rocemu.scenario.world import OnWire

__all__ = [
    "PARTICIPANTS",
    "Line",
    "OnWire",
    "Report",
    "Scenario",
    "ScenarioError",
    "load",
    "play",
    "play_live",
    "read_scenario",
]
