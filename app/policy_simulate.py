"""`greylag policy simulate`: what a policy would have done in a recording, and how two of them differ.

The recording is read once, by the same ingest, windows, detectors and incidents as live; each policy follows it in an engine of
its own (`app.policy_shadow`). A fleet scenario (YAML) is run in a closed loop instead (`app.policy_fleet`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from app.brain import Brain, Ticked
from app.policy_account import Account, account, differences, document, lines, table
from app.policy_history import read_history
from app.policy_shadow import FAILS, HELPS, TRUTH, Shadow
from app.policy_truth import Known, TrueFault, label_paths, read_labels, read_truth, truth_paths
from app.replay import ReplayOptions, replay
from core.errors import BadInput
from core.inventory import Inventory
from core.yamlfile import read_yaml
from remediation.policy import Policy, read_policy

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What the command was asked for. policy, against: files; None = the shipped act.yaml, and no comparison."""

    paths: tuple[str, ...]
    policy: str | None = None
    against: str | None = None
    inventory: str | None = None
    truth: str | None = None
    log_rules: str | None = None
    seed: int | None = None


def policies(options: SimulateOptions) -> list[tuple[str, Policy]]:
    """(name, policy): the one asked about, and the one that it is compared with. Raises ConfigError."""
    shipped = str(files("sample_data").joinpath("policies", "act.yaml"))
    paths = [options.policy or shipped, *([options.against] if options.against is not None else [])]
    names = [Path(path).name for path in paths]
    if len(set(names)) < len(names):
        names = list(paths)
    return [(name, read_policy(path)) for name, path in zip(names, paths, strict=True)]


def is_scenario(path: str) -> bool:
    """True for a YAML file with a fleet in it."""
    if Path(path).suffix not in (".yaml", ".yml") or not Path(path).is_file():
        return False
    data = read_yaml(path)
    return isinstance(data, Mapping) and "fleet" in data and "duration" in data


def simulate(options: SimulateOptions, progress: Say | None = None) -> dict[str, Any]:
    """The answer as one document. Raises BadInput."""
    if any(map(is_scenario, options.paths)):
        from app.policy_fleet import run

        if len(options.paths) > 1:
            raise BadInput("policy simulate", "", " ".join(options.paths), "one scenario, or one recording, is needed")
        return run(options.paths[0], policies(options), options.seed, progress)
    known = known_of(options)
    chosen = policies(options)
    watch = _Watch(chosen, (TRUTH,) if known.complete and known.cures else (HELPS, FAILS), known)
    summary = replay(ReplayOptions(options.paths, options.inventory, None, None, options.log_rules), lambda line: None, progress, watch)
    groups = watch.accounts()
    out: dict[str, Any] = {"started_at": summary["started_at"], "ended_at": summary["ended_at"], "incidents": summary["incidents"],
                           "truth": known.complete, "policies": [[document(one) for one in group] for group in groups]}
    if len(groups) == 2:
        out["differences"] = differences(groups[0][0], groups[1][0])
    out["_groups"] = groups
    return out


def known_of(options: SimulateOptions) -> Known:
    """What is known beside the recording: its truth, else its labels, else what its store's own history says. Raises BadInput."""
    if options.truth is not None and not options.truth.endswith(".jsonl"):
        return read_labels([Path(options.truth)])
    paths = [Path(options.truth)] if options.truth is not None else truth_paths(options.paths)
    if paths:
        return Known(tuple(read_truth(paths)), (), complete=True, cures=True)
    labels = label_paths(options.paths)
    return read_labels(labels) if labels else read_history(options.paths)


class _Watch:
    """Follows a replay with the shadows of all policies."""

    def __init__(self, chosen: list[tuple[str, Policy]], assumptions: tuple[str, ...], known: Known) -> None:
        self._chosen, self._assumptions, self._known = chosen, assumptions, known
        self._truths: tuple[TrueFault, ...] = known.faults
        self._shadows: list[list[Shadow]] = []
        self._brain: Brain | None = None

    def begin(self, brain: Brain, inventory: Inventory) -> None:
        """The replay begins."""
        labels = {node.name: dict(node.labels) for node in inventory.nodes}
        self._brain = brain
        self._shadows = [[Shadow(policy, inventory, assumption, self._truths, lambda node: labels.get(node, {}), self._known)
                          for assumption in self._assumptions] for _, policy in self._chosen]

    def tick(self, at: int, brain: Brain, ticked: Ticked) -> None:
        """A tick was judged."""
        assert brain.facts is not None
        opened = brain.open_incidents()
        for group in self._shadows:
            for shadow in group:
                shadow.tick(at, opened, brain.facts, ticked.window)

    def accounts(self) -> list[list[Account]]:
        """For each policy, one account for each assumption."""
        for group in self._shadows:
            for shadow in group:
                if self._brain is not None:
                    shadow.close(self._brain.book.get)
        return [[account(name, shadow) for shadow in group] for (name, _), group in zip(self._chosen, self._shadows, strict=False)]


def answer_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """The answer for people."""
    if "scenario" in answer:
        from app.policy_fleet import scenario_lines

        yield from scenario_lines(answer)
        return
    groups = answer["_groups"]
    if answer["started_at"] is None or not groups:
        yield "the recording is empty"
        return
    span = f"{answer['started_at'][:19]} to {answer['ended_at'][:19]}, {answer['incidents']} incidents"
    yield from lines(groups, span)
    if "differences" in answer:
        yield from table(answer["differences"], groups[0][0].policy, groups[1][0].policy)


def simulate_command(options: SimulateOptions, as_json: bool, say: Say, progress: Say) -> int:
    """Prints the answer."""
    answer = simulate(options, progress if sys.stderr.isatty() else None)
    if as_json:
        say(json.dumps({k: v for k, v in answer.items() if not k.startswith("_")}, ensure_ascii=False))
    else:
        for line in answer_lines(answer):
            say(line)
    return 0
