"""A small real training loop: logistic regression by mini-batch gradient descent on numpy, seconds a run.

It writes checkpoints and resumes from them, exposes the trainer metrics, and can be told to hang or to produce NaN:

    python -m sample_data.trainer.train --steps 200 --checkpoint /tmp/ck.npz --port 9401 --hang-at 80
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sample_data.trainer.metrics import TrainerMetrics


@dataclass
class Model:
    """Weights, step and the generator's state: all that a checkpoint holds."""

    weights: np.ndarray
    step: int = 0

    def save(self, path: Path) -> None:
        """Writes the checkpoint beside, then renames it: a reader never sees half of one."""
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("wb") as file:
            np.savez(file, weights=self.weights, step=self.step)
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Model:
        """Reads a checkpoint."""
        with np.load(path) as data:
            return cls(data["weights"], int(data["step"]))


def dataset(rows: int, columns: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features float64[rows, columns] and labels 0/1 of a noisy linear rule."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, columns))
    truth = rng.normal(size=columns)
    return features, (features @ truth + rng.normal(scale=2.0, size=rows) > 0).astype(float)


def batches(rows: int, size: int, seed: int) -> Iterator[np.ndarray]:
    """Row numbers of one mini-batch after another, for ever."""
    rng = np.random.default_rng(seed)
    while True:
        yield rng.integers(0, rows, size)


def train_step(model: Model, x: np.ndarray, y: np.ndarray, rate: float) -> tuple[float, float]:
    """One gradient step in place; gives loss and gradient norm."""
    guess = 1 / (1 + np.exp(-np.clip(x @ model.weights, -30, 30)))
    clipped = np.clip(guess, 1e-9, 1 - 1e-9)
    loss = float(-np.mean(y * np.log(clipped) + (1 - y) * np.log(1 - clipped)))
    gradient = x.T @ (guess - y) / len(y)
    model.weights -= rate * gradient
    return loss, float(np.linalg.norm(gradient))


def run(args: argparse.Namespace) -> int:
    """Trains; 0 when all steps are done."""
    metrics = TrainerMetrics(args.job, args.rank, args.node, args.gpu, args.port)
    print(json.dumps({"port": metrics.port}), flush=True)
    metrics.phase("init")
    features, labels = dataset(4096, 64, args.seed)
    path = Path(args.checkpoint) if args.checkpoint else None
    model = Model.load(path) if path and path.exists() else Model(np.zeros(features.shape[1]))
    print(f"resumed at step {model.step}" if model.step else "started at step 0", flush=True)
    metrics.phase("train")
    picks = batches(len(features), 256, args.seed + model.step)
    while model.step < args.steps:
        began = time.monotonic()
        rows = next(picks)
        waited = time.monotonic() - began
        if model.step == args.hang_at:
            print(f"hanging at step {model.step}", flush=True)
            while True:
                time.sleep(60)
        loss, norm = train_step(model, features[rows], labels[rows], args.rate)
        time.sleep(args.pause)
        model.step += 1
        if model.step == args.nan_at:
            loss = float("nan")
        seconds = time.monotonic() - began
        metrics.step(model.step, loss, seconds, waited, grad_norm=norm, collective_seq=model.step * 4,
                     tokens_per_second=len(rows) / seconds)
        if path and model.step % args.checkpoint_every == 0:
            metrics.phase("checkpoint")
            model.save(path)
            metrics.checkpoint(model.step)
            metrics.phase("train")
    metrics.phase("done")
    print(f"done at step {model.step}", flush=True)
    time.sleep(args.linger)
    metrics.close()
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("--job", default="sample")
    found.add_argument("--rank", type=int, default=0)
    found.add_argument("--node", default="localhost")
    found.add_argument("--gpu", type=int, default=0)
    found.add_argument("--port", type=int, default=0, help="0 takes a free one and prints it")
    found.add_argument("--steps", type=int, default=200)
    found.add_argument("--pause", type=float, default=0.02, help="seconds added to each step")
    found.add_argument("--rate", type=float, default=0.5)
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--checkpoint", help="file to write and to resume from")
    found.add_argument("--checkpoint-every", type=int, default=50)
    found.add_argument("--hang-at", type=int, default=-1, help="step at which it stops for ever")
    found.add_argument("--nan-at", type=int, default=-1, help="step whose loss is NaN")
    found.add_argument("--linger", type=float, default=0.0, help="seconds to serve after the end")
    return found


if __name__ == "__main__":
    sys.exit(run(parser().parse_args()))
