"""A recording of the bundled fleet with its truth beside it: nobody acted while it was made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import yaml

from app.virtual import VirtualSite
from fleet.state import truth
from pipeline.store.duck import DuckStore

MINUTE_MS = 60_000


def record(folder: Path, minutes: int, fault: str = "thermal_throttle", nodes: int = 3, seed: int = 5, before: int = 4) -> Path:
    """The folder, with a store, an inventory and `rec.truth.jsonl`. The fault comes after `before` minutes and stays."""
    site = VirtualSite(nodes=nodes, spares=1, seed=seed, act=False)
    folder.mkdir(parents=True)
    (folder / "inventory.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(site._shown))))
    store, start = DuckStore(folder / "greylag.duckdb"), site.world.now_ms
    for tick in range(start + 15_000, start + minutes * MINUTE_MS + 1, 15_000):
        if tick == start + before * MINUTE_MS:
            site.world.inject(fault, None, 0.3, seed)
        # Boots of weeks ago are told at the start: a replay would begin with them.
        store.append([replace(b, events=tuple(e for e in b.events if e.at >= start)) for b in site.source.advance(tick)])
    store.seal()
    store.close()
    rows = truth(site.world)
    (folder / "rec.truth.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
