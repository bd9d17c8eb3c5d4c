"""A receiver as a process of its own that a test may kill: it commits what it took by writing it to a file, as an owner
would, and only then tells the receiver. Run as `python -m tests.push.collect FOLDER PORT OUT`.

OUT gets one JSON line for each commit: {"samples": [[name, [[label, value]…], ms, bits]…], "layouts": n, "events": n}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from collectors.mapping import Mapper
from collectors.push.receiver import PushReceiver
from core.clock import WallClock
from core.config import GreylagConfig
from core.derive import absent
from core.plugins import load_plugins
from core.telemetry import Telemetry


def line_of(results: list[Any], events: list[Any]) -> str:
    rows = []
    for layout, scrape in results:
        bits = np.ascontiguousarray(scrape.values, np.float64).view(np.uint64)
        here = ~absent(scrape.values)
        rows += [[s.name, s.labels, scrape.at, int(b)] for s, b, k in zip(layout.series, bits, here, strict=True) if k]
    layouts = sorted({layout.id for layout, _ in results})
    return json.dumps({"samples": rows, "layouts": layouts, "events": len(events)})


async def main(folder: str, port: str, out: str) -> None:
    sources = load_plugins("collectors.sources")
    config = replace(GreylagConfig(), data_dir=folder, push_listen=f"127.0.0.1:{port}")
    clock = WallClock()
    receiver = PushReceiver(config, "collector-0", Mapper(sources), sources, Telemetry(), clock)
    with open(out, "a", encoding="utf-8") as file:
        await receiver.start()
        print("ready", flush=True)
        while True:
            await asyncio.sleep(0.2)
            results, events, mark = receiver.take(clock.now_ms())
            if results or events:
                file.write(line_of(results, events) + "\n")
                file.flush()
                os.fsync(file.fileno())
            receiver.committed(mark)


def committed(out: Path) -> list[dict[str, Any]]:
    """What was committed, a line each; a line that a kill cut short was not."""
    text = out.read_text(encoding="utf-8") if out.exists() else ""
    lines = []
    for line in text.split("\n"):
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return [line for line in lines if isinstance(line, dict)]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
