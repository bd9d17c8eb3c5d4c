"""`greylag fleet serve|inject|status|run`: the bundled fleet over HTTP and in virtual time.

The lab's token comes from the environment (GREYLAG_LAB_TOKEN); without it no fault can be planted or seen.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from core.clock import monotonic_seconds, rfc3339
from core.errors import BadInput, Refused, Unavailable
from core.yamlfile import read_yaml

TOKEN_VARIABLE = "GREYLAG_LAB_TOKEN"
URL_VARIABLE = "GREYLAG_FLEET_URL"
STRETCH_MS = 60_000
TELL_SECONDS = 2.0
MOST_NODES_WITH_TRUTH = 500


class FleetClient:
    """JSON over HTTP from a running fleet. Raises Unavailable, BadInput for 4xx, Refused for 409."""

    def __init__(self, url: str | None, token: str | None = None) -> None:
        address = url or os.environ.get(URL_VARIABLE, "")
        if not address.startswith(("http://", "https://")):
            raise BadInput("--url", "", address or "nothing", f"the fleet's address is needed, here or in {URL_VARIABLE}")
        self.url, self.token = address.rstrip("/"), token if token is not None else os.environ.get(TOKEN_VARIABLE, "")
        self._http = httpx.Client(base_url=self.url, timeout=30.0, trust_env=False)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON."""
        headers = {"authorization": f"Bearer {self.token}"} if self.token and path.startswith("/lab/") else {}
        try:
            answer = self._http.request(method, path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise Unavailable(f"no fleet answers at {self.url} ({type(error).__name__})") from None
        try:
            data = answer.json()
        except ValueError:
            raise Unavailable(f"what answers at {self.url} is no fleet: HTTP {answer.status_code} on {path}") from None
        if answer.status_code == 409:
            raise Refused(str(data.get("reason")), str(data.get("error", "")))
        if answer.status_code == 403:
            raise BadInput(TOKEN_VARIABLE, "", "no valid token" if self.token else "nothing",
                           "the lab's token is needed in the environment")
        if 400 <= answer.status_code < 500:
            raise BadInput(self.url, path, "a request that it cannot take", str(data.get("error", answer.status_code)))
        if answer.status_code >= 500:
            raise Unavailable(f"the fleet at {self.url} failed on {path}: HTTP {answer.status_code}")
        return data


# --- inject -----------------------------------------------------------------------------------------------------------
def target_from(text: str, nodes: Sequence[str]) -> dict[str, Any]:
    """`NODE`, `NODE/DEVICE`, `job=NAME`, `rank=N`, or the name of a switch, rack, PDU, loop or storage target, as a Target."""
    if text.startswith("job="):
        return {"kind": "job", "job": text[4:]}
    if text.startswith("rank="):
        if not text[5:].isdigit():
            raise BadInput("--target", "", text, "rank= needs a whole number")
        return {"kind": "rank", "rank": int(text[5:])}
    head, _, rest = text.partition("/")
    if head in nodes:
        return {"kind": "node", "node": head, "device": rest or None}
    if rest:
        raise BadInput("--target", "", text, "NODE/DEVICE is needed, with a node of the fleet")
    return {"kind": "switch", "device": text}


def inject(client: FleetClient, fault: str, targets: Sequence[str], severity: float | None, onset: str | None,
           seed: int | None, lasts: str | None = None) -> Iterator[dict[str, Any]]:
    """Plants the fault at each target (at a drawn one where none is named); gives the truth of each.

    lasts: a duration (`20m`) after which it goes away by itself.
    """
    from fleet.scenario import seconds_of

    try:
        seconds = None if lasts is None else seconds_of(lasts)
    except ValueError:
        raise BadInput("--for", "", lasts, "a duration is needed, such as 90s, 15m or 2h") from None
    body = {"fault": fault, "severity": severity, "onset": onset, "seed": seed, "for_seconds": seconds}
    if not targets:
        yield client.ask("POST", "/lab/v1/faults", body)
        return
    nodes = [row["node"] for row in client.ask("GET", "/control/v1/nodes")]
    for one in [target_from(text, nodes) for text in targets]:
        yield client.ask("POST", "/lab/v1/faults", {**body, "target": one})


# --- status -----------------------------------------------------------------------------------------------------------
def status(client: FleetClient) -> dict[str, Any]:
    """Clock, nodes, jobs; with the lab's token also faults and goodput (null without it)."""
    out: dict[str, Any] = {
        "at": rfc3339(int(client.ask("GET", "/control/v1/clock")["now_ms"])),
        "nodes": client.ask("GET", "/control/v1/nodes"), "jobs": client.ask("GET", "/control/v1/jobs"),
        "faults": None, "goodput": None,
    }
    if client.token:
        out["faults"] = client.ask("GET", "/lab/v1/truth")
        out["goodput"] = client.ask("GET", "/lab/v1/goodput")
    return out


def status_lines(state: dict[str, Any]) -> Iterator[str]:
    """The status for people."""
    counts = Counter(row["state"] for row in state["nodes"])
    yield f"{state['at'][:19]}  {len(state['nodes'])} nodes: " + ", ".join(f"{n} {s}" for s, n in sorted(counts.items()))
    for row in state["nodes"]:
        if row["state"] not in ("in_service", "spare"):
            yield f"  {row['node']} {row['state']}" + (f", held by {row['held_by']}" if row["held_by"] else "")
    for job in state["jobs"]:
        step = "" if job["step_seconds"] is None else f", {job['step_seconds']:.2f} s a step"
        yield f"job {job['id']}: {job['state']}, {job['phase']}, {len(job['nodes'])} nodes, step {job['step']}{step}"
    if state["faults"] is None:
        yield f"faults: unknown without the lab's token ({TOKEN_VARIABLE})"
        return
    for row in state["faults"]:
        if row["cured_at"] is None:
            yield f"{'look-alike' if row['nothing_to_do'] else 'fault'} {row['plant']} on {place(row['culprit'])} since {row['at'][:19]}"
    account = state["goodput"] or {"jobs": {}}
    for name, one in [("fleet", account.get("fleet")), *sorted(account["jobs"].items())]:
        if one is not None and one["goodput_ratio"] is not None:
            spent = sorted(one["gpu_seconds"].items(), key=lambda item: -item[1])
            total = sum(seconds for _, seconds in spent) or 1.0
            yield f"goodput {name}: {one['goodput_ratio']:.1%} (" + ", ".join(f"{c} {s / total:.1%}" for c, s in spent[:6]) + ")"


def place(target: dict[str, Any]) -> str:
    """A Target as people write it."""
    parts = [target[key] for key in ("node", "device") if target[key]]
    return " ".join(parts) or str(target["job"] or target["kind"])


# --- run --------------------------------------------------------------------------------------------------------------
def run(path: Path, tell: Callable[[str], None], seed: int | None = None, truth_only: bool = False,
        events: bool = False) -> Iterator[dict[str, Any]]:
    """Runs a scenario in virtual time to its end; gives truth, goodput and a summary. tell: progress, for stderr.

    truth_only: what will be true, without running. events: event-stepped, without telemetry.
    """
    from dataclasses import replace

    from fleet.build import bare, build_scenario, load_scenario

    scenario = load_scenario(path)
    if seed is not None:
        scenario = replace(scenario, seed=seed)
    if truth_only:
        programme = bare(scenario)[2]
        yield from ({"type": "truth", **row} for row in programme.truth())
        yield from ({"type": "hand", **row} for row in programme.hands())
        return
    if events:
        from fleet.eventstep import EventWorld

        yield from EventWorld(scenario).run(tell)
        return
    world, operations, programme = build_scenario(scenario)
    told = began = monotonic_seconds()
    while world.now_ms < scenario.end_ms:
        world.advance(min(scenario.end_ms, world.now_ms + STRETCH_MS))
        if monotonic_seconds() - told >= TELL_SECONDS:
            told = monotonic_seconds()
            share = (world.now_ms - scenario.start_ms) / max(1, scenario.end_ms - scenario.start_ms)
            tell(f"{scenario.name}: {share:.0%} of {scenario.duration}, {told - began:.0f} s")
    from fleet.programme import records

    yield from records(world, operations, programme)


def truth_files(folder: Path) -> dict[Path, str]:
    """What stands beside each scenario of a folder, `NAME.truth.jsonl`; not beside those of a fleet of thousands of nodes."""
    from fleet.build import all_plugins
    from fleet.scenario import scenario_from

    out = {}
    for path in sorted(folder.glob("*.yaml")):
        if scenario_from(read_yaml(path), str(path), all_plugins()).fleet.nodes <= MOST_NODES_WITH_TRUTH:
            rows = run(path, lambda line: None, truth_only=True)
            out[path.with_suffix(".truth.jsonl")] = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    return out


def write_lines(rows: Iterator[dict[str, Any]]) -> None:
    """One JSON object a line on stdout."""
    for row in rows:
        sys.stdout.write(json.dumps(row, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def tell_stderr(line: str) -> None:
    """Progress for people."""
    sys.stderr.write(f"greylag fleet: {line}\n")
    sys.stderr.flush()


