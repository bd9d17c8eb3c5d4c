"""Which scenarios a suite is made of: faults packed onto jobs and nodes of small fleets, so that a CPU second tells much.

Three kinds of scenario. local: faults of parts, nodes and jobs; each job has at most one fault at a time that costs its step
(lane J) and one that does not (lane H, on another node), in two periods one after the other. No fault's name stands in
a period more often than `_most` allows: equal faults close together would rightly be one shared incident. wide: what covers many nodes, one after the
other. calm: look-alikes only. stress: local ones with twice the noise, a long scrape interval or series missing; they
count in their slices, never in the macro figures.
The same suite and first seed give the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from app.evaluate.chances import COUNTED_IMPACT, counting, enough, harms, large, sized, stands
from core.protocols import FaultPlugin
from fleet.build import all_plugins
from fleet.hardware import DEFAULT_KIND, NODE_TYPES, NodeType
from fleet.jobs import SHAPES
from fleet.scenario import Entry, FleetSpec, JobSpec, Scenario, duration_text, node_names, seconds_of
from fleet.telemetry import TIERS

STREAM = 8201
TUNING_SEEDS = 10_000
# A period: a fault begins in its first minutes, lasts, and there is time for the job to come back before the next.
WARM_MINUTES, PERIOD_MINUTES, CALM_MINUTES = 5.0, 17.0, 9.0
ONSET_MINUTES, LASTS_MINUTES = (0.5, 2.5), (10.0, 12.0)
# What covers all nodes and stops no job shows within minutes and leaves nothing behind: it need not last as long, and as much later comes the next.
BRIEF_PERIOD_MINUTES, BRIEF_LASTS_MINUTES = 12.0, (6.0, 7.5)
# What stays from its onset in the first period to the end of a local scenario lasts so long.
STAYS_MINUTES = (2 * PERIOD_MINUTES - ONSET_MINUTES[1], 2 * PERIOD_MINUTES - ONSET_MINUTES[0])
WIDE_IN_TURN, MIXED_IN_TURN = 6, 3
JOB_NODES = 3
# Many jobs on one fleet cost little more than few, and each has its own faults; more than this, and names run out.
FEWEST_JOBS, MOST_JOBS = 4, 16
SERVERS, SERVER_NODES = 2, 2
# A job that hung is killed after ten minutes, starts again after three and then loads: what makes it slow next comes so much later
# and stays, for a run that has no past cannot be seen to become slower.
AFTER_STOP_MINUTES = 3.5
# Of some drafts the one with the most faults for its cost is taken. A tick costs as much as so many nodes before it has any.
TRIES, SIZES, EMPTY_COSTS_NODES = 12, (4, 5, 6, 8, 10, 12, 14, 16), 14
# With fewer faults left than this the tier is what takes most of them: a scenario for one fault costs a third of a full one.
FEW_LEFT = 40
WIDE_PLACES = ("switch", "spine", "rack", "pdu", "cooling", "storage", "label", "fleet")
# What needs longer than a period to show: checkpoints are minutes apart, a crash loop needs three runs, a disk fills, and a small
# flap comes every five minutes (one is none: it counts from the third on).
SLOW = frozenset({"checkpoint_stale", "job_crash_loop", "silent_corruption", "gpu_memory_leaked", "disk_full", "clock_skew", "link_flap"})
# What is planted and counted in no recall: who computes wrong shows only where the trainer checks each rank's own results (from
# tier B on, in the logs of Megatron's kind), and only once it has found NaN twice. It must raise no false incident.
NEVER_SHOWN = frozenset({"silent_corruption"})
# What a fabric or a vendor tells of at no tier, by plug-in, and why: it counts in no recall, and in no health either.
NOT_SHOWN_ON: Mapping[tuple[str, str], str] = {
    ("gpu_slow", "neuron"): "neuron-monitor tells no device's clock or activity: by all that is told the rank is a straggler",
    ("leaf_slow", "efa"): "EFA counts no marks and no waits, and all devices of an instance hang on one leaf: they slow alike",
    ("network_slow_fleet", "efa"): "EFA counts no marks and no waits, and all devices slow alike",
    ("spine_path_lost", "efa"): "the fabric sprays: flows find the other paths within a minute, and are well",
    ("spine_path_lost", "roce"): "the switches hash each flow onto a path and tell no host which: no page of a node knows its spine",
    ("spine_path_lost", "infiniband"): "the subnet manager sets the paths and tells no host which: no page of a node knows its spine",
}
# A run that diverged stays so until it starts from an older state: another fault of its loss could not be told from that one, and when
# that is over the first is still there, and is rightly told of again.
STAYS, OF_THE_LOSS = frozenset({"loss_divergence"}), frozenset({"loss_spike", "nonfinite_loss"})
# Memory that somebody holds beside a running job may be a second program's; it is told when the job has ended.
ENDS_ITS_RUN, END_AFTER_SECONDS = "gpu_memory_leaked", (30.0, 120.0)
ONE_AT_A_TIME = frozenset({"packet_loss", "link_flap", "link_down", "link_slow"})
# What nodes can share by rack, feed or loop: in a small fleet two such nodes are most of what hangs on one, and are to be named so.
FED_TOGETHER, FEW_NODES = frozenset({"thermal_throttle", "power_brake", "power_cap", "gpu_lost", "target_down"}), 16
# Two nodes that come to one other value within minutes are a rollout that begins, and are to be named so: of these, one of each plug-in.
ROLLS_OUT = frozenset({"config_drift"})
# Calm on a fleet of many nodes costs half as much a node-day. Each job has a row of look-alikes of its own, and the fleet one beside; two
# of these at once (everything slow, and much traffic) would be no calm.
GREAT_JOBS, GREAT_JOB_NODES, WIDE_APART, WIDE_LIKE_MINUTES = 4, 32, 2, 15.0
TIER_WEIGHTS = {"A": 0.2, "B": 0.5, "C": 0.2, "D": 0.1}
TYPE_WEIGHT = 0.85      # of the usual node; the others share the rest
# As long as there is something left that only the richest tier shows, so many more scenarios have it.
RICH_SHARE = 0.25
RESTART = "3m"
STRESSES = ("noise", "missing", "scrape")


@dataclass(frozen=True, slots=True)
class Suite:
    """positives: planted ones of each fault's name that are large enough to count. spare: so many more of those names of which some
    may not count, that the promised number does (`chances.enough`). wide: of each plug-in that covers many nodes, where its fault has local
    ones too. small: share of positives in addition that are below 5 %. fine: so many more of those of each fault's name, all of
    which the richest telemetry watches: what it can just see is a figure of its own. calm, stress: how many such scenarios (stress: of
    each kind). likes: look-alikes in a calm one. great: calm ones of large fleets. repeat: how often the whole is done, with other seeds."""

    positives: int
    wide: int
    small: float
    calm: int
    stress: int
    likes: int = 6
    repeat: int = 1
    fine: int = 0
    spare: bool = False
    great: int = 0


SUITES: dict[str, Suite] = {
    "quick": Suite(1, 0, 0.0, 1, 0, 3),
    "standard": Suite(20, 1, 0.05, 4, 1, fine=3, spare=True),
    "full": Suite(40, 12, 0.4, 8, 8, 6, 4, great=130),
}


@dataclass(frozen=True, slots=True)
class Planned:
    """A scenario with what is done to its data. stress: of STRESSES, "" = none. missing: share of series left out."""

    id: str
    kind: str
    scenario: Scenario
    stress: str = ""
    missing: float = 0.0

    @property
    def minutes(self) -> float:
        return (self.scenario.end_ms - self.scenario.start_ms) / 60_000


@dataclass(frozen=True, slots=True)
class Item:
    """A fault to be planted: a plug-in, and whether it is to be a small one."""

    plant: str
    small: bool = False


@dataclass(slots=True)
class _Draft:
    """A local scenario being filled. names: how often each fault's name stands in each period. entries: what happens."""

    kind: NodeType
    tier: str
    jobs: int
    rng: np.random.Generator
    names: list[Counter[str]] = field(default_factory=lambda: [Counter(), Counter()])
    entries: list[Entry] = field(default_factory=list)


def plan_suite(name: str, first_seed: int) -> list[Planned]:
    """All scenarios of a suite, each with its own seed from `first_seed` on."""
    suite, plugins = SUITES[name], all_plugins()
    out: list[Planned] = []
    for turn in range(suite.repeat):
        rng = np.random.default_rng([first_seed, STREAM, turn])
        drafts = [*_local(suite, plugins, rng), *_wide(suite, plugins, rng), *_calm(suite, plugins, rng),
                  *_stressed(suite, plugins, rng), *_fine(suite, plugins, rng), *_great(suite, plugins, rng)]
        for kind, stress, scenario, missing in drafts:
            seed = first_seed + len(out)
            named = f"{name}-{first_seed}-{len(out)}"
            out.append(Planned(named, kind, _seeded(scenario, named, seed), stress, missing))
    # The longest and dearest first: at the end no process waits long for the other.
    return sorted(out, key=lambda p: (-p.scenario.fleet.nodes * p.minutes, p.scenario.seed)) if suite.repeat == 1 else out


def _seeded(scenario: Scenario, name: str, seed: int) -> Scenario:
    return Scenario(name, scenario.fleet, scenario.jobs, scenario.schedule, None, seed, scenario.start, scenario.duration)


# --- what is to be planted -------------------------------------------------------------------------------------------
def is_wide(plugin: FaultPlugin) -> bool:
    """Whether it covers more than one node and one job."""
    return plugin.place in WIDE_PLACES


def shows(plugin: FaultPlugin, tier: str, fabric: str, vendor: str = "nvidia") -> bool:
    """Whether a tier's telemetry of nodes on that fabric, with accelerators of that vendor, tells of it at all."""
    untold = not {(plugin.name, fabric), (plugin.name, vendor)}.isdisjoint(NOT_SHOWN_ON)
    return plugin.tier <= tier and plugin.name not in NEVER_SHOWN and not untold


def _by_name(plugins: Mapping[str, FaultPlugin], wide: bool) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for plugin in sorted(plugins.values(), key=lambda p: p.name):
        if plugin.fault is not None and is_wide(plugin) == wide:
            out.setdefault(plugin.fault, []).append(plugin.name)
    return out


def _large(suite: Suite, plants: Sequence[str], plugins: Mapping[str, FaultPlugin], span: tuple[float, float]) -> int:
    """How many large ones of a fault's name are planted, its plug-ins in turn, where each lasts between so many minutes."""
    if not suite.spare:
        return suite.positives
    chances = [counting(plugins[name], STAYS_MINUTES if plugins[name].fault in SLOW else span) for name in plants]
    return enough(suite.positives, chances)


def _items(names: Mapping[str, Sequence[str]], counts: Mapping[str, int], small: float, plugins: Mapping[str, FaultPlugin],
           rng: np.random.Generator) -> list[Item]:
    """So many large ones of each fault, its plug-ins in turn from a random one on, and a share of small ones besides."""
    items: list[Item] = []
    for fault, plants in names.items():
        first, count = int(rng.integers(0, len(plants))), counts[fault]
        items += [Item(plants[(first + i) % len(plants)]) for i in range(count)]
        scalable = [p for p in plants if sized(plugins[p])]
        items += [Item(scalable[i % len(scalable)], True) for i in range(round(small * count) if scalable else 0)]
    return [items[i] for i in rng.permutation(len(items))]


# --- local scenarios ----------------------------------------------------------------------------------------------------
def _local(suite: Suite, plugins: Mapping[str, FaultPlugin], rng: np.random.Generator) -> list[tuple[str, str, Scenario, float]]:
    names = _by_name(plugins, False)
    left = _items(names, {fault: _large(suite, plants, plugins, LASTS_MINUTES) for fault, plants in names.items()}, suite.small, plugins, rng)
    out = []
    while left:
        # The tier is drawn, not chosen: the richest would win each time.
        draws = [(_tier(left, plugins, rng), _type(rng))] * TRIES
        if len(left) < FEW_LEFT:
            draws = [(_tier(left, plugins, rng), _type(rng)) for _ in draws]
        most = int(np.clip(len(left) // 3 + 2, FEWEST_JOBS, MOST_JOBS))
        sizes = [size for size in SIZES if size <= most]
        drafts = [_Draft(kind, tier, int(rng.choice(sizes)), np.random.default_rng(int(rng.integers(1 << 31)))) for tier, kind in draws]
        rests = [_fill(draft, left, plugins) for draft in drafts]
        worth = [(len(left) - len(rest)) / (EMPTY_COSTS_NODES + draft.jobs * JOB_NODES) for draft, rest in zip(drafts, rests, strict=True)]
        best = int(np.argmax(worth))
        if worth[best] > 0:
            out.append(("local", "", _scenario(drafts[best]), 0.0))
            left = rests[best]
    return out


def _tier(left: Sequence[Item], plugins: Mapping[str, FaultPlugin], rng: np.random.Generator) -> str:
    if rng.random() < RICH_SHARE and any(plugins[i.plant].tier == "D" for i in left):
        return "D"
    return _drawn(rng)


def _drawn(rng: np.random.Generator, least: str = "A") -> str:
    """A tier by the weights, from `least` on."""
    weights = {tier: weight for tier, weight in TIER_WEIGHTS.items() if tier >= least}
    return str(rng.choice(list(weights), p=[weight / sum(weights.values()) for weight in weights.values()]))


def _type(rng: np.random.Generator) -> NodeType:
    others = [k for k in NODE_TYPES.values() if k.name != DEFAULT_KIND]
    if rng.random() < TYPE_WEIGHT:
        return NODE_TYPES[DEFAULT_KIND]
    return others[int(rng.integers(0, len(others)))]


def _able(plugin: FaultPlugin, kind: NodeType) -> bool:
    return set(plugin.needs) <= kind.has and (plugin.name, kind.vendor) not in NOT_SHOWN_ON


def _fill(draft: _Draft, left: list[Item], plugins: Mapping[str, FaultPlugin]) -> list[Item]:
    """Takes what fits into the draft; gives what is left. The last job keeps to look-alikes."""
    fits = [i for i in left if _able(plugins[i.plant], draft.kind) and plugins[i.plant].tier <= draft.tier]
    # What few scenarios can show comes first, then what needs the most scenarios for what is left of it.
    counts = Counter(plugins[item.plant].fault for item in left)
    fits.sort(key=lambda i: (plugins[i.plant].tier < "D", -counts[plugins[i.plant].fault] / _in_a_scenario(plugins[i.plant])))
    taken: list[Item] = []
    for job in range(draft.jobs - 1):
        nodes = [int(n) for n in draft.rng.permutation(JOB_NODES)]
        for lane in (0, 1):
            taken += _lane(draft, job, lane, nodes, fits, plugins)
    serves = [i for i in fits if "inference" in plugins[i.plant].needs]
    for number, item in enumerate(serves[:2 * SERVERS]):
        taken.append(item)
        draft.entries.append(_entry(draft, item, plugins, number % 2, False, job=f"serve-{number // 2 + 1}"))
    _add_look_alikes(draft, plugins)
    out = list(left)
    for item in taken:
        out.remove(item)
    return out


def _lane(draft: _Draft, job: int, lane: int, nodes: Sequence[int], fits: list[Item],
          plugins: Mapping[str, FaultPlugin]) -> list[Item]:
    """One lane of a job: something slow over both periods, or one after the other. What is taken is gone from `fits`."""
    taken: list[Item] = []
    few = draft.jobs * JOB_NODES <= FEW_NODES
    for period in (0, 1):
        for place, item in enumerate(fits):
            plugin = plugins[item.plant]
            # Leaked memory kills each run in its first steps: what else befell that job could not be seen.
            own = harms(plugin) or plugin.place == "job" or plugin.fault == "gpu_memory_leaked"
            slow = plugin.fault in SLOW
            spans = (0, 1) if slow else (period,)
            free = not (slow and period) and all(draft.names[p][str(plugin.fault)] < _most(plugin, few) for p in spans)
            stays = bool(taken) and taken[-1].plant in STAYS and plugin.fault in OF_THE_LOSS
            rolls = plugin.fault in ROLLS_OUT and draft.names[period][f"plug-in {plugin.name}"] > 0
            if own != (lane == 0) or "inference" in plugin.needs or not free or stays or rolls:
                continue
            node = job * JOB_NODES + nodes[2 if lane else period]
            late = bool(taken) and lane == 0 and stands(plugins[taken[-1].plant])
            draft.entries.append(_entry(draft, item, plugins, period, slow, node, f"train-{job + 1}", late))
            if plugin.fault == ENDS_ITS_RUN:
                draft.entries.append(_end_of_run(draft, draft.entries[-1], f"train-{job + 1}"))
            for span in spans:
                draft.names[span].update((str(plugin.fault), f"plug-in {plugin.name}"))
            taken.append(fits.pop(place))
            break
        if taken and plugins[taken[-1].plant].fault in SLOW:
            break
    return taken


def _most(plugin: FaultPlugin, few: bool = False) -> int:
    """How many of one name may be at a time without being one incident by right: jobs never share one, parts from three on, of a fleet
    of few nodes what hangs together from two on, and the ends of one path are told apart from one loss only."""
    return 3 if plugin.place == "job" else 1 if plugin.fault in ONE_AT_A_TIME or (few and plugin.fault in FED_TOGETHER) else 2


def _in_a_scenario(plugin: FaultPlugin) -> int:
    """How many of its name one scenario holds."""
    return _most(plugin) * (1 if plugin.fault in SLOW else 2)


def _entry(draft: _Draft, item: Item, plugins: Mapping[str, FaultPlugin], period: float, slow: bool, node: int | None = None,
           job: str | None = None, late: bool = False, span: tuple[float, float] = LASTS_MINUTES) -> Entry:
    """period: so many periods after the warm minutes. slow: it lasts over both periods; late: a fault before it stopped its job.
    span: how long it lasts else, least and most minutes."""
    plugin, rng = plugins[item.plant], draft.rng
    begins = 60 * (WARM_MINUTES + PERIOD_MINUTES * period + (AFTER_STOP_MINUTES if late else 0.0) + float(rng.uniform(*ONSET_MINUTES)))
    lasts = None if slow or late else duration_text(60 * float(rng.uniform(*span)))
    onset, seed = plugin.onsets[int(rng.integers(0, len(plugin.onsets)))], int(rng.integers(1 << 31))
    name, device = None, None
    if plugin.place != "job" and node is not None:
        name = _names(draft)[node]
        if plugin.place in ("gpu", "rank"):
            device = str(int(rng.integers(0, draft.kind.gpus)))
        elif plugin.place == "nic":
            device = f"{draft.kind.nic_names[int(rng.integers(0, draft.kind.nics))]}/1"
    return Entry(fault=item.plant, at=duration_text(begins), for_=lasts, node=name, device=device,
                 job=job if plugin.place == "job" else None, severity=_severity(plugin, item.small, rng), onset=onset, seed=seed)


def _end_of_run(draft: _Draft, entry: Entry, job: str) -> Entry:
    """The job ends in order a little after the entry, and starts again later."""
    after = seconds_of(entry.at) + float(draft.rng.uniform(*END_AFTER_SECONDS))
    return Entry(look_alike="job_start_end", at=duration_text(after), job=job, seed=int(draft.rng.integers(1 << 31)))


def _names(draft: _Draft) -> list[str]:
    return node_names(max(10, draft.jobs * JOB_NODES))


def _severity(plugin: FaultPlugin, small: bool, rng: np.random.Generator) -> float | None:
    """Log-uniform over what the plug-in can be: below 5 %, or from there on."""
    low, high = plugin.impact
    if not sized(plugin):
        return None
    low, high = (low, min(COUNTED_IMPACT, high)) if small else large(plugin)
    return float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.3g}") if high > low else low


def _add_look_alikes(draft: _Draft, plugins: Mapping[str, FaultPlugin]) -> None:
    """On the last job, one in each period: of kinds that stay with one job or node."""
    first = (draft.jobs - 1) * JOB_NODES
    names, likes = _names(draft)[first:first + JOB_NODES], _contained(draft.kind, plugins)
    for period, index in enumerate(draft.rng.permutation(len(likes))[:2]):
        begins = 60 * (WARM_MINUTES + PERIOD_MINUTES * period + float(draft.rng.uniform(*ONSET_MINUTES)))
        draft.entries.append(_look_alike(likes[int(index)], begins, names, f"train-{draft.jobs}", draft.rng))


def _contained(kind: NodeType, plugins: Mapping[str, FaultPlugin]) -> list[FaultPlugin]:
    """Look-alikes that stay with one job or node."""
    likes = [p for p in plugins.values() if p.fault is None and p.place in ("job", "rank", "gpu", "node") and _able(p, kind)]
    return sorted(likes, key=lambda p: p.name)


def _look_alike(like: FaultPlugin, begins: float, names: Sequence[str], job: str, rng: np.random.Generator) -> Entry:
    """One on the job, or on one of its nodes."""
    node = names[int(rng.integers(0, len(names)))] if like.place != "job" else None
    return Entry(look_alike=like.name, at=duration_text(begins), node=node, device="1" if like.place in ("gpu", "rank") else None,
                 job=job if like.place == "job" else None, seed=int(rng.integers(1 << 31)))


def _scenario(draft: _Draft, scrape: int = 0, noisy: bool = False) -> Scenario:
    jobs = [JobSpec(f"train-{j + 1}", "training", JOB_NODES, _shape(draft.rng, noisy), RESTART) for j in range(draft.jobs)]
    nodes = draft.jobs * JOB_NODES
    servers = sorted({e.job for e in draft.entries if e.job is not None and e.job.startswith("serve-")})
    jobs += [JobSpec(name, "inference", SERVER_NODES, {}, RESTART) for name in servers]
    nodes += SERVER_NODES * len(servers)
    scrape = scrape or int(draft.rng.choice([15, 30], p=[0.8, 0.2]))
    spec = FleetSpec(nodes, 0, draft.kind.name, None, draft.tier, scrape, int(draft.rng.choice([15, 30])), before="10m")
    return Scenario("local", spec, tuple(jobs), tuple(draft.entries),
                    duration=duration_text(60 * (WARM_MINUTES + 2 * PERIOD_MINUTES)))


def _shape(rng: np.random.Generator, noisy: bool) -> dict[str, object]:
    """Trainers of both kinds; noisy: all that makes a step's time uncertain, twice."""
    shape: dict[str, object] = {"trainer": str(rng.choice(["megatron", "torchtitan"]))}
    if noisy:
        usual = SHAPES["training"]()
        shape |= {k: 2 * getattr(usual, k) for k in ("step_noise", "rough_mean", "outlier_share")}
    return shape


# --- wide, calm and stressed -----------------------------------------------------------------------------------------
def _wide(suite: Suite, plugins: Mapping[str, FaultPlugin], rng: np.random.Generator) -> list[tuple[str, str, Scenario, float]]:
    """Some in turn on a fleet of two jobs; names without local plug-ins have all their positives here, by themselves."""
    local, wide = _by_name(plugins, False), _by_name(plugins, True)
    alone: list[Item] = []
    mixed: list[Item] = []
    for fault, plants in wide.items():
        span = LASTS_MINUTES if stands(plugins[plants[0]]) else BRIEF_LASTS_MINUTES
        count = suite.wide * len(plants) if fault in local else max(_large(suite, plants, plugins, span), suite.wide)
        (mixed if fault in local else alone).extend(Item(plants[i % len(plants)]) for i in range(count))
    return [*_in_turn(alone, WIDE_IN_TURN, plugins, rng), *_in_turn(mixed, MIXED_IN_TURN, plugins, rng)]


def _in_turn(items: Sequence[Item], most: int, plugins: Mapping[str, FaultPlugin],
             rng: np.random.Generator) -> list[tuple[str, str, Scenario, float]]:
    """Scenarios of up to `most` of the items. Of two neighbours that bear one name the second would rightly be the first again, so
    there are none."""
    left = [items[i] for i in rng.permutation(len(items))]
    out = []
    while left:
        # The tier is one that shows the name of which most are left: it must not be left alone at the end.
        counts = Counter(plugins[i.plant].fault for i in left)
        most_left = counts.most_common(1)[0][0]
        tier = _drawn(rng, min(plugins[i.plant].tier for i in left if plugins[i.plant].fault == most_left))
        chosen: list[Item] = []
        while len(chosen) < most:
            before = plugins[chosen[-1].plant].fault if chosen else None
            fits = [i for i in left if plugins[i.plant].tier <= tier and plugins[i.plant].fault != before]
            if not fits:
                break
            chosen.append(max(fits, key=lambda i: counts[plugins[i.plant].fault]))
            left.remove(chosen[-1])
            counts[plugins[chosen[-1].plant].fault] -= 1
        out.append(("wide", "", _wide_scenario(chosen, tier, most == WIDE_IN_TURN, plugins, rng), 0.0))
    return out


def _wide_scenario(items: Sequence[Item], tier: str, brief: bool, plugins: Mapping[str, FaultPlugin], rng: np.random.Generator) -> Scenario:
    """The items one after the other. brief: those that stop no job need not last long."""
    kind, nodes = NODE_TYPES[DEFAULT_KIND], int(rng.choice([8, 8, 8, 12]))
    draft, minutes = _Draft(kind, tier, 0, rng), 0.0
    for item in items:
        short = brief and not stands(plugins[item.plant])
        draft.entries.append(_entry(draft, item, plugins, minutes / PERIOD_MINUTES, False,
                                    span=BRIEF_LASTS_MINUTES if short else LASTS_MINUTES))
        minutes += BRIEF_PERIOD_MINUTES if short else PERIOD_MINUTES
    spec = FleetSpec(nodes, 0, kind.name, None, tier, 15, 30, before="10m")
    jobs = tuple(JobSpec(f"train-{j + 1}", "training", nodes // 2, _shape(rng, False), RESTART) for j in range(2))
    return Scenario("wide", spec, jobs, tuple(draft.entries), duration=duration_text(60 * (WARM_MINUTES + minutes)))


def _calm(suite: Suite, plugins: Mapping[str, FaultPlugin], rng: np.random.Generator) -> list[tuple[str, str, Scenario, float]]:
    """Nothing is wrong: look-alikes one after the other, those of the whole fleet among them."""
    kind = NODE_TYPES[DEFAULT_KIND]
    likes = sorted(p.name for p in plugins.values() if p.fault is None and _able(p, kind))
    order = [likes[int(i)] for _ in range(suite.calm) for i in rng.permutation(len(likes))]
    out = []
    for index in range(suite.calm):
        begins = [60 * (WARM_MINUTES + CALM_MINUTES * i + float(rng.uniform(0, 3))) for i in range(suite.likes)]
        entries = tuple(Entry(look_alike=name, at=duration_text(at), seed=int(rng.integers(1 << 31)))
                        for name, at in zip(order[suite.likes * index:suite.likes * (index + 1)], begins, strict=True))
        spec = FleetSpec(12, 0, kind.name, None, TIERS[index % len(TIERS)], 15, 30, before="10m")
        jobs = tuple(JobSpec(f"train-{j + 1}", "training", 6, _shape(rng, False), RESTART) for j in range(2))
        out.append(("calm", "", Scenario("calm", spec, jobs, entries, duration=duration_text(60 * (WARM_MINUTES + CALM_MINUTES * suite.likes))), 0.0))
    return out


def _great(suite: Suite, plugins: Mapping[str, FaultPlugin], rng: np.random.Generator) -> list[tuple[str, str, Scenario, float]]:
    """Calm on large fleets: a row of look-alikes on each job, and one of those that cover many nodes."""
    kind, names = NODE_TYPES[DEFAULT_KIND], node_names(GREAT_JOBS * GREAT_JOB_NODES)
    small = _contained(kind, plugins)
    wide = sorted((p for p in plugins.values() if p.fault is None and is_wide(p) and _able(p, kind)), key=lambda p: p.name)
    out = []
    for index in range(suite.great):
        entries: list[Entry] = []
        starts = [60 * (WARM_MINUTES + CALM_MINUTES * place) for place in range(suite.likes)]
        for job in range(GREAT_JOBS):
            own = names[job * GREAT_JOB_NODES:(job + 1) * GREAT_JOB_NODES]
            entries += [_look_alike(small[int(rng.integers(0, len(small)))], at + 60 * float(rng.uniform(0, 3)), own, f"train-{job + 1}", rng)
                        for at in starts]
        entries += [Entry(look_alike=wide[int(rng.integers(0, len(wide)))].name, at=duration_text(at + 60 * float(rng.uniform(0, 3))),
                          for_=duration_text(60 * WIDE_LIKE_MINUTES), seed=int(rng.integers(1 << 31))) for at in starts[::WIDE_APART]]
        spec = FleetSpec(len(names), 0, kind.name, None, TIERS[index % len(TIERS)], 15, 30, before="10m")
        jobs = tuple(JobSpec(f"train-{j + 1}", "training", GREAT_JOB_NODES, _shape(rng, False), RESTART) for j in range(GREAT_JOBS))
        minutes = WARM_MINUTES + CALM_MINUTES * suite.likes
        out.append(("calm", "", Scenario("calm", spec, jobs, tuple(entries), duration=duration_text(60 * minutes)), 0.0))
    return out


def _stressed(suite: Suite, plugins: Mapping[str, FaultPlugin], rng: np.random.Generator) -> list[tuple[str, str, Scenario, float]]:
    """Local scenarios with data that are worse than usual, one kind of trouble each."""
    out = []
    for stress in STRESSES:
        names = _by_name(plugins, False)
        items = _items(names, dict.fromkeys(names, max(1, suite.positives // 4)), 0.0, plugins, rng)
        for index in range(suite.stress):
            draft = _Draft(NODE_TYPES[DEFAULT_KIND], "DB"[index % 2], 6, rng)
            items = _fill(draft, items, plugins)
            scenario = _scenario(draft, 60 if stress == "scrape" else 15, stress == "noise")
            out.append(("local", stress, scenario, 0.2 if stress == "missing" else 0.0))
    return out


def _fine(suite: Suite, plugins: Mapping[str, FaultPlugin], rng: np.random.Generator) -> list[tuple[str, str, Scenario, float]]:
    """Small faults alone, on the usual node with the richest telemetry; those that cost no less than 5 % by their nature are not small."""
    kind, rich = NODE_TYPES[DEFAULT_KIND], TIERS[-1]
    able = {name: p for name, p in plugins.items() if p.fault is not None and sized(p) and p.impact[0] < COUNTED_IMPACT and _able(p, kind)}
    names = _by_name(able, False)
    left = [item for item in _items(names, dict.fromkeys(names, suite.fine), 1.0, plugins, rng) if item.small] if suite.fine else []
    out = []
    while left:
        draft = _Draft(kind, rich, int(np.clip(len(left) // 2 + 1, FEWEST_JOBS, MOST_JOBS)), np.random.default_rng(int(rng.integers(1 << 31))))
        rest = _fill(draft, left, plugins)
        if len(rest) == len(left):
            break
        left = rest
        out.append(("local", "", _scenario(draft), 0.0))
    return out
