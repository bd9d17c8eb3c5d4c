"""A small language-model trainer for one real GPU that can be made to misbehave; needs PyTorch with CUDA.

`python train.py --folder DIR --seconds N [--resume] [--hang-at S] [--stall-at S] [--nan-at S]` trains a few transformer
blocks in bf16 on random tokens, logs like Megatron-LM, saves checkpoints, and writes DIR/state.json after each step for the
recorder. Seconds count from the first step. A hang is real: a kernel that spins for ever, and a rank that never returns.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch
from torch import nn

WIDTH, LAYERS, HEADS, TOKENS, BATCH, VOCABULARY = 4096, 6, 32, 2048, 8, 8192
LOG_EVERY, SAVE_EVERY_SECONDS, EVAL_EVERY_SECONDS, EVAL_STEPS = 5, 70.0, 100.0, 20
STALL_SECONDS = 1.6


class Block(nn.Module):
    """One transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layer(x, src_mask=mask, is_causal=True)


class Model(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


class Trainer:
    """The run: its model, its place in it, and what it tells."""

    def __init__(self, folder: Path, resume: bool) -> None:
        torch.manual_seed(7)
        self.folder, self.step, self.saved, self.skipped = folder, 0, 0, 0
        self.state: dict[str, object] = {}
        self.tell(phase="init")
        self.model = Model().cuda().bfloat16()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.mask = nn.Transformer.generate_square_subsequent_mask(TOKENS, device="cuda", dtype=torch.bfloat16)
        # Text that can be learnt: each token follows from the one before it by a fixed permutation, with noise.
        self.next = torch.randperm(VOCABULARY, device="cuda")
        if resume:
            kept = torch.load(folder / "checkpoint.pt", map_location="cuda")
            self.model.load_state_dict(kept["model"])
            self.step = self.saved = int(kept["step"])
            print(f" successfully loaded checkpoint from checkpoint.pt at iteration {self.step}", flush=True)

    def tell(self, **what: object) -> None:
        """Replaces state.json at once."""
        self.state.update(what)
        part = self.folder / "state.part"
        part.write_text(json.dumps(self.state))
        part.replace(self.folder / "state.json")

    def batch(self) -> torch.Tensor:
        tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS + 1), device="cuda")
        for i in range(1, TOKENS + 1, 2):
            tokens[:, i] = self.next[tokens[:, i - 1]]
        return tokens

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        out = self.model(tokens[:, :-1], self.mask).float()
        return nn.functional.cross_entropy(out.view(-1, VOCABULARY), tokens[:, 1:].reshape(-1))

    def train_step(self, stall: float) -> float:
        """One step; gives its seconds."""
        began = time.time()
        if stall:
            time.sleep(stall)
        tokens = self.batch()
        torch.cuda.synchronize()
        data = time.time() - began
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(tokens)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        value, norm = float(loss), float(norm)
        self.step += 1
        took = time.time() - began
        bad = not math.isfinite(value)
        self.tell(phase="train", step=self.step, last_step_timestamp_seconds=time.time(), step_seconds=took,
                  data_wait_seconds=data, compute_seconds=took - data, loss=repr(value), grad_norm=repr(norm),
                  tokens_per_second=BATCH * TOKENS / took, nonfinite_total=int(self.state.get("nonfinite_total", 0)) + bad,
                  last_checkpoint_step=self.saved)
        if self.step % LOG_EVERY == 0:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
            print(f" [{stamp}] iteration {self.step:8d}/  100000 | consumed samples: {self.step * BATCH:12d} | elapsed time per "
                  f"iteration (ms): {took * 1000:.1f} | learning rate: 2.000000E-02 | global batch size: {BATCH:5d} | lm loss: "
                  f"{value:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} | number of skipped iterations:   0 | "
                  f"number of nan iterations:   {int(bad)} |", flush=True)
        return took

    def evaluate(self) -> None:
        self.tell(phase="eval")
        with torch.no_grad():
            loss = sum(float(self.loss(self.batch())) for _ in range(EVAL_STEPS)) / EVAL_STEPS
        print(f" validation loss at iteration {self.step} | lm loss value: {loss:.6E} |", flush=True)

    def save(self) -> None:
        began = time.time()
        self.tell(phase="checkpoint")
        print(f"saving checkpoint at iteration {self.step:7d} to checkpoint.pt in torch format", flush=True)
        torch.save({"model": self.model.state_dict(), "step": self.step}, self.folder / "checkpoint.part")
        (self.folder / "checkpoint.part").replace(self.folder / "checkpoint.pt")
        self.saved = self.step
        print(f"  successfully saved checkpoint from iteration {self.step:7d} to checkpoint.pt "
              f"[ t {time.time() - began:.2f} s ]", flush=True)

    def hang(self) -> None:
        """Never comes back."""
        print("the rank enters a kernel that spins", file=sys.stderr, flush=True)
        while True:
            torch.cuda._sleep(1 << 40)
            torch.cuda.synchronize()

    def poison(self) -> None:
        """One weight is not a number, as a flipped exponent leaves it."""
        with torch.no_grad():
            self.model.head.weight[0, 0] = float("nan")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--resume", action="store_true")
    for name in ("hang", "stall", "nan"):
        parser.add_argument(f"--{name}-at", type=float)
    args = parser.parse_args()
    trainer = Trainer(args.folder, args.resume)
    began = saved = evaluated = time.time()
    while time.time() - began < args.seconds:
        age = time.time() - began
        if args.hang_at is not None and age >= args.hang_at:
            trainer.hang()
        if args.nan_at is not None and age >= args.nan_at:
            trainer.poison()
        trainer.train_step(STALL_SECONDS if args.stall_at is not None and age >= args.stall_at else 0.0)
        if time.time() - saved >= SAVE_EVERY_SECONDS:
            trainer.save()
            saved = time.time()
        if time.time() - evaluated >= EVAL_EVERY_SECONDS:
            trainer.evaluate()
            evaluated = time.time()
    trainer.save()
    trainer.tell(phase="done")


if __name__ == "__main__":
    main()
