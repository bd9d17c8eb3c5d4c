"""Sizes of a training job, and what a slower part costs its step: data that scenarios and faults read."""

from __future__ import annotations

from dataclasses import dataclass

# Clock to speed: kernels that wait for memory lose less than the clock does.
CLOCK_EXPONENT = 0.95
# What a rank waits for its next batch although the loader is ahead of it: no more than a hundredth of a short step.
FETCH_SECONDS, FETCH_SHARE = 0.02, 0.01


@dataclass(frozen=True, slots=True)
class JobShape:
    """Seconds are those of a healthy step or phase; intervals lie between the end of one and the start of the next.

    compute_seconds: kernels of one rank a step; tensor_seconds: collectives inside a tensor group (NVLink);
    collective_seconds: those across the data group (the rail's links); hop_seconds: handing activations to the next
    pipeline stage; loader_seconds: what a loader process needs for a rank's batch, behind the compute unless slowed.
    tp None: as many as the node has GPUs, at most 8. eval_every_seconds None: no evaluation. step_noise: sigma of the
    log-normal noise of a step; rough_share of steps take longer by an exponential share of mean rough_mean, outlier_share
    by outlier. loss_noise: standard deviation of the loss around its trend. heavy_every: each so manieth step takes longer by the share
    heavy_excess (an optimiser that does its costly part now and then); 0 = none does. extra_tiers: (checkpoint tier, every seconds) beside the main one.
    checkpoint_on_clock: saves begin at whole multiples of the interval, whenever the job was started, and not one interval after the last. trainer: megatron or torchtitan, the
    form of the log. process_groups: the watchdog names the process group, as newer PyTorch does.
    """

    compute_seconds: float = 2.4
    tensor_seconds: float = 0.15
    collective_seconds: float = 0.58
    hop_seconds: float = 0.03
    loader_seconds: float = 1.2
    tp: int | None = None
    pp: int = 1
    microbatches: int = 16
    checkpoint_every_seconds: float = 300.0
    checkpoint_on_clock: bool = False
    checkpoint_seconds: tuple[float, float] = (20.0, 30.0)
    checkpoint_tier: str = "lustre"
    extra_tiers: tuple[tuple[str, float], ...] = ()
    eval_every_seconds: float | None = None
    eval_seconds: float = 30.0
    load_seconds: tuple[float, float] = (40.0, 60.0)
    step_noise: float = 0.008
    rough_share: float = 0.45
    rough_mean: float = 0.072
    outlier_share: float = 0.027
    outlier: tuple[float, float] = (0.33, 1.3)
    loss_noise: float = 0.0266
    heavy_every: int = 0
    heavy_excess: float = 3.0
    bytes_per_step: float = 2.1e10
    tokens_per_rank: int = 3072
    memory_mib: float = 71_500.0
    checkpoint_bytes_per_node: float = 5.6e10
    first_step: int = 18_000
    last_step: int = 500_000
    log_every: int = 5
    fp16: bool = False
    trainer: str = "megatron"
    process_groups: bool = False

    @property
    def fetch_seconds(self) -> float:
        """What a rank waits for a batch in a healthy step."""
        return min(FETCH_SECONDS, FETCH_SHARE * self.compute_seconds)


@dataclass(frozen=True, slots=True)
class Impact:
    """Turns a share of the step into the factor on one part that costs it: 0.2 = a step 20 % longer.

    A slow rank holds up its tensor group, its pipeline and then everybody, so its whole excess is the step's.
    """

    shape: JobShape
    pp: int = 1
    dp: int = 2

    @property
    def step_seconds(self) -> float:
        """The healthy step without its noise, pipeline bubble included."""
        s = self.shape
        stage = s.compute_seconds + s.tensor_seconds + s.fetch_seconds
        hops = s.hop_seconds if self.pp > 1 else 0.0
        bubble = (stage + hops) * (self.pp - 1) / s.microbatches
        return stage + hops + bubble + (s.collective_seconds if self.dp > 1 else 0.0)

    def compute(self, share: float) -> float:
        """Factor on one rank's kernels (JobKnobs.compute, GpuKnobs.compute, HostBank.launch_factor)."""
        return 1.0 + share * self.step_seconds / self.shape.compute_seconds

    def clock(self, share: float) -> float:
        """Share of the clock that is left."""
        return float(self.compute(share) ** (-1.0 / CLOCK_EXPONENT))

    def link(self, share: float) -> float:
        """Factor on one endpoint's collectives (NicKnobs.slowness, Network.endpoint)."""
        return 1.0 + share * self.step_seconds / self.link_seconds

    @property
    def link_seconds(self) -> float:
        """What of a step hangs on the links between nodes."""
        hops = self.shape.hop_seconds if self.pp > 1 else 0.0
        return max(1e-3, hops + (self.shape.collective_seconds if self.dp > 1 else 0.0))

    def nvlink(self, share: float) -> float:
        """Factor on the collectives inside a node (GpuBank.nvlink_factor)."""
        return 1.0 + share * self.step_seconds / self.shape.tensor_seconds

    def loader(self, share: float) -> float:
        """Factor on a node's loader (HostBank.data_factor, Storage.read_factor): it shows only beyond the compute."""
        return (self.shape.compute_seconds + share * self.step_seconds) / self.shape.loader_seconds

    def data(self, share: float) -> float:
        """Factor on one rank's wait for data (JobKnobs.data)."""
        return 1.0 + share * self.step_seconds / self.shape.fetch_seconds
