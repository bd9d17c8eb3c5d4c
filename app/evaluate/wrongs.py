"""Which incidents were false and which faults were missed, scenario by scenario, so that each can be played again (`--only`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from app.evaluate.facts import Part, Ran
from app.evaluate.match import Found, Word
from core.clock import rfc3339


def wrongs(judged: Iterable[tuple[Ran, Iterable[Found], Iterable[Word]]], counts: Callable[[Found], bool]) -> dict[str, Any]:
    """Rows in order of scenario and time: `false` {scenario, stress, tier, fault, scope, culprit, word, class, opened_at} and `missed`
    {scenario, stress, tier, fault, plugin, culprit, impact, onset_at}. counts: whether a fault counts in recall."""
    false, missed = [], []
    for ran, found, words in sorted(judged, key=lambda one: one[0].id):
        head = {"scenario": ran.id, "stress": ran.stress, "tier": ran.tier}
        false += [{**head, "fault": w.said.fault, "scope": w.said.scope, "culprit": _part(w.said.culprit), "word": w.word,
                   "class": w.said.klass, "opened_at": rfc3339(w.said.opened)}
                  for w in sorted(words, key=lambda w: (w.said.opened, w.said.id)) if w.false]
        missed += [{**head, "fault": f.truth.fault, "plugin": f.truth.plant, "culprit": _part(f.truth.culprit), "impact": f.truth.impact,
                    "onset_at": rfc3339(f.truth.onset)}
                   for f in sorted(found, key=lambda f: (f.truth.onset, f.truth.plant)) if f.by is None and counts(f)]
    return {"false": false, "missed": missed}


def named(part: dict[str, Any] | None) -> str:
    """A part of a row in one word or two."""
    if not part:
        return "nobody"
    words = [part["kind"], part["node"], part["device"], None if part["node"] else part["job"]]
    return " ".join(str(word) for word in words if word is not None)


def _part(part: Part | None) -> dict[str, Any] | None:
    return None if part is None else asdict(part)
