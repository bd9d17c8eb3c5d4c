"""The made-up cluster second by second: jobs with their steps and pauses, GPUs, ports, and what a fault does to them.

Everything is an array with one value a second. Independent of the bundled fleet on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.evaluate.plan import Fault, Job, Plan, rng_of

IDLE, INIT, WARMUP, TRAIN, SAVE, EVAL, HANG, DONE = range(8)
PHASE = {INIT: "init", WARMUP: "warmup", TRAIN: "train", SAVE: "checkpoint", EVAL: "eval", HANG: "train", DONE: "done"}
#          idle  init  warm  train save  eval  hang  done
COMPUTE = np.array([0, 0.05, 0.5, 1.0, 0.08, 0.75, 0.06, 0])
UTIL = np.array([0, 12, 85, 99.6, 40, 96, 100, 0])
TENSOR = np.array([0, 0, 0.1, 0.38, 0.05, 0.3, 0, 0])
COMM = np.array([0, 0.01, 0.3, 1.0, 0.002, 0.2, 0, 0])


def severity(fault: Fault | None, n: int) -> np.ndarray:
    """0 before the fault, 1 when it is fully there."""
    t = np.arange(n, dtype=float)
    if fault is None:
        return np.zeros(n)
    on = np.clip((t - fault.at) / max(fault.ramp, 1.0), 0.0, 1.0)
    return np.where((t >= fault.at) & (t < fault.until), on, 0.0)


@dataclass
class Run:
    """A job as it ran. ends, seconds, losses: by step (number, end in seconds). mode: by second. hung: when, or None."""

    job: Job
    mode: np.ndarray
    step_number: np.ndarray
    step_ends: np.ndarray
    step_took: np.ndarray
    losses: np.ndarray
    saves: list[tuple[float, float, int]]
    evals: list[tuple[float, float, int]]
    hung: float | None
    behind: int | None = None

    def last(self, t: np.ndarray) -> np.ndarray:
        """Index of the newest step at each time, -1 before the first."""
        return np.searchsorted(self.step_ends, t, side="right") - 1


def run_job(plan: Plan, job: Job, fault: Fault | None) -> Run:
    """Plays the job through the recording."""
    n = plan.seconds + 1
    rng = rng_of(plan.seed, "run", job.name)
    mode = np.full(n, IDLE, np.int8)
    on = severity(fault, n)
    drag = 0.0
    if fault is not None and fault.kind != "stalled_loss" and fault.node in job.nodes:
        drag = 0.8 * fault.size if fault.kind == "thermal_throttle" else min(0.4, 20 * fault.size)
    hang = fault.at if fault is not None and fault.kind == "stalled_loss" and fault.how != "frozen" else None

    def paint(a: float, b: float, what: int) -> None:
        mode[max(0, int(a)):max(0, min(n, int(np.ceil(b))))] = what

    numbers, ends, took = [], [], []
    saves, evals = [], []
    number = job.first_step
    t = job.starts
    if t >= 0:
        paint(t, t + 75, INIT)
        t += 75
        number = 0
        warm = 3
    else:
        t = -float(rng.uniform(0, job.step)) - 60
        warm = 0
    next_save = t + job.checkpoint_every * float(rng.uniform(0.3, 1))
    next_eval = t + (job.eval_every * float(rng.uniform(0.4, 1)) if job.eval_every else 1e18)
    restart = job.restart if hang is None else None
    while t < n and (job.ends is None or t < job.ends):
        if restart is not None and t >= restart[0]:
            paint(t, t + restart[1], DONE)
            paint(t + restart[1], t + restart[1] + 60, INIT)
            t += restart[1] + 60
            number = max(0, number - int(rng.integers(1, 40)))
            warm, restart = 3, None
        step = job.step * float(np.exp(rng.normal(0, 0.03)))
        if rng.random() < 0.004:
            step *= float(rng.uniform(1.3, 2.2))
        if warm:
            step = max(step * 8, 10.0) if warm == 3 else step * 2
        here = min(max(int(t), 0), n - 1)
        step *= 1 + drag * on[here]
        if hang is not None and t + step > hang:
            paint(t, hang, TRAIN)
            paint(hang, n, HANG)
            break
        paint(t, t + step, WARMUP if warm else TRAIN)
        warm = max(0, warm - 1)
        t += step
        number += 1
        numbers.append(number)
        ends.append(t)
        took.append(step)
        # No pause begins right before a hang: a hang within one would be another story.
        if t >= next_eval and (hang is None or t + job.eval_takes + 60 < hang):
            evals.append((t, t + job.eval_takes, number))
            paint(t, t + job.eval_takes, EVAL)
            t += job.eval_takes
            next_eval = t + job.eval_every
        if t >= next_save and (hang is None or t + job.checkpoint_takes + 60 < hang):
            takes = job.checkpoint_takes * float(rng.uniform(0.85, 1.15))
            saves.append((t, t + takes, number))
            paint(t, t + takes, SAVE)
            t += takes
            next_save = t + job.checkpoint_every
    if job.ends is not None:
        paint(t, n, DONE)
    k = np.arange(len(numbers))
    losses = job.loss * (1 - 2e-6 * k) + _noise(rng, len(numbers))
    step_ends = np.array(ends)
    if fault is not None and fault.kind == "stalled_loss" and fault.how == "frozen" and numbers:
        first = min(int(np.searchsorted(step_ends, fault.at)), len(numbers) - 1)
        losses[first:] = losses[first]
    behind = None
    if hang is not None and fault is not None and fault.how == "rank":
        behind = job.nodes.index(fault.node) * plan.used + fault.device
    return Run(job, mode, np.array(numbers, int), step_ends, np.array(took), losses, saves, evals, hang, behind)


def _noise(rng: np.random.Generator, n: int) -> np.ndarray:
    slow = np.cumsum(rng.normal(0, 0.002, n))
    return rng.normal(0, 0.03, n) + slow - slow.mean() if n else np.zeros(0)


def lagged(values: np.ndarray, tau: float, start: float) -> np.ndarray:
    """First-order lag, one value a second."""
    out = np.empty_like(values, float)
    state, a = start, 1 / tau
    for i, v in enumerate(values):
        state += a * (v - state)
        out[i] = state
    return out


@dataclass
class Gpu:
    """One GPU by second."""

    temp: np.ndarray
    memory_temp: np.ndarray
    clock: np.ndarray
    power: np.ndarray
    util: np.ndarray
    tensor: np.ndarray
    margin: np.ndarray
    bits: np.ndarray
    thermal_ns: np.ndarray
    power_ns: np.ndarray
    fb_used: np.ndarray
    nvlink: np.ndarray


def heat_of(plan: Plan, run: Run | None) -> np.ndarray:
    """The shared part of the warmth of a job's GPUs, °C above idle, by second."""
    n = plan.seconds + 1
    mode = run.mode if run is not None else np.zeros(n, np.int8)
    rise = plan.sku.warm * COMPUTE[mode]
    return lagged(rise, 35.0, float(rise[0]))


def gpu(plan: Plan, node: int, index: int, run: Run | None, heat: np.ndarray, fault: Fault | None) -> Gpu:
    """The GPU of a node; run: the job that works on it, None = idle."""
    sku, n = plan.sku, plan.seconds + 1
    rng = rng_of(plan.seed, "gpu", node, index)
    mode = run.mode if run is not None else np.zeros(n, np.int8)
    compute = COMPUTE[mode]
    t = np.arange(n)
    inlet = plan.hot_day * np.clip(t / n, 0, 1) + 0.6 * np.sin(t / 400 + rng.uniform(0, 6))
    base = 29 + 4 * np.sin(index * 1.3) + rng.normal(0, 1.2)
    temp = base + inlet + heat * rng.normal(1.0, 0.05) + rng.normal(0, 0.3, n)
    share = sku.work_share * rng.normal(1.0, 0.015)
    work = sku.idle_watts + (sku.limit * share - sku.idle_watts) * compute
    power = work + rng.normal(0, 0.018, n) * work
    top = float(sku.clock)
    clock = np.where(compute > 0.02, top, top if sku.name != "l40s" else 210.0)
    clock = np.where(mode == IDLE, 345.0 if sku.name != "a100" else 210.0, clock)
    if plan.capped:
        at_cap = compute > 0.6
        power = np.where(at_cap, sku.limit * np.clip(rng.normal(0.992, 0.004, n), 0.97, 1.003), power)
        silicon = rng.normal(0.86, 0.02)
        clock = np.where(at_cap, top * np.clip(silicon + rng.normal(0, 0.012, n), 0.6, 0.99), clock)
    mine = fault is not None and fault.kind == "thermal_throttle" and (fault.node, fault.device) == (node, index)
    bits = np.where(mode == IDLE, 1, np.where(plan.capped & (compute > 0.6), 4, 0)).astype(int)
    thermal = np.zeros(n)
    victim = fault is not None and fault.kind == "thermal_throttle" and run is not None and fault.node in run.job.nodes
    if victim and not mine:
        power = power * (1 - 0.25 * fault.size * severity(fault, n) * (compute > 0.5))
        if plan.capped:  # less work between waits: it needs less of the limit and clocks up a little
            clock = np.where(compute > 0.6, np.minimum(top, clock * (1 + 0.1 * fault.size * severity(fault, n))), clock)
    if mine:
        temp, clock, power, bits, thermal = _throttle(plan, fault, rng, compute, temp, clock, power, bits)
    if plan.hot_gpu == (node, index) and not mine:
        temp = temp + 14 * heat / max(sku.warm, 1)
        if plan.capped:  # a warm part leaks: at the limit it clocks lower
            clock = np.where(compute > 0.6, clock * 0.98, clock)
    if plan.blip is not None and plan.blip[:2] == (node, index) and not mine:
        inside = (t >= plan.blip[2]) & (t < plan.blip[2] + 12) & (compute > 0.5)
        bits = np.where(inside, 0x20, bits)
        thermal = thermal + 0.5 * inside
    busy = np.where((mode == SAVE) & plan.save_busy, 100.0, UTIL[mode])
    util = np.clip(busy - np.abs(rng.normal(0, 0.5, n)) * (busy > 50) + rng.normal(0, 6, n) * ((busy > 5) & (busy < 50)), 0, 100)
    tensor = np.clip(TENSOR[mode] * rng.normal(1, 0.05, n), 0, 1)
    if mine:
        tensor *= 1 - 0.5 * fault.size * severity(fault, n)
    hangs = run is not None and run.behind is not None and run.hung is not None and index < plan.used
    if hangs and run.job.nodes.index(node) * plan.used + index == run.behind and rng.random() < 0.5:
        util = np.where(t >= run.hung, 0.0, util)
    memory = temp + rng.uniform(-4, 5) if sku.hbm else np.zeros(n)
    limit_at = sku.margin_at if sku.margin_at is not None else 1e9
    used = np.where((mode == IDLE) | (mode == DONE), 4.0, 0.88 * sku.memory_mib)
    power_ns = np.where(plan.capped & (compute > 0.6), 0.6, 0.03 * (compute > 0.6)) * 1e9
    margin = limit_at - np.maximum(temp, memory - 8) + rng.normal(0, 0.3, n)
    return Gpu(temp, memory, clock, power, util, tensor, margin, bits, thermal * 1e9, power_ns, used, COMM[mode] * 1.2e5)


def _throttle(plan: Plan, fault: Fault, rng: np.random.Generator, compute: np.ndarray, temp: np.ndarray,
              clock: np.ndarray, power: np.ndarray, bits: np.ndarray) -> tuple[np.ndarray, ...]:
    """What heat does to the culprit: it sits at its limit, loses clock, and with it power."""
    sku, n = plan.sku, len(temp)
    on = severity(fault, n)
    limit = sku.margin_at if sku.margin_at is not None else sku.slowdown - 4
    working = compute > 0.5
    hot = lagged(np.where((on > 0) & working, limit + 0.5 + rng.normal(0, 0.4, n), 0.0), 1.0, 0.0)
    share = lagged(on * working, 25.0, 0.0)
    new_temp = temp * (1 - share) + np.where(hot > 0, hot, temp) * share
    held = on * working * (share > 0.6)
    if fault.duty < 1.0:
        held = held * ((np.arange(n) % 47) < 47 * fault.duty)  # in step with no scrape interval
    uncapped = np.where(working, float(sku.clock), clock)
    slowed = clock * (1 - fault.size * held)
    if fault.duty < 1.0:
        slowed = np.where(held > 0, slowed, clock)
    lost = 1 - slowed / np.maximum(uncapped, 1)
    new_power = np.where(held > 0, np.minimum(power, sku.limit * sku.work_share * (1 - 0.9 * lost)), power)
    bit = 0x20 if fault.how == "sw" else 0x48
    new_bits = np.where(held > 0, bit, bits)
    return new_temp, slowed, new_power, new_bits, held * rng.uniform(0.7, 1.0)
