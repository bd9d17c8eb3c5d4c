"""Actions in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.targets import ACTION_KINDS, OUTCOME_STATES
from core.types import Action, Outcome, Target
from remediation.words import say, why
from tests.remediation.worlds import T0

DRAIN = Action("inc-1/1/1", "drain", Target("node", "n7"), {"wait_for": "checkpoint"}, 600.0, "act", "inc-1", 1, 1, T0, "policy")


@pytest.mark.parametrize(("action", "outcome", "words"), [
    (DRAIN, Outcome("", "DONE", "done", 312.4), "drain n7 (wait_for=checkpoint): done after 312 s"),
    (DRAIN, Outcome("", "RUNNING", "policy"), "drain n7 (wait_for=checkpoint): under way"),
    (DRAIN, Outcome("", "REFUSED", "other_hand"),
     "drain n7 (wait_for=checkpoint): refused, another hand holds the node"),
    (replace(DRAIN, reason="approved", actor="ada"), Outcome("", "PENDING", "approved"),
     "drain n7 (wait_for=checkpoint): decided, approved by ada"),
    (replace(DRAIN, kind="reset_gpu", target=Target("gpu", "n7", "3"), args={}), Outcome("", "SIMULATED", "simulated"),
     "reset n7 GPU 3: simulated, nothing was done"),
])
def test_an_action_reads_as_a_sentence(action, outcome, words):
    """Verb, part, arguments, what became of it, and why where that adds something."""
    assert say(action, outcome) == words


@pytest.mark.parametrize("kind", ACTION_KINDS)
def test_each_kind_and_state_has_words(kind):
    """No name of the lists is left without words."""
    for state in OUTCOME_STATES:
        text = say(replace(DRAIN, kind=kind), Outcome("", state, "done"))
        assert "_" not in text.replace("wait_for", "")
        assert state not in text


def test_an_unknown_reason_is_shown_as_it_is():
    """What the lists do not have is not hidden."""
    assert why("made_up") == "made_up"
