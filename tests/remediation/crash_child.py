"""A Greylag in small that repairs one part until it is killed: the real store, the real engine, a world that outlives it.

Arguments: folder, seconds between two steps of the loop. The world is a file in the folder, one line for each command that
it carried out; it is written before the answer is given, so that a kill may fall between the two. Lines out: `ready` before
the first tick, `tick <ms>` after each commit, `over <state> <reason>` at the end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from core.protocols import TickCommit
from core.types import Action, Outcome
from pipeline.store.duck import DuckStore
from remediation.engine import Engine
from tests.remediation.worlds import ALL_KINDS, T0, TICK, Facts, World, cluster, finding, incident, policy

LASTS_MS = {"drain": 30_000, "reset_gpu": 15_000, "diagnose": 30_000, "resume_job": 30_000}


class LastingWorld(World):
    """Its orders stand in a file; when each began is in them, so that a new process knows what still runs."""

    def __init__(self, file: Path) -> None:
        super().__init__(states=cluster().states, lasts={k: v / 1000 for k, v in LASTS_MS.items()})
        self.file = file
        for line in file.read_text().splitlines() if file.exists() else ():
            row = json.loads(line)
            if row["id"] not in self.known:
                action = Action(row["id"], row["kind"], incident().culprit, {}, 60.0, "act", "inc-1", 1, row["step"], row["at"], "")
                self.known[row["id"]] = (action, Outcome(row["id"], "RUNNING", "policy"), row["at"])
                self.order.append(action)

    def _begin(self, action: Action) -> None:
        with self.file.open("a") as out:
            out.write(json.dumps({"id": action.id, "kind": action.kind, "step": action.step, "at": self.now}) + "\n")
        super()._begin(action)


def main(folder: str, pause: str) -> None:
    store, world = DuckStore(Path(folder)), LastingWorld(Path(folder) / "world.jsonl")
    engine = Engine(policy(), ALL_KINDS, world)
    text = store.state("engine")
    known = store.incident_records(id="inc-1") or [incident()]
    if text:
        engine.load(text, store.ledger())
    last, one, carried, facts = store.last_tick(), known[0], [], Facts()
    at = T0 + 120_000 if last is None else last + TICK
    print("ready", flush=True)
    while one.state not in ("resolved", "escalated"):
        world.now = at
        for order in world.order:  # what has ended meanwhile shows, whoever asks
            world._now(order.id)
        cured = any(a.kind == "reset_gpu" and world.poll(a.id).state == "DONE" for a in world.order)
        facts.findings, facts.steps = ([] if cured else [finding(at)]), [(0, 2.0), (T0 + 1, 2.0 if cured else 3.0)]
        step = engine.step(at, [one], facts)
        one = step.incidents[-1] if step.incidents else one
        time.sleep(float(pause))
        store.commit_tick(TickCommit(at, incidents=(one,), actions=(*carried, *step.actions), state={"engine": engine.dump()}))
        print(f"tick {at}", flush=True)
        time.sleep(float(pause))
        carried = engine.carry_out(at, world)
        time.sleep(float(pause))
        at += TICK
    print(f"over {one.state} {one.reason}", flush=True)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
