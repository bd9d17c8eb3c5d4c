"""The scorecard as a table to read, and one scenario in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.evaluate import recorded
from app.evaluate.facts import Part, Ran, Truth
from app.evaluate.match import MERGED, match
from app.evaluate.wrongs import named

PLOT_WIDTH = 40
HEAD = ("fault", "n", "recall", "precision", "top-1", "top-3", "p50 s", "p95 s", "inc/f", "false")


def table(card: Mapping[str, Any]) -> Iterator[str]:
    """Lines: settings, the faults, the macro figures, tiers, baselines, slices and what is to be known besides."""
    s = card["settings"]
    yield (f"suite {s['suite']}, first seed {s['first_seed']}: {s['scenarios']} scenarios, {s['cpu_seconds']:.0f} s CPU, "
           f"{s['wall_seconds']:.0f} s; {len(s['detectors'])} detectors, thresholds {s['thresholds']}, code {s['code']}")
    if not s["scenarios"]:
        yield from recorded.lines(card["cases"])
        return
    yield ""
    yield _row(HEAD)
    for name, row in card["faults"].items():
        yield _row((name, row["recall"]["n"], _interval(row["recall"]), _interval(row["precision"]), _value(row["localisation_top1"]),
                    _value(row["localisation_top3"]), _seconds(row, "delay_p50_seconds"), _seconds(row, "delay_p95_seconds"),
                    _number(row["incidents_per_fault"]), row["false"]["count"]))
    yield from _positives(card["faults"])
    yield ""
    yield _row(("macro of", "faults", "recall", "precision", "top-1", "top-3", "p50 s", "p95 s", "inc/f", "false"))
    yield _macro("all tiers", card["macro"])
    for tier, row in card["tiers"].items():
        yield _macro(f"tier {tier}", row)
    for name, row in card["baselines"].items():
        yield _macro(name, row)
    yield from _slices(card)
    yield from _besides(card)
    yield from recorded.lines(card["cases"])


def _positives(faults: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What the suite's figures rest on: the names of which the fewest and the most were counted, and those of which none was."""
    counted = sorted((row["recall"]["n"], name) for name, row in faults.items())
    some, none = [one for one in counted if one[0]], [name for n, name in counted if not n]
    if some:
        yield f"counted positives a fault: at least {some[0][0]} ({some[0][1]}), at most {some[-1][0]} ({some[-1][1]})" + (
            f"; none of {', '.join(none)}" if none else "")


def _row(cells: tuple[object, ...]) -> str:
    widths = (24, 6, 17, 17, 6, 6, 6, 6, 6, 6)
    return "  ".join(str(c).ljust(w) if i == 0 else str(c).rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))


def _macro(name: str, row: Mapping[str, Any]) -> str:
    return _row((name, row["fault_count"], _number(row["recall"]), _number(row["precision"]), _number(row["localisation_top1"]),
                 _number(row["localisation_top3"]), _seconds(row, "delay_p50_seconds"), _seconds(row, "delay_p95_seconds"),
                 _number(row["incidents_per_fault"]), row["false_incidents"]["count"]))


def _slices(card: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    for name, one in card["slices"].items():
        for value, row in one["values"].items():
            yield _macro(f"{name} {value}{' (worst)' if value == one['worst'] and len(one['values']) > 1 else ''}", row)


def _besides(card: Mapping[str, Any]) -> Iterator[str]:
    macro, sure = card["macro"], card["calibration"]
    false = macro["false_incidents"]
    yield ""
    yield (f"false incidents: {false['count']} in {false['node_days']} node-days; per 1,000 node-days "
           f"{_number(false['per_1000_node_days'])}, 95 % upper bound {_number(false['upper_95_per_1000_node_days'])}")
    for klass, row in card["classes"].items():
        yield f"{klass}s: precision {_interval(row['precision'])}, recall {_interval(row['recall'])}, false {row['false']['count']}"
    yield f"worst fault: recall {macro['worst_recall']}, precision {macro['worst_precision']}"
    yield f"shared causes at their scope: {_interval(card['shared_scope']['recall'])}"
    yield f"with another fault in the job: {_interval(card['overlap']['with_another'])}; alone: {_interval(card['overlap']['alone'])}"
    yield "calibration error: " + ", ".join(
        f"{name} {_number(sure[name]['expected_calibration_error'])} (n {sure[name]['n']})" for name in ("confidence", "suspects"))
    for name in ("confidence", "suspects"):
        yield from reliability(name, sure[name]["bins"])
    yield from _delays(card["delays"])
    for name, words in (("all", "all tiers"), ("D", "tier D")):
        yield f"smallest impact with 90 % recall, {words}: {_smallest(card['impact']['smallest'][name])}"
    yield f"precision at field base rates: {card['field']['precision']} (with the upper bound of false ones: {card['field']['precision_low']})"
    yield f"part-minutes unknown: {card['unknown_part_minutes']['share']}"
    yield from _wrong(card.get("wrong", {"false": [], "missed": []}))  # older files have none
    for row in card["errors"]:
        yield f"failed: {row['id']}: {row['error']}"


def _wrong(card: Mapping[str, Any]) -> Iterator[str]:
    """A line for each false incident and each missed fault; those under stress are in the file alone."""
    plain = {name: [row for row in rows if not row["stress"]] for name, rows in card.items()}
    for row in plain["false"]:
        yield f"false: {row['scenario']} {row['tier']} {row['fault']} ({row['word']}) at {named(row['culprit'])}, {row['opened_at']}"
    for row in plain["missed"]:
        size = "stands" if row["impact"] is None else f"costs {row['impact']:.1%}"
        yield f"missed: {row['scenario']} {row['tier']} {row['fault']} [{row['plugin']}] at {named(row['culprit'])}, {size}, {row['onset_at']}"


def _delays(card: Mapping[str, Any]) -> Iterator[str]:
    """A line for each kind of fault, with what is wanted of it."""
    for name, one in card.items():
        yield (f"delay, {name.replace('_', ' ')}: p50 {_limit(one['p50_seconds'])} s, p95 {_limit(one['p95_seconds'])} s "
               f"(wanted {one['wanted_p50_seconds']:.0f} and {one['wanted_p95_seconds']:.0f}), p95 of the found "
               f"{_limit(one['p95_found_seconds'])} s; n {one['n']}, found {one['found']}")


def _limit(seconds: float | None) -> str:
    return "inf" if seconds is None else f"{seconds:.0f}"


def _smallest(one: Mapping[str, Any]) -> str:
    if one["impact"] is None:
        return "none"
    return (f"{one['impact']:.0%}, recall there {_interval(one['recall'])}, n {one['recall']['n']}; "
            f"from there on {_interval(one['from_here'])}, n {one['from_here']['n']}")


def reliability(name: str, bins: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The reliability plot: a line for each bin, `o` where it was said and `x` where it came true between 0 and 1 (`*`: both)."""
    for row in bins:
        said, true = (round(value * PLOT_WIDTH) for value in (row["said"], row["true"]["value"]))
        marks = ["*" if at == said == true else "o" if at == said else "x" if at == true else "." for at in range(PLOT_WIDTH + 1)]
        yield f"  {name:<10}  said {row['said']:.2f}  true {_interval(row['true']):<17}  n {row['true']['n']:>4}  |{''.join(marks)}|"


# --- cells ------------------------------------------------------------------------------------------------------------
def _interval(row: Mapping[str, Any]) -> str:
    return "-" if row["value"] is None else f"{row['value']:.2f} ({row['low']:.2f}-{row['high']:.2f})"


def _value(row: Mapping[str, Any]) -> str:
    return _number(row["value"])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _seconds(row: Mapping[str, Any], key: str) -> str:
    """A miss is infinite; where nothing was counted there is nothing to tell."""
    if row[key] is not None:
        return f"{row[key]:.0f}"
    counted = row.get("recall")
    there = counted["n"] if isinstance(counted, Mapping) else row.get("fault_count")
    return "inf" if there else "-"


# --- one scenario -----------------------------------------------------------------------------------------------------
def details(ran: Ran) -> Iterator[str]:
    """What was planted and what was said, in order of time, with each one's word."""
    yield f"{ran.id}: {ran.kind} {ran.stress} tier {ran.tier}, {ran.nodes} x {ran.type}, every {ran.scrape_seconds} s {ran.error}".strip()
    found, words = match(ran.truths, ran.said, ran.groups)
    start = min((t.at for t in ran.truths), default=0)
    for truth in (t for t in ran.truths if not t.fault):
        yield f"  look-alike {_truth(truth, start)}"
    for one in found:
        yield (f"  {'found' if one.by else 'MISSED'} {_truth(one.truth, start)}"
               + (f": {one.by.id} after {(one.delay or 0) / 1000:.0f} s, {one.count} incident(s)" if one.by else ""))
    for word in words:
        s = word.said
        if word.word != MERGED:
            about = "" if word.truth is None else f" (near {found[word.truth].truth.plant})"
            yield (f"  {word.word.upper() if word.false else word.word}{about}: {s.id} {s.fault} at {(s.opened - start) / 60000:.1f} min, "
                   f"{s.scope} {part_text(s.culprit)} jobs {','.join(s.jobs)} {s.state}, {s.reason}, confidence {_number(s.confidence)}")


def part_text(part: Part | None) -> str:
    """A part in one word."""
    if part is None:
        return "no part"
    rank = "" if part.rank is None else f"(rank {part.rank})"
    return f"{part.kind}:{'/'.join(p for p in (part.node, part.device, part.job if part.kind == 'job' else None) if p)}{rank}"


def _truth(truth: Truth, start: int) -> str:
    impact = "stands" if truth.impact is None else f"{truth.impact:.1%}"
    return (f"{truth.plant} [{truth.fault or 'nothing to do'}] {part_text(truth.culprit)} {(truth.at - start) / 60000:.1f}-"
            f"{(truth.end - start) / 60000:.1f} min, {impact}, jobs {','.join(truth.jobs[:4])}{'' if truth.shown else ', not shown'}")
