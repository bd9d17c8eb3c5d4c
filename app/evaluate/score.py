"""From matched truths and incidents to the scorecard.

Counted in rates: faults that the scenario's tier can show, and that cost the job at least 5 % (or stop it, or cost nothing by
their nature). Smaller ones are in the curve of recall against impact; those that the tier cannot show are listed. An
incident on either is right or false as any other. Macro figures are means over faults, of scenarios without stress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.evaluate import impact
from app.evaluate.chances import COUNTED_IMPACT
from app.evaluate.delays import delays
from app.evaluate.facts import Ran, Said
from app.evaluate.match import (
    ECHO,
    FALSE_WORDS,
    MERGED,
    REPEAT,
    RIGHT,
    UNFOUNDED,
    Found,
    Word,
    match,
    places,
    same_part,
)
from app.evaluate.rates import calibration, field_precision, poisson_upper, quantile, rate
from app.evaluate.wrongs import wrongs
from core.faults import faults
from fleet.telemetry import TIERS

NOTHING = "nothing"
# Slices of which the worst is shown: by name, how a run is named in it.
SLICES: Mapping[str, Callable[[Ran], str]] = {
    "tier": lambda r: r.tier, "scrape_seconds": lambda r: str(r.scrape_seconds), "fleet": lambda r: _size(r.nodes),
    "node_type": lambda r: r.type, "kind": lambda r: r.kind, "stress": lambda r: r.stress or "none",
}


def _size(nodes: int) -> str:
    return "up to 16 nodes" if nodes <= 16 else "17 to 32 nodes" if nodes <= 32 else "more than 32 nodes"


@dataclass(frozen=True, slots=True)
class Judged:
    """A run with what became of it."""

    ran: Ran
    found: Sequence[Found]
    words: Sequence[Word]


@dataclass(slots=True)
class Tally:
    """Counts of one fault, tier or slice; `add` takes in a run's part of it."""

    found: list[Found] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    node_days: float = 0.0
    cluster_days: float = 0.0

    @property
    def counted(self) -> list[Found]:
        return [f for f in self.found if counts(f)]


def counts(found: Found) -> bool:
    """Whether a truth counts in recall."""
    truth = found.truth
    return truth.shown and (truth.impact is None or truth.impact == 0.0 or truth.impact >= COUNTED_IMPACT)


def judge(runs: Iterable[Ran], what: Callable[[Ran], Sequence[Said]] = lambda r: r.said) -> list[Judged]:
    """All runs matched. what: incidents, or a baseline's alerts."""
    return [Judged(ran, *match(ran.truths, what(ran), ran.groups)) for ran in runs if not ran.error]


def scorecard(runs: Sequence[Ran], base: Mapping[str, float]) -> dict[str, Any]:
    """The whole card. base: faults a node-hour in the field, by fault."""
    judged = judge(runs)
    plain = [j for j in judged if not j.ran.stress]
    by_fault = {name: tally(plain, name) for name in faults()}
    minutes = sum(r.unknown + r.known for r in runs)
    return {
        "macro": macro(plain), "faults": {name: fault_row(one) for name, one in by_fault.items()},
        "tiers": {tier: macro([j for j in plain if j.ran.tier == tier]) for tier in TIERS},
        "baselines": {"silent": macro(_silent(plain)), "static_rules": _baseline([j.ran for j in plain])},
        "slices": _slices(judged), "classes": {klass: class_row(plain, klass) for klass in ("page", "ticket")},
        "shared_scope": _shared(plain), "overlap": _overlap(plain),
        "delays": delays((j.ran.tier, f) for j in plain for f in j.found if counts(f)),
        "confusion": confusion(plain), "calibration": calibrations(plain), "impact": impacts(plain),
        "not_shown": _not_shown(plain), "field": in_the_field(by_fault, base, sum(j.ran.node_days for j in plain)),
        "unknown_part_minutes": {"share": round(sum(r.unknown for r in runs) / minutes, 5) if minutes else None,
                                 "part_minutes": round(minutes)},
        "wrong": wrongs(((j.ran, j.found, j.words) for j in judged), counts),
        "errors": [{"id": r.id, "error": r.error} for r in runs if r.error],
    }


def tally(judged: Iterable[Judged], fault: str | None = None) -> Tally:
    """All of the runs, or what is of one fault: its truths, and the incidents that bear its name."""
    out = Tally()
    for one in judged:
        out.node_days += one.ran.node_days
        out.cluster_days += one.ran.node_days / one.ran.nodes
        out.found += [f for f in one.found if fault is None or f.truth.fault == fault]
        out.words += [w for w in one.words if w.word != MERGED and (fault is None or w.said.fault == fault)]
    return out


def _precision(words: Sequence[Word], strict: bool = False) -> dict[str, Any]:
    """Right incidents among those that are right or false. strict: echoes and repeats are false too."""
    right = sum(w.word == RIGHT for w in words)
    wrong = sum(w.false or (strict and w.word in (ECHO, REPEAT)) for w in words)
    return rate(right, right + wrong)


def fault_row(one: Tally) -> dict[str, Any]:
    """One fault's figures."""
    counted, placed = one.counted, [f for f in one.counted if f.top1 is not None]
    delays = [None if f.delay is None else f.delay / 1000 for f in counted]
    hit = [f for f in one.found if f.by is not None]
    kinds = Counter(w.word for w in one.words)
    return {
        "precision": _precision(one.words), "precision_strict": _precision(one.words, True),
        "recall": rate(sum(f.by is not None for f in counted), len(counted)),
        "delay_p50_seconds": quantile(delays, 0.5), "delay_p95_seconds": quantile(delays, 0.95),
        "localisation_top1": rate(sum(f.top1 or 0.0 for f in placed), len(placed)),
        "localisation_top3": rate(sum(f.top3 or 0.0 for f in placed), len(placed)),
        "incidents_per_fault": None if not hit else round(sum(f.count for f in hit) / len(hit), 3),
        "incidents": dict(sorted(kinds.items())), "false": false_row(one),
        "unfounded_scopes": dict(sorted(Counter(w.said.scope for w in one.words if w.word == UNFOUNDED).items())),
        "small": rate(sum(f.by is not None for f in one.found if f.truth.shown and not counts(f)),
                      sum(f.truth.shown and not counts(f) for f in one.found)),
        "plants": _plants(counted),
    }


def _plants(counted: Sequence[Found]) -> dict[str, Any]:
    names = sorted({f.truth.plant for f in counted})
    return {name: rate(sum(f.by is not None for f in counted if f.truth.plant == name),
                       sum(f.truth.plant == name for f in counted)) for name in names}


def false_row(one: Tally) -> dict[str, Any]:
    """False incidents with the node-days in which they came and the 95 % upper bound, both also per 1,000. cluster_days: days of
    whole scenarios, which is what incidents of a job come by."""
    count = sum(w.false for w in one.words)
    upper, per = poisson_upper(count), 1000 / one.node_days if one.node_days else None
    return {"count": count, "node_days": round(one.node_days, 2), "cluster_days": round(one.cluster_days, 3), "upper_95": round(upper, 2),
            "per_1000_node_days": None if per is None else round(count * per, 2),
            "upper_95_per_1000_node_days": None if per is None else round(upper * per, 2)}


def macro(judged: Sequence[Judged]) -> dict[str, Any]:
    """Means over faults: of recall and places over the faults that were planted, of precision over those that were planted or
    said. Delays are over all counted truths, a miss is infinite (None). The worst fault stands beside the mean."""
    rows = {name: fault_row(tally(judged, name)) for name in faults()}
    whole, alone = fault_row(tally(judged)), [name for name, row in rows.items() if row["recall"]["n"]]
    said = [name for name, row in rows.items() if row["precision"]["n"]]
    found = [f for j in judged for f in j.found if f.by is not None]

    def mean(key: str, names: Sequence[str]) -> float | None:
        values = [rows[n][key]["value"] for n in names if rows[n][key]["value"] is not None]
        return round(sum(values) / len(values), 4) if values else None

    def worst(key: str, names: Sequence[str]) -> list[Any] | None:
        values = [(rows[n][key]["value"], n) for n in names if rows[n][key]["value"] is not None]
        return [min(values)[1], min(values)[0]] if values else None

    return {
        "precision": mean("precision", said), "recall": mean("recall", alone),
        "localisation_top1": mean("localisation_top1", alone), "localisation_top3": mean("localisation_top3", alone),
        "false_incidents_per_1000_node_days": whole["false"]["per_1000_node_days"],
        "node_days": whole["false"]["node_days"], "delay_p50_seconds": whole["delay_p50_seconds"],
        "delay_p95_seconds": whole["delay_p95_seconds"], "false_incidents": whole["false"],
        "incidents_per_fault": None if not found else round(sum(f.count for f in found) / len(found), 3),
        "worst_precision": worst("precision", said), "worst_recall": worst("recall", alone), "fault_count": len(alone),
        "pooled": {key: whole[key] for key in ("precision", "precision_strict", "recall", "localisation_top1", "localisation_top3")},
    }


# --- beside the mean --------------------------------------------------------------------------------------------------
def _silent(judged: Sequence[Judged]) -> list[Judged]:
    return judge([j.ran for j in judged], lambda _: ())


def _baseline(runs: Sequence[Ran]) -> dict[str, Any]:
    judged = judge(runs, lambda r: r.alerts)
    rules = Counter((w.said.reason, "false" if w.false else w.word) for j in judged for w in j.words)
    return {**macro(judged), "faults": {name: {key: row[key] for key in ("precision", "recall", "false")}
                                        for name in faults() if (row := fault_row(tally(judged, name)))},
            "rules": {name: {word: n for (rule, word), n in sorted(rules.items()) if rule == name} for name, _ in sorted(rules)}}


def _slices(judged: Sequence[Judged]) -> dict[str, Any]:
    """Each slice's macro figures and its worst value. Stress is a slice; the others leave it out."""
    out: dict[str, Any] = {}
    for name, of in SLICES.items():
        inside = judged if name == "stress" else [j for j in judged if not j.ran.stress]
        values = sorted({of(j.ran) for j in inside})
        rows = {value: macro([j for j in inside if of(j.ran) == value]) for value in values}
        worst = {key: min(((row[key], value) for value, row in rows.items() if row[key] is not None), default=(None, None))[1]
                 for key in ("recall", "precision")}
        out[name] = {"values": rows, "worst": worst["recall"], "worst_precision": worst["precision"]}
    return out


def class_row(judged: Sequence[Judged], klass: str) -> dict[str, Any]:
    """Pages and tickets apart."""
    one = Tally(node_days=sum(j.ran.node_days for j in judged))
    for j in judged:
        one.found += [f for f in j.found if faults()[f.truth.fault].klass == klass]
        one.words += [w for w in j.words if w.word != MERGED and w.said.klass == klass]
    row = fault_row(one)
    return {key: row[key] for key in ("precision", "recall", "delay_p50_seconds", "delay_p95_seconds", "false", "incidents")}


def _shared(judged: Sequence[Judged]) -> dict[str, Any]:
    """Shared causes: found at their scope, by plug-in."""
    found = [f for j in judged for f in j.found if f.truth.shared and counts(f)]
    return {"recall": rate(sum(f.by is not None for f in found), len(found)), "plants": _plants(found)}


def _overlap(judged: Sequence[Judged]) -> dict[str, Any]:
    """Faults that had another one in their job at the same time, and those that were alone."""
    out = {}
    for name, wanted in (("with_another", True), ("alone", False)):
        found = [f for j in judged for f in j.found if counts(f) and f.truth.overlaps == wanted]
        out[name] = rate(sum(f.by is not None for f in found), len(found))
    return out


def confusion(judged: Sequence[Judged]) -> dict[str, dict[str, int]]:
    """By true fault, what the incidents near it were called: itself, another, or nothing; `nothing` is also a row, of
    incidents where nothing was planted. Echoes are marked."""
    out: dict[str, Counter[str]] = {}
    for j in judged:
        for found in (f for f in j.found if counts(f)):
            out.setdefault(found.truth.fault, Counter())[found.truth.fault if found.by is not None else NOTHING] += 1
        kinds = [f.truth.fault for f in j.found]
        for word in j.words:
            if word.word == ECHO and word.truth is not None:
                out.setdefault(kinds[word.truth], Counter())[f"{word.said.fault} (echo)"] += 1
            elif word.false:
                row = NOTHING if word.truth is None else kinds[word.truth]
                out.setdefault(row, Counter())[f"{word.said.fault} ({word.word})"] += 1
    return {name: dict(sorted(row.items())) for name, row in sorted(out.items())}


def calibrations(judged: Sequence[Judged]) -> dict[str, Any]:
    """Of the incidents' confidence (came true: they are right, and by a half where they cannot tell two parts apart) and of suspects'
    probability (came true: it is the part)."""
    sure: list[tuple[float, float]] = []
    suspects: list[tuple[float, float]] = []
    for j in judged:
        for word in j.words:
            if word.word == RIGHT and word.truth is not None:
                sure.append((word.said.confidence or 0.0, places(j.found[word.truth].truth, word.said, j.ran.groups)[0]))
            elif word.false:
                sure.append((word.said.confidence or 0.0, 0.0))
            truth = None if word.truth is None else j.found[word.truth].truth
            if truth is None or truth.fault != word.said.fault:
                continue
            suspects += [(chance, float(same_part(truth, part, word.said, j.ran.groups))) for part, chance in word.said.suspects]
    return {"confidence": calibration(sure), "suspects": calibration(suspects)}


def impacts(judged: Sequence[Judged]) -> dict[str, Any]:
    """Recall against impact on the job, of faults that have a size, over all tiers that show them and for tier D."""
    shown = [(j.ran.tier, f) for j in judged for f in j.found if f.truth.shown and f.truth.impact]
    every, best = impact.bands([f for _, f in shown]), impact.bands([f for tier, f in shown if tier == "D"])
    least, least_best = impact.smallest(every), impact.smallest(best)
    return {"all": every, "D": best, "smallest_with_90_percent_recall": least["impact"],
            "smallest_with_90_percent_recall_D": least_best["impact"], "smallest": {"all": least, "D": least_best}}


def _not_shown(judged: Sequence[Judged]) -> dict[str, int]:
    """What was planted and cannot be seen, by plug-in and tier or as what never stood for long; nobody is blamed or praised for it."""
    return dict(sorted(Counter(f"{f.truth.plant} {'in short episodes' if f.truth.brief else f'at tier {j.ran.tier}'}"
                               for j in judged for f in j.found if not f.truth.shown).items()))


def in_the_field(by_fault: Mapping[str, Tally], base: Mapping[str, float], node_days: float) -> dict[str, Any]:
    """Precision where faults come as rarely as published: as measured, and with the upper bound of false alarms."""
    rows: dict[str, Any] = {}
    found_all, hours = 0.0, 24 * node_days
    for name, one in by_fault.items():
        counted, count = one.counted, sum(w.word in FALSE_WORDS for w in one.words)
        if not counted or name not in base:
            continue
        found = base[name] * sum(f.by is not None for f in counted) / len(counted)
        found_all += found
        rows[name] = {"faults_per_1000_node_days": round(24_000 * base[name], 4),
                      "precision": field_precision(found, count / hours) if hours else None}
    count = sum(w.false for one in by_fault.values() for w in one.words)
    return {"source": "fleet/rates.yaml: Llama 3 and Greyhound", "faults": rows,
            "precision": field_precision(found_all, count / hours) if hours else None,
            "precision_low": field_precision(found_all, poisson_upper(count) / hours) if hours else None}
