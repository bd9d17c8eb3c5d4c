"""`greylag evaluate --goodput --scorecard FILE`: reads the scorecard, runs the months, prints and keeps what they say."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from app.evaluate.plan import TUNING_SEEDS
from app.goodput.arms import NOTICED_MS, PERSON_MS, REQUEUE_MS
from app.goodput.chances import OF_A_JOB, Chances, read_chances
from app.goodput.errands import ARGS
from app.goodput.study import TIMES, Span, compare, limits_for, month
from app.goodput.whole import NODES as WHOLE_NODES
from app.goodput.whole import agreement, compare_whole
from core.errors import BadInput
from fleet.checkpoints import SPREAD, tier_named
from fleet.jobs import shape_of
from fleet.rates import groups
from fleet.recovery import WAYS
from fleet.times import all_times
from remediation.policy import Policy, read_policy

SIZES = (64, 512, 2048)


@dataclass(frozen=True, slots=True)
class GoodputOptions:
    """scorecard: what `greylag evaluate --out` wrote. nodes: sizes of the fleet. seeds: how many months of each size. whole: node-days
    through the whole path in place of the months, kept in `out` as they end."""

    scorecard: str | None
    policy: str | None = None
    nodes: Sequence[int] = SIZES
    days: float = 30.0
    seeds: int = 1
    first_seed: int | None = None
    out: str | None = None
    whole: float = 0.0


def evaluate_goodput(options: GoodputOptions, tell: Callable[[str], None], show: Callable[[str], None]) -> int:
    """Runs it. tell: progress; show: the answer. Raises BadInput."""
    if options.scorecard is None:
        raise BadInput("evaluate", "--goodput", "no scorecard",
                       "delays, misses and false alarms are drawn from one: --scorecard FILE, as `greylag evaluate --out FILE` writes it")
    if not 0 < options.days <= 366 or any(not 8 <= n <= 4096 for n in options.nodes) or not 1 <= options.seeds <= 1000 \
            or not 0 <= options.whole <= 10_000:
        raise BadInput("evaluate", "--goodput", (options.nodes, options.days, options.seeds, options.whole),
                       "8 to 4096 nodes, up to 366 days, 1 to 1000 seeds, up to 10000 node-days of the whole path")
    file = options.policy or str(files("sample_data").joinpath("policies", "act.yaml"))
    chances, policy = read_chances(options.scorecard), read_policy(file)
    first = TUNING_SEEDS if options.first_seed is None else options.first_seed
    spans = [Span(n, options.days, first + s) for n in options.nodes for s in range(options.seeds)]
    sizes = [WHOLE_NODES] if options.whole > 0 else sorted(set(options.nodes))
    for line in heading(chances, options.policy or "act.yaml as shipped", policy, sizes):
        show(line)
    if options.whole > 0:
        return _whole(options, chances, policy, first, tell, show)
    rows = []
    for row in compare(spans, chances, policy, tell):
        rows.append(row)
        show(told(row))
    if options.out:
        card = {"scorecard": {"file": chances.file, "sha256": chances.sha256, "suite": chances.suite, "first_seed": chances.seed,
                              "node_days": chances.node_days},
                "policy": options.policy or "act.yaml", "rows": rows, "assumptions": assumptions(), "times": durations(),
                "limits": {str(n): asdict(limits_for(policy, n).limits) for n in sizes}}
        Path(options.out).write_text(json.dumps(card, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def _whole(options: GoodputOptions, chances: Chances, policy: Policy, first: int, tell: Callable[[str], None],
           show: Callable[[str], None]) -> int:
    """The stretches through the whole path; 1 where they do not agree with the months' model."""
    rows = []
    for row in compare_whole(options.whole, first, chances, policy, options.out, tell):
        rows.append(row)
        drawn = sorted(row["drawn"])
        show(f"{row['nodes']:>5} nodes {row['days']:g} d seed {row['seed']}: whole path {row['goodput_ratio']:.2%} ({row['faults']} faults, "
             f"{row['incidents']} incidents, healthy nodes acted on {row['healthy_nodes_acted_on']}, {row['cpu_seconds']:g} s CPU); "
             f"from event to event {drawn[0]:.2%} to {drawn[-1]:.2%}")
    end = agreement(rows)
    show(f"{end['node_days']:g} node-days through the whole path: goodput {end['goodput_ratio']:.2%}, from event to event {end['low']:.2%} to "
         f"{end['high']:.2%}: {'they agree' if end['agrees'] else 'THEY DO NOT AGREE'}; healthy nodes acted on {end['healthy_nodes_acted_on']}")
    return 0 if end["agrees"] else 1


def heading(chances: Chances, name: str, policy: Policy, sizes: Sequence[int]) -> list[str]:
    """What the months rest on. name: of the policy; sizes: of the fleet."""
    return [f"scorecard {chances.file} (sha256 {chances.sha256[:16]}): suite {chances.suite}, first seed {chances.seed}, "
            f"{chances.node_days:g} node-days; policy {name}",
            *(f"  limits on {n} nodes: {_limits(policy, n)}" for n in sizes),
            "  false incidents a day: " + (", ".join(f"{fault} {rate:.3g} of {'a job' if fault in OF_A_JOB else 'a node'}"
                                                   for fault, rate in sorted(chances.false.items())) or "none came")
            + " (unfounded ones, mean of the posterior with Jeffreys' prior over all of a sort)",
            *(f"  {name}: {value}" for name, value in assumptions().items()),
            *(f"  time {name}: {_span(row['seconds'])} ({row['source']})" for name, row in durations().items())]


def _limits(policy: Policy, nodes: int) -> str:
    """The limits that hold on so many nodes, each that is not the file's with what the file says."""
    own, here = asdict(policy.limits), asdict(limits_for(policy, nodes).limits)
    return ", ".join(f"{key} {value:g}" + (f" ({own[key]:g} in the policy)" if value != own[key] else "") for key, value in here.items())


def assumptions() -> dict[str, str]:
    """Rates with their sources, and who does what when."""
    return {
        **{f"rate {name}": group.source for name, group in groups().items()},
        "people": f"start a failed job after {PERSON_MS / 60000:g} minutes, find a slow part that stays after {NOTICED_MS / 3.6e6:g} hours (our reading)",
        "restart": f"the scheduler starts a failed job after {REQUEUE_MS / 60000:g} minutes without the nodes that it died of; slow parts as people find them",
        "oracle": "knows each fault, its cost and its duration at its onset, and acts at once or at the next checkpoint where that costs less; "
                  "changes all slow nodes in a stop",
        "greylag": f"the script of `restart` and its people go on beside it; a page that it hands to a person is answered after {PERSON_MS / 60000:g} minutes",
    }


def durations() -> dict[str, dict[str, Any]]:
    """How long all that the months draw takes, in seconds [least, most], and where each number is from (`fleet/times.yaml`)."""
    own, shape = all_times()[TIMES], shape_of("training", month(Span(8, 0.01, 0)).jobs[0].shape)
    tier, way = tier_named(shape.checkpoint_tier), WAYS[str(ARGS["resume_job"]["mode"])]
    load = way.loads * shape.checkpoint_bytes_per_node / tier.read
    spans = {**own.seconds, "launch": way.launch, "rendezvous": (way.rendezvous, way.rendezvous),
             "load": (load * SPREAD[0], load * SPREAD[1]), "save": shape.checkpoint_seconds,
             **{name: (ms / 1000, ms / 1000) for name, ms in (("requeue", REQUEUE_MS), ("person", PERSON_MS), ("noticed", NOTICED_MS))}}
    return {name: {"seconds": [round(one, 1) for one in span], "source": own.sources[name]} for name, span in spans.items()}


def _span(seconds: Sequence[float]) -> str:
    low, high = seconds
    return f"{low:g} s" if low == high else f"{low:g}-{high:g} s"


def _back(row: Mapping[str, Any]) -> str:
    """How soon jobs made steps again after a spare took a node's place."""
    if not row.get("replaced"):
        return ""
    return (f"; {row['replaced']} replaced by a spare, the job's first step a median of {row['back_seconds_median']} s after the incident "
            f"was confirmed, {row['back_attempt_seconds_median']} s after its attempt began")


def told(row: Mapping[str, Any]) -> str:
    """A row as a line."""
    if "arm" in row:
        shares = ", ".join(f"{k} {v:.2%}" for k, v in sorted(row["shares"].items(), key=lambda kv: -kv[1])[1:6])
        more = "" if "found" not in row else (f"; found {row['found']}, missed {row['missed']}, healthy nodes acted on "
                                              f"{row['healthy_nodes_acted_on']}, {row['repairs']} repairs, median "
                                              f"{row['repair_seconds_median']} s" + _back(row))
        return (f"{row['nodes']:>5} nodes {row['days']:g} d seed {row['seed']} {row['arm']:>8}: goodput {row['goodput_ratio']:.2%} "
                f"({shares}), {row['cpu_seconds']:g} s CPU{more}")
    closed = "no gap" if row["gap_closed"] is None else f"{row['gap_closed']:.2f} of the gap of {row['gap']:.2%} closed"
    if row.get("gap_closed_95"):
        closed += " (95 % interval over months {:.2f} to {:.2f})".format(*row["gap_closed_95"])
    return (f"{row['nodes']:>5} nodes, {row['seeds']} months: {closed}; " + ", ".join(f"{a} {v:.2%}" for a, v in row["goodput_ratio"].items())
            + f"; healthy nodes acted on {row['healthy_nodes_acted_on']} in {row['node_days']:g} node-days "
              f"(95 % upper bound {row['healthy_upper_95_per_1000_node_days']:g} per 1,000)")
