"""Training ranks: `greylag_train_*{job,rank,node,gpu}` (DESIGN §2), exposed by the helper or derived from logs.

A rank's job is `exported_job` where the scrape kept the page's label under that name, else `job`. A series without a
whole-number `rank` is stored and means nothing: which rank it speaks of cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.meaning import Meaning, Row, labels_of, node_of
from core.protocols import SourcePlugin, TargetInfo
from core.targets import PHASES
from core.types import Series, SignalRef, Target

PREFIX = "greylag_train_"
IDENTITY = ("node",)

TABLE: dict[str, Meaning] = {
    "step": Meaning("rank.step"),
    "last_step_timestamp_seconds": Meaning("rank.last_step_timestamp_seconds"),
    "step_seconds": Meaning("rank.step_seconds"),
    "data_wait_seconds": Meaning("rank.data_wait_seconds"),
    "compute_seconds": Meaning("rank.compute_seconds"),
    "comm_wait_seconds": Meaning("rank.comm_wait_seconds"),
    "loss": Meaning("rank.loss"),  # its companion rank.loss_nonfinite is the mapper's (core.derive.COMPANIONS)
    "grad_norm": Meaning("rank.grad_norm"),
    "tokens_per_second": Meaning("rank.tokens_per_second"),
    "batch_samples": Meaning("rank.batch_samples"),
    "nonfinite_total": Meaning("rank.nonfinite_per_second", 1.0, True),
    "skipped_total": Meaning("rank.skipped_per_second", 1.0, True),
    "last_checkpoint_step": Meaning("rank.last_checkpoint_step"),
    "collective_seq": Meaning("rank.collective_seq"),
}
METRIC_OF: dict[str, str] = {meaning.signal: PREFIX + name for name, meaning in TABLE.items()}
PHASE_METRIC = PREFIX + "phase"


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a trainer's series."""
    if not series.name.startswith(PREFIX):
        return None
    labels = labels_of(series)
    name = series.name.removeprefix(PREFIX)
    if name == "phase":
        phase = labels.get("phase")
        meaning = Meaning(f"rank.phase_{phase}") if phase in PHASES else None
    else:
        meaning = TABLE.get(name)
    rank = labels.get("rank", "")
    job = labels.get("exported_job") or labels.get("job")
    if meaning is None or job is None or not (rank.isascii() and rank.isdigit()):
        return None
    node = labels.get("exported_node") or node_of(labels, target, IDENTITY)
    return meaning.ref(Target("rank", node, labels.get("gpu"), job=job, rank=int(rank)))


def described() -> Iterator[Row]:
    """The rows for the docs."""
    part = "rank (`job`, `rank`) on `node`, `gpu`"
    yield from (Row(PREFIX + name, meaning, part) for name, meaning in TABLE.items())
    yield from (Row(f'{PHASE_METRIC}{{phase="{phase}"}}', Meaning(f"rank.phase_{phase}"), part) for phase in PHASES)


PLUGIN = SourcePlugin("trainer", map_series=map_series, identity=IDENTITY, prefixes=(PREFIX,))
