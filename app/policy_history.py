"""What a store's own action history says of its incidents: which faults were there, what ended them, and which nodes were sound.

Three witnesses, none of them whole: attempts whose proof says that they cured or failed, diagnoses that confirmed or refuted,
and people who marked an incident as wrong. Of all other incidents nothing is known. What was done stays in the recording:
an incident that Greylag ended ends there under each policy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from app.policy_truth import Known, Sound, TrueFault
from app.stored import open_stored, split_stores
from core.types import Action, Incident, Outcome
from pipeline.store.duck import DuckStore
from remediation.cures import strongest
from remediation.diagnose import CONFIRMED, OTHER, REFUTED
from remediation.kinds import NODE_PARTS

MOST_INCIDENTS = 100_000
Proof = tuple[str, frozenset[str]]  # (result, kinds of the attempt)


def read_history(paths: Sequence[str]) -> Known:
    """What the stores among the paths know. Raises BadInput, GreylagError."""
    faults: list[TrueFault] = []
    sound: list[Sound] = []
    for path in dict.fromkeys(split_stores(paths)[0]):
        store = open_stored(Path(path))
        try:
            found = history_of(store)
        finally:
            store.close()
        faults += found.faults
        sound += found.sound
    return Known(tuple(faults), tuple(sound), complete=False)


def history_of(store: DuckStore) -> Known:
    """What one store knows."""
    proofs: dict[str, list[Proof]] = {}
    for note in store.notes():
        if note.event == "proof":
            body = json.loads(note.body)
            proofs.setdefault(note.incident, []).append((str(body.get("result")), frozenset(map(str, body.get("kinds") or ()))))
    tests: dict[str, list[tuple[Action, Outcome]]] = {}
    for action, outcome in store.diagnoses():
        tests.setdefault(action.incident, []).append((action, outcome))
    faults, sound = [], []
    for one in store.incident_records(limit=MOST_INCIDENTS):
        fault, node = told(one, proofs.get(one.id, ()), tests.get(one.id, ()))
        faults += [fault] if fault is not None else []
        sound += [node] if node is not None else []
    return Known(tuple(faults), tuple(sound), complete=False)


def told(one: Incident, proofs: Sequence[Proof], tests: Sequence[tuple[Action, Outcome]]) -> tuple[TrueFault | None, Sound | None]:
    """(the fault that was there, the node that was sound), each None where nothing says so."""
    culprit = one.culprit
    node = culprit.node if culprit is not None and culprit.kind in NODE_PARTS else None
    end = float(one.resolved_at) if one.resolved_at is not None else math.inf
    if one.state == "merged":
        return None, None
    if one.reason == "marked_wrong":
        return None, Sound(node, one.onset_at, float(one.updated_at)) if node else None
    cured = {kind for result, kinds in proofs if result == "cured" and (kind := strongest(sorted(kinds))) is not None}
    failed = {kind for result, kinds in proofs if result == "failed" and (kind := strongest(sorted(kinds))) is not None}
    found = any(o.reason in (CONFIRMED, OTHER) for _, o in tests)
    # A test that passes after a reset says that the reset helped; only one before any cure says that nothing was there.
    clean = any(o.reason == REFUTED and a.args.get("after") is None for a, o in tests)
    if cured or found:
        kinds = cured | ({"replace", "exclude_node"} if node else set())  # without the node the job is rid of it
        return TrueFault(one.fault, one.scope, node, culprit.device if culprit is not None else None, one.jobs, one.onset_at, end,
                         frozenset(kinds - failed), frozenset(failed)), None
    return None, Sound(node, one.onset_at, end) if node and clean else None
