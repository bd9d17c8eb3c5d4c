"""`greylag replay`: recordings and stores through the same ingest, windows, detectors and incidents as live, in virtual time.

One process, one thread, lock-step: advance → feed → tick → actions (SIMULATED) applied at that instant. Nothing of the
output depends on the wall clock, so two replays of the same input give the same bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from app import wiring
from app.brain import Brain, Ticked
from app.stored import StoreFrames, Together, open_stored, split_stores
from app.story import Teller
from collectors.log_rules import read_rules
from collectors.mapping import Mapper
from collectors.recording import Recording
from core.clock import TICK_MS, monotonic_seconds, rfc3339, tick_at_or_after
from core.errors import BadInput
from core.inventory import Inventory
from core.protocols import FrameSource, NodeView, TickCommit
from core.render import dumps
from core.telemetry import Telemetry
from core.types import Action, Batch, Outcome
from pipeline.store.duck import DuckStore
from pipeline.store.sorting import DuckSorter
from remediation.engine import Engine
from remediation.policy import read_policy

Say = Callable[[str], None]
BATCHES_PER_COMMIT = 40


class Watch(Protocol):
    """Somebody who follows a replay tick by tick."""

    def begin(self, brain: Brain, inventory: Inventory) -> None:
        """Before the first tick."""
        ...

    def tick(self, at: int, brain: Brain, ticked: Ticked) -> None:
        """Tick `at` (ms) was judged."""
        ...


class RecordedWorld:
    """Door and view of a recording: it shows the inventory, and nothing can be done to it any more."""

    def __init__(self, inventory: Inventory) -> None:
        self._nodes = {n.name: NodeView(n.name, n.state) for n in inventory.nodes}

    def nodes(self) -> Mapping[str, NodeView]:
        return self._nodes

    def submit(self, action: Action) -> Outcome:
        return Outcome(action.id, "SIMULATED", "simulated", 0.0, action.at)

    def poll(self, action_id: str) -> Outcome:
        return Outcome(action_id, "SIMULATED", "simulated")


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What `greylag replay` was asked for."""

    paths: tuple[str, ...]
    inventory: str | None = None
    policy: str | None = None
    keep: str | None = None
    log_rules: str | None = None
    detectors: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Tally:
    """Counts what the summary says: incidents that were merged into a wider one count as none."""

    def __init__(self) -> None:
        self.findings = 0
        self._incidents: set[str] = set()

    def take(self, line: str) -> None:
        """Counts one line of the story."""
        if line.startswith('{"type":"finding","event":"opened"'):
            self.findings += 1
        elif line.startswith('{"type":"incident"'):
            one = json.loads(line)["incident"]
            self._incidents.add(one["id"])
            if one["state"] == "merged":
                self._incidents.discard(one["id"])

    @property
    def incidents(self) -> int:
        return len(self._incidents)


def make_brain(inventory: Inventory, policy: str | None, detectors: Mapping[str, Any]) -> tuple[Brain, RecordedWorld]:
    """A brain for virtual time; with a policy its actions are simulated."""
    plugins, params = wiring.detectors(detectors, "detectors")
    world = RecordedWorld(inventory)
    engine = None
    if policy is not None:
        from core.targets import ACTION_KINDS

        read = dataclasses.replace(read_policy(policy), mode="observe")
        engine = Engine(read, frozenset(ACTION_KINDS), world)
    return Brain(plugins, params, inventory, engine, Telemetry()), world


def run_lockstep(source: FrameSource, brain: Brain, world: RecordedWorld, span: tuple[int, int], say: Say,
                 store: DuckStore | None = None, progress: Say | None = None, watch: Watch | None = None) -> Tally:
    """Ticks from span[0] to span[1] (ms, both multiples of 15 s, both judged)."""
    tally = Tally()
    pending: list[Any] = []
    told = monotonic_seconds()
    for at in range(span[0], span[1] + 1, TICK_MS):
        for batch in source.advance(at):
            brain.feed(batch)
            if store is not None:
                pending.append(batch)
        ticked = brain.tick(at)
        commit = ticked.commit
        if watch is not None:
            watch.tick(at, brain, ticked)
        if store is not None and ticked.events:
            pending.append(Batch("changes", 1, at // TICK_MS, at, (), (), ticked.events))
        for record in commit.records:
            tally.take(record.line)
            say(record.line)
        brain.carry_out(at, world)
        if store is not None:
            _keep(store, pending, commit, last=at == span[1])
        if progress is not None and monotonic_seconds() - told > 2:
            told = monotonic_seconds()
            done = (at - span[0]) / max(1, span[1] - span[0])
            progress(f"replayed to {rfc3339(at)} ({done:.0%})")
    return tally


def _keep(store: DuckStore, pending: list[Any], commit: TickCommit, last: bool) -> None:
    if pending and (last or len(pending) >= BATCHES_PER_COMMIT or commit.records):
        store.append(pending)
        pending.clear()
        store.seal()
    store.commit_tick(commit)


def sources_of(options: ReplayOptions, held: contextlib.ExitStack) -> tuple[Recording, list[StoreFrames]]:
    """The recording and the stores among the paths; `held` closes them."""
    stores, rest = split_stores(options.paths)
    everything = wiring.sources()
    readers = {name: s for name, s in everything.items() if s.parse_line is not None}
    rules = read_rules(options.log_rules) if options.log_rules is not None else ()
    recording = Recording(rest, Mapper(everything), readers, DuckSorter, options.inventory, log_rules=rules)
    frames = []
    for path in dict.fromkeys(stores):
        store = open_stored(path)
        held.callback(store.close)
        frames.append(StoreFrames(store))
    return recording, frames


def _kept_store(folder: str | None, inventory: Path | None) -> DuckStore | None:
    """A new store in `folder`, the inventory beside it, so that the folder can be replayed again. Raises BadInput where
    a store is there already: two stories must not mix."""
    if folder is None:
        return None
    path = Path(folder) / "greylag.duckdb"
    if path.exists():
        raise BadInput("--keep", "", folder, "a folder without a greylag.duckdb is needed")
    path.parent.mkdir(parents=True, exist_ok=True)
    if inventory is not None and inventory.parent.resolve() != path.parent.resolve():
        shutil.copyfile(inventory, path.parent / inventory.name)
    return DuckStore(path)


def replay(options: ReplayOptions, say: Say, progress: Say | None = None, watch: Watch | None = None) -> dict[str, Any]:
    """Replays and gives the summary. `say` gets each line of the output, the summary included. watch: follows it. Raises BadInput."""
    with contextlib.ExitStack() as held:
        recording, stored = sources_of(options, held)
        brain, world = make_brain(recording.inventory, options.policy, options.detectors)
        store = _kept_store(options.keep, recording.inventory_path)
        if store is not None:
            held.callback(store.close)
        if watch is not None:
            watch.begin(brain, recording.inventory)
        tally = Tally()
        ends = [(recording.first_at, recording.last_at), *((one.first_at, one.last_at) for one in stored)]
        first = min((at for at, _ in ends if at is not None), default=None)
        last = max((at for _, at in ends if at is not None), default=None)
        if first is not None and last is not None:
            span = (tick_at_or_after(first), tick_at_or_after(last))
            tally = run_lockstep(Together([recording, *stored]), brain, world, span, say, store, progress, watch)
        samples = recording.counts.samples + sum(one.samples for one in stored)
        events = recording.counts.events + sum(one.events for one in stored)
    summary = {
        "type": "summary",
        "samples": samples,
        "events": events,
        "findings": tally.findings,
        "incidents": tally.incidents,
        "started_at": None if first is None else rfc3339(first),
        "ended_at": None if last is None else rfc3339(last),
    }
    say(dumps(summary))
    return summary


def replay_command(options: ReplayOptions, as_json: bool, fail_on: str | None) -> int:
    """Prints the replay; 1 when asked to fail on an incident and one opened."""
    quiet, teller = not sys.stderr.isatty(), Teller()

    def say(line: str) -> None:
        if as_json:
            sys.stdout.write(line + "\n")
            return
        for text in teller.lines(json.loads(line)):
            sys.stdout.write(text + "\n")

    def progress(text: str) -> None:
        print(text, file=sys.stderr)

    summary = replay(options, say, None if quiet else progress)
    sys.stdout.flush()
    return 1 if fail_on == "incident" and summary["incidents"] else 0


def whole_story(paths: Sequence[str], **kwargs: Any) -> list[dict[str, Any]]:
    """All records of a replay, parsed: for tests and studies."""
    lines: list[str] = []
    replay(ReplayOptions(tuple(paths), **kwargs), lines.append)
    return [json.loads(line) for line in lines]
