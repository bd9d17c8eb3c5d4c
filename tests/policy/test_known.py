"""What is known beside a recording: labels by hand, and a store's own action history; what is not known stays two answers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from app.policy_account import Account, account, lines
from app.policy_history import read_history, told
from app.policy_shadow import FAILS, HELPS, Shadow
from app.policy_simulate import SimulateOptions, known_of
from app.policy_truth import Known, Sound, TrueFault, label_paths, read_labels
from core.errors import BadInput, ConfigError
from core.protocols import TickCommit
from core.types import Action, Incident, Note, Outcome, Target
from pipeline.store.duck import DuckStore
from remediation.policy import parse_policy
from tests.policy.test_simulate import ONCE, REPLACE, SITE, follow, worn
from tests.remediation.worlds import T0, TICK

RESET, SWAP = ("drain", "reset_gpu", "diagnose", "undrain"), ("drain", "replace", "resume_job")


def closed(name: str = "inc-1", state: str = "resolved", reason: str = "recovered", minutes: int = 60) -> Incident:
    """As it ended."""
    at = T0 + minutes * 60_000
    return replace(worn(name), state=state, reason=reason, resolved_at=at, updated_at=at)


def proof(result: str, kinds: tuple[str, ...]) -> tuple[str, frozenset[str]]:
    return result, frozenset(kinds)


def diagnosis(reason: str, after: str | None = None) -> tuple[Action, Outcome]:
    """A diagnosis of n1 that came out so."""
    action = Action("inc-1/1/3", "diagnose", Target("node", "n1"), {"after": after}, 60.0, "act", "inc-1", 1, 3, T0, "policy")
    return action, Outcome(action.id, "DONE" if reason in ("diagnose_refuted", "no_fault_found") else "FAILED", reason, 1.0, T0)





def store(folder: Path, *incidents: Incident, notes: tuple[Note, ...] = (), rows: tuple[tuple[Action, Outcome], ...] = ()) -> None:
    one = DuckStore(folder / "greylag.duckdb")
    one.commit_tick(TickCommit(T0 + TICK, incidents=incidents, actions=rows, notes=notes))
    one.close()


END = float(T0 + 3_600_000)
GONE = frozenset({"replace", "exclude_node"})


@pytest.mark.parametrize(("incident", "notes", "rows", "cures", "fails", "sound"), [
    (closed(), (proof("cured", SWAP),), (), GONE, set(), False),
    (closed(), (proof("failed", RESET), proof("cured", SWAP)), (), GONE, {"reset_gpu"}, False),
    (closed(), (proof("cured", RESET),), (), GONE | {"reset_gpu"}, set(), False),
    (closed(), (), (diagnosis("diagnose_confirmed"),), GONE, set(), False),
    (closed(), (), (diagnosis("diagnose_failed"),), GONE, set(), False),
    (closed(state="abandoned", reason="marked_wrong"), (), (), None, set(), True),
    (closed(), (), (diagnosis("diagnose_refuted"),), None, set(), True),
    (closed(), (), (diagnosis("diagnose_refuted", "reset_gpu"),), None, set(), False),
    (closed(), (), (diagnosis("no_fault_found"),), None, set(), False),
    (closed(), (proof("failed", RESET),), (), None, set(), False),
    (closed(), (proof("inconclusive", SWAP),), (), None, set(), False),
    (closed(), (), (), None, set(), False),
    (closed(state="merged"), (proof("cured", SWAP),), (), None, set(), False),
], ids=["cured", "then-cured", "reset", "confirmed", "another", "wrong", "refuted", "after-reset", "not-tested", "failed", "unclear", "silent", "merged"])
def test_what_a_stores_history_says(incident, notes, rows, cures, fails, sound):
    """A proof, a diagnosis or a person's word; of all else nothing."""
    fault = None if cures is None else TrueFault("row_remap_failure", "device", "n1", "3", ("train",), T0, END, frozenset(cures), frozenset(fails))
    assert told(incident, notes, rows) == (fault, Sound("n1", T0, END) if sound else None)


def test_the_history_is_read_from_the_store(tmp_path: Path):
    """Incidents, proofs and the ends of diagnoses, each with its own."""
    other = replace(closed("inc-2"), culprit=Target("gpu", "n2", "0"))
    body = json.dumps({"result": "cured", "kinds": SWAP})
    action, outcome = diagnosis("diagnose_refuted")
    store(tmp_path, closed(), other, notes=(Note(T0 + TICK, "inc-1", 1, "proof", body),),
          rows=((replace(action, id="inc-2/1/3", incident="inc-2", target=Target("node", "n2")), replace(outcome, action_id="inc-2/1/3")),))
    known = read_history([str(tmp_path)])
    assert ([t.node for t in known.faults], [s.node for s in known.sound], known.complete) == (["n1"], ["n2"], False)


def accounts(known: Known, text: str = ONCE) -> list[Account]:
    """The answers, best case and worst."""
    return [account("p", follow(Shadow(parse_policy(text), SITE, assumption, (), None, known), 120)) for assumption in (HELPS, FAILS)]


def test_where_the_history_knows_both_answers_are_one():
    """A reset is known to fail and a replacement to cure."""
    fault = TrueFault("row_remap_failure", "device", "n1", "3", ("train",), T0, math.inf, frozenset(GONE), frozenset({"reset_gpu"}))
    best, worst = accounts(Known((fault,)), REPLACE)
    assert best.actions == worst.actions == {"drain": 2, "reset_gpu": 1, "diagnose": 1, "undrain": 1, "replace": 1, "resume_job": 2}
    assert (best.healthy_nodes, best.unjudged, worst.saved_hours) == (0, 0, best.saved_hours)


def test_a_node_that_was_known_to_be_sound_is_a_healthy_one():
    """Acting there helped nothing, whatever is assumed of the rest."""
    best, worst = accounts(Known((), (Sound("n1", T0, math.inf),)))
    assert (best.healthy, worst.healthy) == ({"drain": 1, "replace": 1}, {"drain": 1, "replace": 1})
    assert best.saved_hours == worst.saved_hours < 0


def test_of_all_else_there_are_two_answers_and_no_word_on_health():
    """The history knows of another node alone; it is said of how many commands nobody knows."""
    groups = accounts(Known((), (Sound("n5", T0, math.inf),)))
    assert [(a.healthy_nodes, a.unjudged) for a in groups] == [(0, 2), (0, 2)]
    assert groups[0].saved_hours > 0 > groups[1].saved_hours
    text = "\n".join(lines([groups], "span"))
    assert "of 2 of the commands to nodes nobody knows whether the node was healthy" in text
    assert "the store's own history" in text


LABELS = """
- {fault: row_remap_failure, node: n1, device: "3", jobs: [train], start: "2027-01-15T08:00:00Z", cures: [replace]}
- {fault: packet_loss, start: "2027-01-15T09:00:00Z", end: "2027-01-15T10:00:00Z", cures: []}
"""


def test_labels_by_hand(tmp_path: Path):
    """All faults of the recording; with their cures they are as good as the fleet's own truth, without them there are two answers."""
    file = tmp_path / "a.labels.yaml"
    file.write_text(LABELS)
    known = read_labels([file])
    assert (known.complete, known.cures, [t.node for t in known.faults]) == (True, True, ["n1", None])
    file.write_text(LABELS.replace(", cures: [replace]", ""))
    known = read_labels([file])
    best, worst = accounts(known)
    assert (known.cures, best.healthy, worst.healthy, best.unjudged) == (False, {}, {}, 0)
    assert best.saved_hours > worst.saved_hours
    file.write_text("[]")
    assert read_labels([file]) == Known((), (), True, True)


@pytest.mark.parametrize("text", ["{}", "[{fault: x}]", "[{start: '2027-01-15T08:00:00Z'}]", "[3]", "[{fault: x, start: noon}]"])
def test_labels_that_cannot_be_read_are_refused(tmp_path: Path, text: str):
    """In one sentence."""
    (tmp_path / "labels.yaml").write_text(text)
    with pytest.raises((BadInput, ConfigError)):
        read_labels([tmp_path / "labels.yaml"])


def test_truth_comes_before_labels_and_labels_before_history(tmp_path: Path):
    """The one who knows more is asked."""
    store(tmp_path, closed())
    options = SimulateOptions((str(tmp_path),))
    assert not known_of(options).complete
    (tmp_path / "labels.yaml").write_text("[]")
    assert (label_paths([str(tmp_path)]), known_of(options).faults) == ([tmp_path / "labels.yaml"], ())
    (tmp_path / "a.truth.jsonl").write_text("")
    (tmp_path / "labels.yaml").write_text("broken")
    assert known_of(options).complete
    assert known_of(replace(options, truth=str(tmp_path / "a.truth.jsonl"))).cures
