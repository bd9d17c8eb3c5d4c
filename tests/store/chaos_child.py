"""A process that appends batches and commits ticks until it is killed; each acknowledgement goes to its standard output.

Arguments: folder, epoch, seed. Lines out: `batch <seq>` and `tick <number>` after the commit, `ready` before the first.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from core.protocols import TickCommit
from pipeline.store.duck import DuckStore
from pipeline.store.writer import StoreWriter
from tests.store.build import STEP, T0, action, batch, layout, record, scrape, tick

SERIES = 20


def main(folder: str, seed: str) -> None:
    chance = random.Random(int(seed))
    store = DuckStore(Path(folder))
    writer = StoreWriter(store)
    epoch = writer.epoch("w").result()
    shape = layout(names=[f"m{i}" for i in range(SERIES)])
    # Goes on after all that is stored: a batch may have been committed without its tick.
    number = max(0, (max(store.newest_ms, store.last_tick() or 0) - T0) // STEP + 1)
    print(f"ready {epoch}", flush=True)
    seq = 0
    while True:
        # 5 to 10 minutes a batch, so that hours are over and sealed every few batches.
        slots = chance.randint(20, 40)
        at = T0 + number * STEP
        scrapes = [scrape(shape, at + n * STEP, [epoch * 1_000_000 + seq] * SERIES) for n in range(slots)]
        writer.submit(batch(seq, *scrapes, layouts=[shape], epoch=epoch)).result()
        print(f"batch {epoch} {seq} {number} {slots}", flush=True)
        number += slots
        commit: TickCommit = tick(number, actions=(action(number),), records=(record(number),), state={"n": str(number)})
        writer.commit_tick(commit).result()
        print(f"tick {number}", flush=True)
        seq += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
