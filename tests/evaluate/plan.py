"""What a made-up recording is like: one `Plan`, drawn from a seed. The same seed with and without a fault is alike."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace

import numpy as np

PARTS = ("thermal_throttle", "packet_loss", "stalled_loss")


def rng_of(seed: int, *words: object) -> np.random.Generator:
    """A generator for one purpose: what one purpose draws never shifts what another one does."""
    return np.random.default_rng([seed, zlib.crc32("/".join(map(str, words)).encode())])


@dataclass(frozen=True)
class Sku:
    """A GPU model. margin_at: core °C at which the margin is zero, None = no such field. hbm: has a memory sensor."""

    name: str
    model: str
    clock: int
    memory_clock: int
    limit: float
    idle_watts: float
    work_share: float
    memory_mib: int
    warm: float
    margin_at: float | None
    slowdown: float
    hbm: bool = True


SKUS = (
    Sku("h100", "NVIDIA H100 80GB HBM3", 1980, 2619, 700, 71, 0.86, 81559, 31, 87, 90),
    Sku("h200", "NVIDIA H200", 1980, 3201, 700, 76, 0.88, 143771, 29, 87, 90),
    Sku("a100", "NVIDIA A100-SXM4-80GB", 1410, 1593, 400, 58, 0.84, 81920, 30, None, 92),
    Sku("l40s", "NVIDIA L40S", 2520, 9001, 350, 36, 0.85, 46068, 33, 88, 91, False),
)


@dataclass(frozen=True)
class Fault:
    """kind: a fault's name. at: seconds. size: share of the clock lost, or of the packets, by kind. how: the variant."""

    kind: str
    at: float
    until: float
    node: int
    device: int
    size: float
    ramp: float
    how: str
    duty: float = 1.0


@dataclass(frozen=True)
class Job:
    """name, the numbers of its nodes, when it runs (seconds; before 0 = before the recording), its step time."""

    name: str
    nodes: tuple[int, ...]
    starts: float
    ends: float | None
    step: float
    first_step: int
    checkpoint_every: float
    checkpoint_takes: float
    eval_every: float | None
    eval_takes: float
    loss: float
    log: str | None
    log_interval: int
    metrics: str | None  # all, rank0 or None
    phases: bool
    seq: bool
    one_hot: bool = True        # all phases are exposed with 0 or 1; else only the present one
    restart: tuple[float, float] | None = None  # when it is stopped, and for how long, before it resumes
    lingers: bool = False       # the last values stay exposed after the end (a push gateway), and nothing says that it ended


@dataclass(frozen=True)
class Plan:
    seed: int
    start_ms: int
    seconds: int
    interval: int
    nodes: tuple[str, ...]
    gpus: int
    sku: Sku
    dcgm: str         # default, advanced, full, modern
    host_label: str   # Hostname, hostname or none
    address: str      # host, ip, node or stem: how a target's instance is written
    fabric: str       # roce, ib, efa, ethernet
    form: str         # time, node, family, om, parquet, csv
    jobs: tuple[Job, ...]
    capped: bool
    hot_day: float
    missed: float
    reset_at: float | None
    outage: tuple[int, float, float] | None
    congestion: tuple[float, float] | None
    background: float
    inventory: bool
    storage: bool
    blanks: bool
    sticky_xid: int | None
    collect: int  # seconds between the GPU exporter's own readings: a scrape in between repeats them
    used: int     # GPUs of each node that a job works on
    hot_gpu: tuple[int, int] | None   # a GPU in a warm slot that keeps its clock
    blip: tuple[int, int, float] | None   # a GPU with a thermal bit for some seconds
    burst: tuple[int, int, float] | None  # a port that loses packets for some seconds
    trainer_outage: tuple[float, float] | None
    save_busy: bool   # while one rank saves, the others wait in a collective: 100 % busy
    fault: Fault | None = None
    notes: dict[str, object] = field(default_factory=dict)


def _names(rng: np.random.Generator, n: int) -> tuple[str, ...]:
    style = str(rng.choice(["n{}", "gpu-{:03d}", "ip-10-4-{}-17", "hgx{:02d}-a", "worker-{}.cluster.local"]))
    first = int(rng.integers(1, 60))
    return tuple(style.format(first + i) for i in range(n))


def _job(rng: np.random.Generator, name: str, nodes: tuple[int, ...], seconds: int, interval: int) -> Job:
    step = float(np.exp(rng.uniform(np.log(0.3), np.log(40.0))))
    trainer = str(rng.choice(["all", "all", "rank0", "log", "all+log", "none", "log"]))
    log = str(rng.choice(["megatron", "megatron", "torchtitan", "hf"])) if "log" in trainer else None
    metrics = "all" if "all" in trainer else "rank0" if trainer == "rank0" else None
    takes = float(rng.choice([12, 30, 60, 120, 200, 250], p=[0.3, 0.25, 0.2, 0.1, 0.1, 0.05]))
    late = rng.random() < 0.2
    finishes = rng.random() < 0.2
    interval_steps = int(max(1, min(100, round(rng.uniform(15, 90) / step))))
    return Job(
        name, nodes, float(rng.uniform(60, 0.3 * seconds)) if late else -float(rng.uniform(3600, 90000)),
        float(rng.uniform(0.65, 0.92) * seconds) if finishes else None, step, int(rng.integers(500, 90000)),
        float(rng.uniform(400, 1500)), takes, float(rng.uniform(500, 1500)) if rng.random() < 0.4 else None,
        float(rng.choice([20, 60, 150, 400])), float(rng.uniform(1.6, 3.4)), log, interval_steps, metrics,
        bool(rng.random() < 0.6), bool(rng.random() < 0.6), bool(rng.random() < 0.6),
        (float(rng.uniform(0.3, 0.6) * seconds), float(rng.uniform(120, 480))) if rng.random() < 0.2 and not late else None,
        bool(rng.random() < 0.4))


def draw(seed: int, kind: str | None = None, **fixed: object) -> Plan:
    """The plan of a seed; kind: the fault that is planted in it. fixed: fields that are given and not drawn."""
    rng = rng_of(seed, "plan")
    n = int(rng.choice([2, 2, 3, 4, 4, 5, 6, 8, 12, 16]))
    gpus = int(rng.choice([8, 8, 8, 4]))
    interval = int(rng.choice([5, 10, 15, 15, 15, 30, 30, 60]))
    seconds = int(rng.choice([1200, 1500, 1800, 2400, 3000, 3600]))
    if n * gpus > 48 or interval < 15:
        seconds = min(seconds, 1800)
    idle = int(rng.integers(0, 2)) if n > 2 else 0
    working = tuple(range(n - idle))
    two = len(working) >= 4 and rng.random() < 0.3
    half = len(working) // 2
    groups = (working[:half], working[half:]) if two else (working,)
    jobs = tuple(_job(rng_of(seed, "job", i), f"{['llm', 'pretrain-7b', 'moe'][i]}-{seed % 97}", g, seconds, interval)
                 for i, g in enumerate(groups))
    plan = Plan(
        seed, 1_772_000_000_000 + int(rng.integers(0, 10_000_000)) * 1000 + int(rng.integers(0, 1000)), seconds, interval,
        _names(rng, n), gpus, SKUS[int(rng.choice(4, p=[0.4, 0.2, 0.25, 0.15]))],
        str(rng.choice(["default", "default", "advanced", "full", "modern"])),
        str(rng.choice(["Hostname", "Hostname", "hostname"])), str(rng.choice(["host", "host", "ip", "node", "stem"])),
        str(rng.choice(["roce", "roce", "ib", "efa", "ethernet"])),
        str(rng.choice(["time", "time", "node", "family", "om", "parquet", "csv"])), jobs,
        bool(rng.random() < 0.3), float(rng.choice([0, 0, 3, 6])), float(rng.choice([0, 0.01, 0.05])),
        float(rng.uniform(0.1, 0.9) * seconds) if rng.random() < 0.25 else None,
        (int(rng.integers(0, n)), float(rng.uniform(0.1, 0.8) * seconds), float(rng.uniform(60, 300)))
        if rng.random() < 0.25 else None,
        (float(rng.uniform(0.1, 0.6) * seconds), float(rng.uniform(120, 900))) if rng.random() < 0.3 else None,
        float(rng.choice([0, 0.2, 1.0])), bool(rng.random() < 0.5), bool(rng.random() < 0.5), bool(rng.random() < 0.3),
        31 if rng.random() < 0.2 else None, int(rng.choice([1, 1, 30])), gpus if rng.random() < 0.85 else max(2, gpus // 2),
        (int(rng.integers(0, n)), int(rng.integers(0, gpus))) if rng.random() < 0.3 else None,
        (int(rng.integers(0, n)), int(rng.integers(0, gpus)), float(rng.uniform(0.1, 0.9) * seconds)) if rng.random() < 0.3 else None,
        (int(rng.integers(0, n)), int(rng.integers(0, 64)), float(rng.uniform(0.1, 0.9) * seconds)) if rng.random() < 0.3 else None,
        (float(rng.uniform(0.1, 0.8) * seconds), float(rng.uniform(60, 400))) if rng.random() < 0.2 else None,
        bool(rng.random() < 0.5))
    plan = replace(plan, **fixed)  # type: ignore[arg-type]
    return plan if kind is None else with_fault(plan, kind)


def with_fault(plan: Plan, kind: str) -> Plan:
    """The plan with a fault at a random place and time at which a job works, at least five minutes from both ends."""
    rng = rng_of(plan.seed, "fault", kind)
    which = int(rng.integers(0, len(plan.jobs)))
    job = replace(plan.jobs[which], restart=None)
    plan = replace(plan, jobs=tuple(job if i == which else j for i, j in enumerate(plan.jobs)))
    if kind == "stalled_loss":  # what shows it must exist
        job = replace(job, ends=None, restart=None, metrics=job.metrics or (None if job.log else "all"))
        plan = replace(plan, jobs=tuple(job if i == which else j for i, j in enumerate(plan.jobs)))
    node = int(rng.choice(job.nodes))
    gap = job.log_interval * job.step if job.metrics is None and job.log else 2 * plan.interval
    first = max(300.0, (job.starts + 420.0) if job.starts > 0 else 0.0)
    need = max(300.0, 8 * plan.interval)
    if kind == "stalled_loss":
        first = max(first, (job.starts if job.starts > 0 else 0) + 10 * gap)
        need = max(330.0, 5 * gap, 4 * job.step * 10)
    last = (job.ends if job.ends is not None else plan.seconds) - need
    if last < first:
        plan = replace(plan, seconds=int(plan.seconds + first - last + 60))
        job = replace(job, ends=None)
        plan = replace(plan, jobs=tuple(job if i == which else j for i, j in enumerate(plan.jobs)))
        last = plan.seconds - need
    at = float(rng.uniform(first, last))
    ramp = float(rng.choice([0, 0, 60, 180]))
    if kind == "thermal_throttle":
        low = 0.1 if plan.dcgm == "default" else 0.05
        size = float(np.exp(rng.uniform(np.log(low), np.log(0.6))))
        duty = float(rng.choice([1.0, 1.0, 0.7, 0.45]))
        if plan.dcgm == "default":  # only the clock's mean speaks there
            size = min(0.6, size / duty)
        fault = Fault(kind, at, 1e9, node, int(rng.integers(0, plan.used)), size, min(ramp, need / 3),
                      "sw" if size < 0.3 else "hw", duty)
    elif kind == "packet_loss":
        size = float(np.exp(rng.uniform(np.log(1e-4), np.log(2e-2))))
        how = str(rng.choice(["receives", "receives", "sends", "errors"]))
        if how == "errors" and plan.fabric != "ib":
            how = "receives"
        if plan.fabric in ("ib", "roce") and rng.random() < 0.4:
            size = float(np.exp(rng.uniform(np.log(1e-6), np.log(2e-5))))  # some packets a second
        if len(job.nodes) == 2 and plan.fabric != "efa" and how == "sends":
            how = "receives"  # of one path nobody can tell which end drops what the other one sent
        fault = Fault(kind, at, 1e9, node, int(rng.integers(0, 64)), size, min(ramp, need / 3), how)
    else:
        frozen = rng.random() < 0.25 and (plan.seconds - at) >= max(330.0, 12 * gap) and job.log != "hf"
        how = "frozen" if frozen else str(rng.choice(["rank", "job"]))
        fault = Fault(kind, at, 1e9, node, int(rng.integers(0, plan.used)), 1.0, 0.0, how)
    if kind != "stalled_loss" and rng.random() < 0.3:  # it heals by itself
        fault = replace(fault, until=at + max(330.0, 8 * plan.interval) * float(rng.uniform(1, 2)))
    around = plan.trainer_outage is not None and kind == "stalled_loss"
    return replace(plan, fault=fault, trainer_outage=None if around else plan.trainer_outage, notes={"job": which})
