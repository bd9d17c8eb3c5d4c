"""Windows for detector tests: a small training cluster with the noise of real pages, and faults planted by hand.

Independent of the bundled fleet: what both get wrong alike would prove nothing. Numbers follow signals.md §7 and §10.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace

import numpy as np

from core.signals import SIGNALS
from core.types import Event, JobState, Target
from core.window import Block, NicPlace, Place, Topology, Window
from tests.contract import host_plants

STEP = 15
START = 1_790_000_000_000 // 15_000 * 15_000
JOB = "llm"


@dataclass
class Cluster:
    """nodes × 8 GPUs and 8 NICs (`nic`: rdma, efa or ethernet) that train one job; a tick is 15 s.

    interval: scrape interval in seconds; slower pages repeat their values. without: signals that no page has.
    phases: the trainer exposes its phase. trainer: there are rank metrics at all.
    """

    nodes: int = 4
    ticks: int = 100
    seed: int = 1
    interval: int = 15
    nic: str = "rdma"
    trainer: bool = True
    phases: bool = True
    step_seconds: float = 4.0
    without: tuple[str, ...] = ()
    signals: dict[str, np.ndarray] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    job: JobState | None = None

    def __post_init__(self) -> None:
        names = [f"n{i:03d}" for i in range(self.nodes)]
        gpus = tuple(Target("gpu", n, str(i), id=f"GPU-{n}-{i}") for n in names for i in range(8))
        device = {"rdma": "mlx5_{}/1", "efa": "rdmap{}s0/1", "ethernet": "eth{}"}[self.nic]
        nics = tuple(Target("nic", n, device.format(i)) for n in names for i in range(8))
        ranks = tuple(Target("rank", g.node, g.device, job=JOB, rank=r) for r, g in enumerate(gpus))
        self.entities = {"gpu": gpus, "nic": nics, "node": tuple(Target("node", n) for n in names),
                         "rank": ranks if self.trainer else (),
                         "mount": tuple(Target("mount", n, "/scratch") for n in names),
                         "collector": tuple(Target("collector", device=f"collector-{n}") for n in names),
                         "job": tuple(Target("job", n, job=f"chat@{n}:8000") for n in names)}
        self.names = names
        if self.job is None:
            self.job = JobState(JOB, "train" if self.trainer else "unknown", tuple(names),
                                tuple(range(len(ranks))) if self.trainer else ())
        self._gpus()
        self._nics()
        self._ranks()
        self._node()
        self._collectors()
        host_plants.furnish(self)
        self._endpoints()

    def rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def width(self, kind: str) -> int:
        return len(self.entities[kind])

    def _noise(self, name: str, kind: str, middle: float, sd: float) -> None:
        self.signals[name] = self.rng(name).normal(middle, sd, (self.ticks, self.width(kind)))

    def _gpus(self) -> None:
        n = self.width("gpu")
        position = np.tile(np.linspace(-4, 4, 8), self.nodes)
        drift = np.cumsum(self.rng("drift").normal(0, 0.15, (self.ticks, n)), axis=0).clip(-3, 3)
        temp = np.round(62 + position + drift)
        self.signals["gpu.temperature_celsius"] = temp
        self.signals["gpu.memory_temperature_celsius"] = temp + 2
        self.signals["gpu.thermal_margin_celsius"] = 85 - temp - self.rng("margin").integers(0, 2, (self.ticks, n))
        self.signals["gpu.sm_clock_hertz"] = 1e6 * (1980 - 15 * self.rng("clock").integers(0, 3, (self.ticks, n)))
        self._noise("gpu.power_watts", "gpu", 630, 12)
        self.signals["gpu.power_limit_watts"] = np.full((self.ticks, n), 700.0)
        self.signals["gpu.utilization_ratio"] = self.rng("util").choice([0.99, 1.0], (self.ticks, n))
        self._noise("gpu.tensor_active_ratio", "gpu", 0.38, 0.02)
        self._noise("gpu.sm_active_ratio", "gpu", 0.8, 0.015)
        self._noise("gpu.graphics_active_ratio", "gpu", 0.97, 0.01)
        self.signals["gpu.throttle_reasons_bits"] = self.rng("bits").choice([0.0, 0.0, 4.0], (self.ticks, n))
        self.signals["gpu.thermal_violation_ratio"] = np.zeros((self.ticks, n))
        self.signals["gpu.memory_used_bytes"] = np.full((self.ticks, n), 72e9)
        for name, value in (("xid", 0), ("ecc_correctable_per_second", 0), ("ecc_uncorrectable_per_second", 0),
                            ("row_remap_failed", 0), ("nvlink_errors_per_second", 0), ("nvlink_recoveries_per_second", 0),
                            ("pcie_link_width", 16), ("pcie_link_generation", 5)):
            self.signals[f"gpu.{name}"] = np.full((self.ticks, n), float(value))

    def _nics(self) -> None:
        n, t = self.width("nic"), self.ticks
        for way in ("received", "transmitted"):
            self.signals[f"nic.{way}_bytes_per_second"] = 8e9 * self.rng(way).normal(1, 0.01, (t, n))
        self.signals["nic.link_up"] = np.ones((t, n))
        self.signals["nic.rate_bytes_per_second"] = np.full((t, n), 5e10)
        if self.nic == "ethernet":
            background = self.rng("background").choice([0.0, 0.0, 0.3, 2.5], n)
            self.signals["nic.packets_lost_per_second"] = np.tile(background, (t, 1)) + self.rng("drops").poisson(
                0.2, (t, n)) / STEP
            self.signals["nic.received_packets_per_second"] = np.full((t, n), 9e5)
            self.signals["nic.carrier_changes_per_second"] = np.zeros((t, n))
            return
        if self.nic == "efa":
            self.signals["nic.packets_lost_per_second"] = np.zeros((t, n))
            self.signals["nic.transmitted_packets_per_second"] = np.full((t, n), 2e6)
            self.signals["nic.received_packets_per_second"] = np.full((t, n), 2e6)
            self.signals["nic.retransmits_per_second"] = self.rng("efa").poisson(2 * STEP, (t, n)) / STEP
            self.signals["nic.timeouts_per_second"] = self.rng("timeouts").poisson(0.02, (t, n)) / STEP
            self.signals["nic.remote_impaired_per_second"] = np.zeros((t, n))
            return
        for name, rate in (("packets_lost", 0.08), ("timeouts", 0.008), ("corrupt_packets", 0.01), ("peer_loss", 0.05),
                           ("retransmits", 0.05), ("discards", 0.05)):
            self.signals[f"nic.{name}_per_second"] = self.rng(name).poisson(rate * STEP, (t, n)) / STEP
        self.signals["nic.congestion_marks_per_second"] = self.rng("cnp").exponential(200, (t, n))
        self.signals["nic.wait_ticks_per_second"] = self.rng("wait").exponential(1e5, (t, n))
        self.signals["nic.link_downed_per_second"] = np.zeros((t, n))

    def _ranks(self) -> None:
        n, t = self.width("rank"), self.ticks
        if not n:
            return
        clock = np.arange(t) * STEP
        step = 1000 + np.floor(clock / self.step_seconds)
        self.signals["rank.step"] = np.tile(step[:, None], (1, n))
        self.signals["rank.last_step_timestamp_seconds"] = np.tile(
            (START / 1000 + np.floor(clock / self.step_seconds) * self.step_seconds)[:, None], (1, n))
        self._noise("rank.step_seconds", "rank", self.step_seconds, 0.03 * self.step_seconds)
        loss = 2.5 - 1e-4 * clock + self.rng("loss").normal(0, 0.02, t)
        self.signals["rank.loss"] = np.tile(loss[:, None], (1, n))
        self.signals["rank.grad_norm"] = np.abs(self.rng("norm").normal(0.3, 0.05, (t, n)))
        self.signals["rank.collective_seq"] = self.signals["rank.step"] * 40
        self.signals["rank.last_checkpoint_step"] = np.floor(self.signals["rank.step"] / 30) * 30
        self.signals["rank.comm_wait_seconds"] = np.full((t, n), 0.3 * self.step_seconds)
        self.signals["rank.data_wait_seconds"] = 0.02 * self.rng("data").lognormal(0.0, 0.4, (t, n))
        if self.phases:
            for phase in ("init", "warmup", "train", "eval", "checkpoint", "done"):
                self.signals[f"rank.phase_{phase}"] = np.full((t, n), float(phase == "train"))

    def _node(self) -> None:
        self._noise("node.storage_bytes_per_second", "node", 2e6, 1e5)
        self.signals["node.cpu_steal_ratio"] = np.zeros((self.ticks, self.nodes))
        self.signals["node.cpu_waiting_ratio"] = np.abs(self.rng("waiting").normal(0.01, 0.004, (self.ticks, self.nodes)))
        self._noise("node.memory_available_bytes", "node", 1.6e12, 1e9)
        self._noise("node.clock_offset_seconds", "node", 0.0, 2e-5)
        self._noise("mount.available_bytes", "mount", 9e12, 1e9)
        for name, value in (("node.memory_total_bytes", 2.1e12), ("node.memory_stalled_ratio", 0.0), ("node.clock_synced", 1.0),
                            ("node.clock_error_seconds", 0.01), ("mount.size_bytes", 2e13), ("mount.readonly", 0.0)):
            self.signals[name] = np.full((self.ticks, self.nodes), value)

    def _collectors(self) -> None:
        """Greylag's own workers, each with 300 targets: one reading in a day is missed, each reports every few seconds."""
        n, t = self.width("collector"), self.ticks
        for name in ("shed_level", "shed_targets"):
            self.signals[f"collector.{name}"] = np.zeros((t, n))
        self.signals["collector.targets"] = np.full((t, n), 300.0)
        self.signals["collector.missed_slots_per_second"] = self.rng("missed").poisson(2e-4, (t, n)) / STEP
        self.signals["collector.lag_seconds"] = self.rng("lag").uniform(1.0, 16.0, (t, n))

    def _endpoints(self) -> None:
        """An inference server a node: some 40 requests at a time, 25 ms a token, more with more requests."""
        shape = (self.ticks, self.nodes)
        running = np.round(40 + 6 * self.rng("running").normal(0, 1, shape)).clip(20, 60)
        gaps = 960 * self.rng("gaps").normal(1, 0.05, shape)
        token = 0.018 * (1 + running / 100) * self.rng("token").normal(1, 0.03, shape)
        arrivals = self.rng("arrivals").normal(3.0, 0.4, shape)
        for name, values in (("requests_running", running), ("requests_waiting", np.zeros(shape)), ("requests_per_second", arrivals),
                             ("first_tokens_per_second", arrivals), ("request_time_ratio", running), ("kv_cache_ratio", running / 120),
                             ("token_gaps_per_second", gaps), ("token_time_ratio", gaps * token), ("tokens_per_second", gaps)):
            self.signals[f"job.{name}"] = values

    # --- what tests do to it ------------------------------------------------------------------------------------------
    def put(self, signal: str, value: object, start: int, stop: int | None = None, columns: object = None) -> Cluster:
        """Sets a signal (it is made where missing) from tick to tick for the columns (all where None)."""
        if signal not in self.signals:
            self.signals[signal] = np.zeros((self.ticks, self.width(SIGNALS[signal].kind)))
        part = self.signals[signal][start:stop]
        part[:, slice(None) if columns is None else columns] = value
        return self

    def add(self, signal: str, value: object, start: int, stop: int | None = None, columns: object = None) -> Cluster:
        """Adds to a signal."""
        if signal not in self.signals:
            self.signals[signal] = np.zeros((self.ticks, self.width(SIGNALS[signal].kind)))
        self.signals[signal][start:stop, slice(None) if columns is None else columns] += value
        return self

    def freeze(self, start: int, stop: int | None = None) -> Cluster:
        """No rank finishes a step from the tick on; with `stop` they go on where they stopped."""
        for name in ("rank.step", "rank.last_step_timestamp_seconds", "rank.loss", "rank.step_seconds",
                     "rank.collective_seq"):
            if name in self.signals:
                end = self.ticks if stop is None else stop
                values = self.signals[name]
                later = values[start + 1: start + 1 + self.ticks - end].copy()
                values[start:end] = values[start]
                if name == "rank.last_step_timestamp_seconds":
                    later += (end - start) * STEP
                values[end:] = later[:self.ticks - end]
        return self

    def pause(self, start: int, stop: int | None = None, power: float = 110.0, tensor: float = 0.0,
              traffic: float = 0.0) -> Cluster:
        """All GPUs wait at full utilisation; the network carries `traffic` of the usual."""
        n = self.width("gpu")
        shape = (len(range(*slice(start, stop).indices(self.ticks))), n)
        self.put("gpu.power_watts", self.rng("pause").normal(power, 3, shape), start, stop)
        self.put("gpu.tensor_active_ratio", tensor, start, stop)
        self.put("gpu.temperature_celsius", 40, start, stop)
        for way in ("received", "transmitted"):
            self.put(f"nic.{way}_bytes_per_second", 8e9 * traffic, start, stop)
        return self

    def phase(self, name: str, start: int, stop: int | None = None) -> Cluster:
        """The trainer says that it is in this phase."""
        for phase in ("init", "warmup", "train", "eval", "checkpoint", "done"):
            self.put(f"rank.phase_{phase}", float(phase == name), start, stop)
        if stop is None or stop >= self.ticks:
            assert self.job is not None
            self.job = replace(self.job, phase=name)
        return self

    def window(self, upto: int | None = None, age: float = 0.0, silent: tuple[str, ...] = (),
               order: dict[str, np.ndarray] | None = None, leaves: bool = True) -> Window:
        """The window at tick `upto` (the end where None). order: a permutation of the columns by kind."""
        ticks = self.ticks if upto is None else upto
        every = max(1, self.interval // STEP)
        rows = np.arange(ticks) // every * every
        times = START + 15_000 * np.arange(ticks)
        order = order or {}
        entities = {kind: tuple(targets[i] for i in order.get(kind, np.arange(len(targets))))
                    for kind, targets in self.entities.items()}
        blocks = {}
        for name, values in self.signals.items():
            kind = SIGNALS[name].kind
            if name in self.without or not len(entities[kind]):
                continue
            data = np.ascontiguousarray(values[rows][:, order.get(kind, np.arange(values.shape[1]))])
            n = data.shape[1]
            known = ~np.isnan(data)
            never = ~known.any(axis=0)
            first = np.where(never, np.nan, times[np.argmax(known, axis=0)] if ticks else np.nan)
            old = np.where(never, np.inf, STEP * np.argmax(known[::-1], axis=0) + age)
            blocks[name] = Block(name, entities[kind], data, old, np.full(n, float(self.interval)), first)
            for array in (data, blocks[name].age_seconds, blocks[name].interval_seconds, first):
                array.flags.writeable = False
        topology = Topology(
            {n: Place(n, "p5", leaf=f"leaf{i % 2}" if leaves else None, cooling=f"loop{i % 2}") for i, n in enumerate(self.names)},
            {(t.node or "", t.device or ""): NicPlace(t.node or "", t.device or "", c % 8)
             for c, t in enumerate(self.entities["nic"])}, {"scratch": tuple(self.names)})
        times.flags.writeable = False
        assert self.job is not None
        job = self.job
        if "rank" in order:
            job = replace(job, ranks=tuple(int(np.flatnonzero(order["rank"] == c)[0]) for c in job.ranks))
        end = int(times[-1]) if ticks else START
        return Window(end, STEP, times, entities, blocks, tuple(e for e in self.events if e.at <= end), (job,), topology,
                      frozenset(silent))


def throttle(cluster: Cluster, column: int, start: int, loss: float = 0.2, duty: float = 1.0) -> Cluster:
    """A GPU throttles by heat: bits, time in slowdown, no margin, 86 °C, part of the clock and of the power gone."""
    rows = cluster.ticks - start
    on = cluster.rng("duty").random(rows) < duty
    cluster.put("gpu.throttle_reasons_bits", np.where(on, 0x20, 0)[:, None], start, None, [column])
    cluster.put("gpu.thermal_violation_ratio", 0.8 * duty, start, None, [column])
    cluster.put("gpu.thermal_margin_celsius", -1, start, None, [column])
    cluster.put("gpu.temperature_celsius", 86, start, None, [column])
    cluster.put("gpu.memory_temperature_celsius", 90, start, None, [column])
    cluster.put("gpu.sm_clock_hertz", 1980e6 * (1 - loss), start, None, [column])
    cluster.put("gpu.power_watts", 630 * (1 - loss), start, None, [column])
    others = [c for c in range(cluster.width("gpu")) if c != column]
    cluster.add("gpu.power_watts", -150 * loss, start, None, others)  # they wait
    return cluster


def lose(cluster: Cluster, column: int, start: int, rate: float = 40.0) -> Cluster:
    """A NIC loses packets that it should receive; the same rail of the other nodes repairs it, each a share."""
    others = [c for c in range(column % 8, cluster.width("nic"), 8) if c != column]
    share = rate / max(1, len(others))
    if cluster.nic == "ethernet":
        return cluster.add("nic.packets_lost_per_second", 10 * rate, start, None, [column])
    cluster.add("nic.packets_lost_per_second", rate, start, None, [column])
    cluster.add("nic.retransmits_per_second", share, start, None, others)
    if cluster.nic == "efa":
        cluster.add("nic.retransmits_per_second", 10 * rate, start, None, [column])
        return cluster.add("nic.remote_impaired_per_second", 0.2 * share, start, None, others)
    cluster.add("nic.peer_loss_per_second", share, start, None, others)
    return cluster.add("nic.timeouts_per_second", 0.05 * share, start, None, others)


def hang(cluster: Cluster, start: int, behind: int | None = None) -> Cluster:
    """All ranks wait in a collective; the rank `behind` has not entered it."""
    cluster.freeze(start)
    cluster.pause(start)
    if behind is not None and "rank.collective_seq" in cluster.signals:
        cluster.add("rank.collective_seq", 1, start, None, [c for c in range(cluster.width("rank")) if c != behind])
    return cluster


def starve(cluster: Cluster, rank: int, at: int) -> Cluster:
    """The worker that reads the rank's node sheds load and misses one reading in ten."""
    worker = [rank // 8]
    cluster.put("collector.shed_level", 2.0, at, columns=worker)
    cluster.put("collector.shed_targets", 1.0, at, columns=worker)
    return cluster.put("collector.missed_slots_per_second", 2.0, at, columns=worker)


def gauge_xid(cluster: Cluster, column: int, start: int, code: int) -> Cluster:
    """The exporter's gauge changes to the code, and the program on the GPU is gone."""
    cluster.put("gpu.xid", float(code), start, None, [column])
    return cluster.put("gpu.utilization_ratio", 0.0, start, None, [column])


def vanish(cluster: Cluster, column: int, start: int) -> Cluster:
    """The exporter shows the GPU no longer."""
    for name in cluster.signals:
        if name.startswith("gpu."):
            cluster.put(name, np.nan, start, None, [column])
    return cluster


def not_finite(cluster: Cluster, start: int) -> Cluster:
    """All ranks show a NaN as their loss."""
    cluster.signals["rank.loss_nonfinite"] = np.zeros_like(cluster.signals["rank.loss"])
    cluster.put("rank.loss", np.nan, start)
    return cluster.put("rank.loss_nonfinite", 1.0, start)


def press(cluster: Cluster, node: int, start: int) -> Cluster:
    """Work stalls for memory, and little of it is left."""
    cluster.put("node.memory_available_bytes", 4e10, start, None, [node])
    return cluster.put("node.memory_stalled_ratio", 0.4, start, None, [node])


def stand(cluster: Cluster, node: int, start: int) -> Cluster:
    """The exporter of the node's GPUs gives the values of one moment again and again."""
    for name, values in cluster.signals.items():
        if name.startswith("gpu."):
            values[start:, 8 * node:8 * node + 8] = values[start, 8 * node:8 * node + 8]
    return cluster


def slow_down(cluster: Cluster, start: int, share: float = 0.25) -> Cluster:
    """All steps of the job take longer, nobody waits more than before."""
    return cluster.add("rank.step_seconds", share * cluster.step_seconds, start)


def lag(cluster: Cluster, column: int, start: int, share: float = 0.25) -> Cluster:
    """A rank works longer than before; all others wait for it, and each step of the job takes longer."""
    others = [c for c in range(cluster.width("rank")) if c != column]
    cluster.add("rank.step_seconds", share * cluster.step_seconds, start)
    return cluster.add("rank.comm_wait_seconds", share * cluster.step_seconds, start, None, others)


def wait_for_data(cluster: Cluster, start: int, share: float = 0.2) -> Cluster:
    """All ranks wait for their next batch, and each step of the job takes longer."""
    cluster.add("rank.step_seconds", share * cluster.step_seconds, start)
    return cluster.add("rank.data_wait_seconds", share * cluster.step_seconds, start)


# --- the health of jobs -----------------------------------------------------------------------------------------------
def spike(cluster: Cluster, start: int) -> Cluster:
    """The loss jumps, and the gradient norm with it."""
    cluster.signals["rank.grad_norm"][start:] *= 20
    return cluster.add("rank.loss", 1.4, start)


def stop_saving(cluster: Cluster, start: int) -> Cluster:
    """A job that saved each two minutes, before the window too, saves no more and trains on."""
    job = Target("job", job=JOB)
    cluster.events += [Event(START - 40_000 - 120_000 * k, job, "checkpoint", {"step": 990 - 30 * k, "state": "saved"})
                       for k in range(3, -1, -1)]
    return cluster.put("rank.last_checkpoint_step", cluster.signals["rank.last_checkpoint_step"][start - 1], start)


def crash_at_one_step(cluster: Cluster, start: int) -> Cluster:
    """Every two minutes the job starts again from its checkpoint and dies where it died before."""
    top = cluster.signals["rank.step"][start - 1].copy()
    for tick in range(start, cluster.ticks):
        cluster.signals["rank.step"][tick] = top - 30 + np.floor(3.75 * ((tick - start) % 8))
    return cluster


def corrupt(cluster: Cluster, rank: int, start: int) -> Cluster:
    """A rank's gradients are no longer what those of its peers are."""
    cluster.signals["rank.grad_norm"][start:, rank] *= 3
    return cluster


def answer_slowly(cluster: Cluster, start: int) -> Cluster:
    """One endpoint takes twice as long for each token."""
    cluster.signals["job.token_time_ratio"][start:, 1] *= 2
    return cluster
