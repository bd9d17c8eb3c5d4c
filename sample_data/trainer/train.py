"""A small real training job: logistic regression by mini-batch gradient descent on numpy, seconds a run.

It writes checkpoints and resumes from them, exposes the trainer metrics, and can be told to hang or to produce NaN:

    python -m sample_data.trainer.train --steps 200 --checkpoint /tmp/ck.npz --port 9401 --hang-at 80

Several ranks are several processes that average their gradients over TCP; give all of them the same --rendezvous:

    python -m sample_data.trainer.train --rank 0 --world 2 --rendezvous 127.0.0.1:29500 &
    python -m sample_data.trainer.train --rank 1 --world 2 --rendezvous 127.0.0.1:29500 --node n2 --hang-at 80
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sample_data.trainer.metrics import TrainerMetrics
from sample_data.trainer.reduce import AllReduce
from sample_data.trainer.saves import agreed, kept, make_room, spans, trusted

ROWS, COLUMNS, BATCH = 4096, 64, 256


@dataclass
class Model:
    """Weights and the last finished step: all that a checkpoint holds."""

    weights: np.ndarray
    step: int = 0

    def save(self, path: Path, at: float | None = None) -> None:
        """Writes the checkpoint beside, then renames it: a reader never sees half of one. at: now, in the job's own time."""
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("wb") as file:
            np.savez(file, weights=self.weights, step=self.step, saved_at=time.time() if at is None else at)
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Model:
        """Reads a checkpoint."""
        with np.load(path) as data:
            return cls(data["weights"], int(data["step"]))


class ScaledTime:
    """Time that runs `scale` times faster than the wall from `origin` (seconds since the epoch) on.

    For demonstrations, where minutes should pass in seconds; processes with one origin agree on the time.
    """

    def __init__(self, scale: float, origin: float | None = None) -> None:
        self.scale = scale
        self._origin = time.time() if origin is None else origin

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._origin + self.seconds(time.time() - self._origin)

    def seconds(self, wall_seconds: float) -> float:
        """What a span of wall time is here."""
        return wall_seconds * self.scale


def dataset(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features float64[row, column] and labels 0/1 of a noisy linear rule."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(ROWS, COLUMNS))
    truth = rng.normal(size=COLUMNS)
    return features, (features @ truth + rng.normal(scale=2.0, size=ROWS) > 0).astype(float)


def batch(seed: int, rank: int, step: int) -> np.ndarray:
    """Row numbers of a mini-batch. By step, so that a run that resumes goes on as if it had never stopped."""
    return np.random.default_rng((seed, rank, step)).integers(0, ROWS, BATCH)


def gradient(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean log loss of the batch, and its gradient."""
    guess = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
    clipped = np.clip(guess, 1e-9, 1 - 1e-9)
    loss = float(-np.mean(y * np.log(clipped) + (1 - y) * np.log(1 - clipped)))
    return loss, x.T @ (guess - y) / len(y)


class Untrusted(Exception):
    """Nothing is left to begin from."""


class Trainer:
    """One rank."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.time = ScaledTime(args.time_scale, args.time_origin)
        self.metrics = TrainerMetrics(args.job, args.rank, args.node, args.gpu, args.port, clock=self.time.now)
        self.path = Path(args.checkpoint) if args.checkpoint else None
        self.found = kept(self.path) if self.path is not None else []
        self.trusted = trusted(self.found, spans(args.distrusts))
        self.model = Model.load(self.trusted[0].path) if self.trusted else Model(np.zeros(COLUMNS))

    def run(self) -> None:
        """Trains until all steps are done. Raises OSError when another rank has gone, Untrusted."""
        self.metrics.phase("init")
        print(json.dumps({"port": self.metrics.port, "step": self.model.step}), flush=True)
        features, labels = dataset(self.args.seed)
        group = AllReduce(self.args.rank, self.args.world, self.args.rendezvous)
        self.begin(group)
        self.metrics.phase("train")
        while self.model.step < self.args.steps:
            self.step(features, labels, group)
            if self.path and self.model.step % self.args.checkpoint_every == 0:
                self.save(self.path)
        self.metrics.phase("done")
        group.close()

    def begin(self, group: AllReduce) -> None:
        """All ranks begin from one step. Raises Untrusted where they are told to trust none of the checkpoints that are there."""
        chosen = agreed(self.trusted, group)
        if chosen is None and self.found and self.args.distrusts:
            raise Untrusted(f"there is no checkpoint from outside {self.args.distrusts}")
        self.model = Model.load(chosen.path) if chosen is not None else Model(np.zeros(COLUMNS))

    def step(self, features: np.ndarray, labels: np.ndarray, group: AllReduce) -> None:
        """One step: load, compute, average over the ranks, update."""
        model, args = self.model, self.args
        began = time.monotonic()
        rows = batch(args.seed, args.rank, model.step)
        x, y = features[rows], labels[rows]
        loaded = time.monotonic()
        if model.step == args.hang_at:
            print(f"hanging at step {model.step}", flush=True)
            while True:  # before the collective: the other ranks wait in it for this one
                time.sleep(60)
        if 0 <= args.nan_at <= model.step:
            x = np.where(np.arange(x.size).reshape(x.shape) == 0, np.nan, x)
        loss, mine = gradient(model.weights, x, y)
        time.sleep(args.pause)
        computed = time.monotonic()
        self.metrics.collective(model.step + 1)
        mean = group.mean(mine)
        reduced = time.monotonic()
        model.weights = model.weights - args.rate * mean
        model.step += 1
        spent = self.time.seconds
        seconds = spent(time.monotonic() - began)
        self.metrics.step(
            model.step, loss, seconds, spent(loaded - began), grad_norm=float(np.linalg.norm(mean)),
            compute_seconds=spent(computed - loaded), comm_wait_seconds=spent(reduced - computed),
            tokens_per_second=len(rows) / seconds)

    def save(self, path: Path) -> None:
        """Writes a checkpoint; none of weights that are not finite, because nothing could be resumed from it, unless it is told
        to be as careless as many trainers are."""
        if not np.isfinite(self.model.weights).all() and not self.args.save_anything:
            return
        self.metrics.phase("checkpoint")
        make_room(path, self.args.keep)
        self.model.save(path, self.time.now())
        self.metrics.checkpoint(self.model.step)
        self.metrics.phase("train")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("--job", default="sample")
    found.add_argument("--rank", type=int, default=0)
    found.add_argument("--world", type=int, default=1, help="number of ranks")
    found.add_argument("--rendezvous", default="127.0.0.1:29500", help="host:port on which rank 0 meets the others")
    found.add_argument("--node", default="localhost")
    found.add_argument("--gpu", type=int, default=0)
    found.add_argument("--port", type=int, default=0, help="of the metrics; 0 takes a free one and prints it")
    found.add_argument("--steps", type=int, default=200)
    found.add_argument("--pause", type=float, default=0.02, help="seconds added to each step")
    found.add_argument("--rate", type=float, default=0.5)
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--checkpoint", help="file to write and to resume from")
    found.add_argument("--checkpoint-every", type=int, default=50)
    found.add_argument("--keep", type=int, default=1, help="how many checkpoints are kept")
    found.add_argument("--distrusts", default=os.environ.get("GREYLAG_DISTRUSTS", ""), metavar="FROM/UNTIL",
                       help="no checkpoint from within these times is loaded; words in RFC 3339 (default: $GREYLAG_DISTRUSTS)")
    found.add_argument("--save-anything", action="store_true", help="saves weights that are not finite as well")
    found.add_argument("--hang-at", type=int, default=-1, help="finished steps after which this rank stops for ever")
    found.add_argument("--nan-at", type=int, default=-1, help="finished steps after which its data holds a NaN")
    found.add_argument("--time-scale", type=float, default=1.0,
                       help="timestamps and durations run so many times faster than the wall; for demonstrations")
    found.add_argument("--time-origin", type=float, help="since when they do, seconds since the epoch; default: the start")
    found.add_argument("--linger", type=float, default=0.0, help="seconds to serve after the end")
    return found


def main(argv: list[str] | None = None) -> int:
    """Trains; 0 when all steps are done, 1 when another rank left."""
    args = parser().parse_args(argv)
    trainer = Trainer(args)
    try:
        trainer.run()
    except (OSError, Untrusted) as error:
        print(f"rank {args.rank} stopped at step {trainer.model.step}: {error}", file=sys.stderr)
        return 1
    print(f"done at step {trainer.model.step}", flush=True)
    time.sleep(args.linger)
    trainer.metrics.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
