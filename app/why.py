"""`greylag why JOB|NODE`: ten lines for whoever is on call: cluster or code, the culprit, the evidence, what changed, the next step.

"Nothing found, looks like the job" is an answer, and only where everything that a fault needs is being watched: what is not
watched is said first. The same answer from a running Greylag (its API) and from a store that `replay --keep` left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from app.case import case_document
from app.client import Client
from app.stored import open_stored
from app.story import evidence, part
from core.clock import parse_rfc3339
from core.errors import BadInput, Unavailable, nearest
from core.inventory import Inventory, read_inventory
from core.plugins import load_plugins
from core.reasons import INCIDENT_REASONS
from core.render import plain
from core.targets import CLOSED_STATES
from pipeline.runbooks import first_steps

LINES = 10
RECENT_MS = 2 * 3_600_000  # what ended within this time may still be the answer
MOST_INCIDENTS = 1000
WIDTH = 150
CODE = frozenset({"nonfinite_loss", "loss_spike", "job_crash_loop", "checkpoint_stale", "inference_slow"})
CLUSTER_KINDS = ("gpu", "nic", "link", "disk", "mount", "node", "switch", "rack", "pdu", "cooling", "storage", "label", "fleet", "collector")
SHARED = ("switch", "rack", "storage", "fleet")
STANDING = frozenset({"stalled_loss", "throughput_drop", "straggler", "data_stall"})
INVENTORIES = ("inventory.yaml", "inventory.yml", "inventory.json")


class Site(Protocol):
    """What `why` asks: a running Greylag, or a store."""

    def now(self) -> int | None:
        """The last judged tick (ms), None before the first."""
        ...

    def nodes(self) -> Mapping[str, str]:
        """What is heard of each node: fresh, lost, not_configured, or unknown."""
        ...

    def jobs(self) -> Mapping[str, Sequence[str]]:
        """The nodes of each job."""
        ...

    def incidents(self) -> Sequence[Mapping[str, Any]]:
        """Incidents, the newest first."""
        ...

    def case(self, incident: str) -> Mapping[str, Any]:
        """The document of `app.case`."""
        ...


class LiveSite:
    """A running Greylag, over its API."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def now(self) -> int | None:
        tick = self._get("records", cursor=2**53, limit=1)["tick"]
        return None if tick is None else parse_rfc3339(tick)

    def nodes(self) -> Mapping[str, str]:
        said = dict(self._get("coverage", limit=1)["nodes"])
        return {node["name"]: "unknown" for node in self._get("inventory")["nodes"]} | said

    def jobs(self) -> Mapping[str, Sequence[str]]:
        return {job["id"]: job["nodes"] for job in self._get("jobs")["items"]}

    def incidents(self) -> Sequence[Mapping[str, Any]]:
        items: Sequence[Mapping[str, Any]] = self._get("incidents", limit=MOST_INCIDENTS)["items"]
        return items

    def case(self, incident: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._get(f"incidents/{incident}")
        return found

    def _get(self, what: str, **params: Any) -> Any:
        return self._client.get(f"/api/greylag/v1/{what}", **params)


class KeptSite:
    """A store that `replay --keep`, or a Greylag that is stopped, left; the inventory lies beside it where there is one."""

    def __init__(self, path: Path) -> None:
        self._store = open_stored(path)
        folder = path if path.is_dir() else path.parent
        beside = next((folder / name for name in INVENTORIES if (folder / name).is_file()), None)
        self._inventory = read_inventory(beside) if beside is not None else Inventory()

    def now(self) -> int | None:
        return self._store.last_tick()

    def nodes(self) -> Mapping[str, str]:
        seen = self._store.rows("SELECT DISTINCT node FROM layouts WHERE node IS NOT NULL")
        return {node.name: "unknown" for node in self._inventory.nodes} | {str(name): "fresh" for (name,) in seen}

    def jobs(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {job.id: list(job.nodes) for job in self._inventory.jobs}
        for (job,) in self._store.rows("SELECT DISTINCT job FROM layouts WHERE job IS NOT NULL AND source IS DISTINCT FROM 'greylag'"):
            found.setdefault(str(job), [])
        return found

    def incidents(self) -> Sequence[Mapping[str, Any]]:
        return self._store.incidents(limit=MOST_INCIDENTS)

    def case(self, incident: str) -> Mapping[str, Any]:
        [one] = self._store.incident_records(id=incident, limit=1)
        return case_document(one, self._store, self._inventory.topology(), self.jobs(), load_plugins("detectors"), (), (), {})

    def close(self) -> None:
        """Closes the store."""
        self._store.close()


@dataclass(frozen=True, slots=True)
class Asked:
    """The name that was asked for: a job or a node, its nodes and the jobs on it."""

    name: str
    kind: str
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]


def find(site: Site, name: str) -> Asked:
    """What a name means on this site. Raises BadInput where it is neither a job nor a node."""
    jobs, nodes = site.jobs(), site.nodes()
    if name in jobs:
        return Asked(name, "job", tuple(jobs[name]), (name,))
    if name in nodes:
        return Asked(name, "node", (name,), tuple(job for job, on in jobs.items() if name in on))
    of_old = [one for one in site.incidents() if name in one["jobs"]]
    if of_old:  # it ended and left the inventory: its incidents know it
        return Asked(name, "job", (), (name,))
    known = [*jobs, *nodes]
    raise BadInput("JOB|NODE", "", name, f"a job or a node that Greylag knows is needed, such as {', '.join(known[:3]) or 'none yet'}"
                   f"{nearest(name, known)}")


def concerns(one: Mapping[str, Any], asked: Asked) -> bool:
    """Whether an incident is about the job or the node."""
    if asked.kind == "job":
        return asked.name in one["jobs"] or (one["scope"] == "fleet" and not one["jobs"]) or _on(one, asked.nodes)
    return _on(one, asked.nodes) or (one["scope"] in SHARED and any(v["node"] in asked.nodes for v in one["victims"]))


def _on(one: Mapping[str, Any], nodes: Sequence[str]) -> bool:
    return one["culprit"] is not None and one["culprit"]["node"] in nodes


def answer(site: Site, name: str) -> list[str]:
    """At most ten lines. Raises BadInput for a name that nothing has."""
    asked, now = find(site, name), site.now()
    heard = site.nodes()
    silent = [node for node in asked.nodes if heard.get(node) != "fresh"]
    if now is None:
        return [f"{asked.kind} {asked.name}: cannot tell, no tick has been judged yet"]
    about = [one for one in site.incidents() if one["state"] != "merged" and concerns(one, asked)]
    opened = [one for one in about if one["state"] not in CLOSED_STATES]
    recent = [one for one in about if one["state"] == "resolved" and one["resolved_at"] is not None
              and now - parse_rfc3339(one["resolved_at"]) <= RECENT_MS]
    if not opened and not recent:
        return _nothing(asked, about, silent, now)
    first, *others = sorted(opened or recent, key=lambda one: _weight(one, asked))
    return _found(site.case(first["id"]), asked, others, silent, now)


def _weight(one: Mapping[str, Any], asked: Asked) -> tuple[Any, ...]:
    """The incident that explains most first: about the very node, a page, what costs most, sure, old."""
    return (asked.kind == "node" and not _on(one, asked.nodes), one["class"] != "page", one["fault"] in STANDING and one["culprit"] is None,
            -one["lost_gpu_hours"], -one["confidence"], one["onset_at"])


def side(one: Mapping[str, Any]) -> str:
    """Cluster or code, in a word, with how sure."""
    sure = f"(confidence {one['confidence']:.2f})"
    culprit = one["culprit"]
    if one["scope"] in SHARED:
        return f"the cluster, a shared cause {sure}"
    if one["fault"] in CODE and (culprit is None or culprit["kind"] in ("job", "rank")):
        return f"the code or its data {sure}"
    if culprit is not None and culprit["kind"] in CLUSTER_KINDS:
        return f"the cluster, not the code {sure}"
    if culprit is not None:
        return f"one rank, cluster or code is not told apart yet {sure}"
    return f"cannot tell cluster from code: no part stands out {sure}"


def _found(case: Mapping[str, Any], asked: Asked, others: Sequence[Mapping[str, Any]], silent: Sequence[str], now: int) -> list[str]:
    one = case["incident"]
    over = "nothing is open now; it was " if one["state"] == "resolved" else ""
    out = [f"{asked.kind} {asked.name}: {over}{side(one)}",
           f"culprit   {part(one['culprit'])}: {one['fault']} ({one['id']}, {one['state']})" if one["culprit"] is not None else
           f"fault     {one['fault']}, {_suspects(one)} ({one['id']}, {one['state']})"]
    proof = evidence(one["evidence"], 3)
    out += [f"evidence  {line}" for line in proof[:3]] or ["evidence  none is measured"]
    end = parse_rfc3339(one["resolved_at"]) if one["resolved_at"] else now
    out.append(f"since     {one['onset_at'][:19].replace('T', ' ')} UTC, {_span(end - parse_rfc3339(one['onset_at']))}"
               f"{' in all' if one['resolved_at'] else ''}; {one['lost_gpu_hours']:.2f} GPU-hours lost"
               + (f"; {len(one['victims'])} other parts suffer" if one["victims"] else ""))
    out.append(f"changed   {_changes(case['changes'])}")
    out.append(f"next      {_next(case, one)}")
    note = _blind(case["blind_spots"], silent)
    more = ", ".join(f"{other['fault']} on {part(other['culprit'])}" for other in others[:3])
    if others:
        out.append(f"also      {more}" + (f" and {len(others) - 3} more" if len(others) > 3 else ""))
    if note:
        out.append(f"blind     {note}")
    if len(out) >= LINES:  # the third piece of evidence gives way to the page
        out = [line for i, line in enumerate(out) if i != 4 or not line.startswith("evidence")]
    out.append(f"page      {case['runbook_url']}")
    return [_cut(line) for line in out[:LINES]]


def _nothing(asked: Asked, about: Sequence[Mapping[str, Any]], silent: Sequence[str], now: int) -> list[str]:
    """Nothing is open: good news only where everything is heard."""
    last = about[0] if about else None
    before = f"last      {last['fault']} on {part(last['culprit'])}, {last['state']} at {last['updated_at'][:19].replace('T', ' ')} UTC" if last else ""
    heard = len(asked.nodes) - len(silent)
    if silent:
        out = [f"{asked.kind} {asked.name}: cannot tell, {len(silent)} of {len(asked.nodes)} nodes are not heard: {', '.join(silent[:5])}",
               "found     nothing on the nodes that report" if heard else "found     nothing, since nothing is measured",
               "next      see that their exporters answer (curl http://NODE:9400/metrics), then ask again; greylag doctor says what is missing"]
        return [_cut(line) for line in [*out, before] if line]
    if asked.kind == "job":
        out = [f"job {asked.name}: nothing found on the cluster, looks like the job",
               f"heard     {heard} nodes report" if asked.nodes else "heard     its nodes are not known: only what its own telemetry says was judged",
               "next      the job's log, its last change, py-spy dump on a slow rank; greylag doctor says which faults are not judged here"]
    else:
        jobs = f"; it runs {', '.join(asked.jobs)}" if asked.jobs else ""
        out = [f"node {asked.name}: nothing found, the node reports{jobs}",
               "next      where a job on it is slow: greylag why JOB; greylag doctor says which faults are not judged here"]
    return [_cut(line) for line in [*out, before] if line]


def _suspects(one: Mapping[str, Any]) -> str:
    found = [f"{part(s['target'])} {s['probability']:.2f}" for s in one["suspects"][:3]]
    return f"suspects {', '.join(found)}" if found else "no single part stands out"


def _changes(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "nothing that Greylag knows of, in the 12 hours before"
    told = [f"{row['text']}{_where(row)} {_span(abs(row['seconds_from_onset']) * 1000)} {'before' if row['seconds_from_onset'] <= 0 else 'after'}"
            for row in rows[:2]]
    return "; ".join(told) + (f"; {len(rows) - 2} more" if len(rows) > 2 else "")


def _where(row: Mapping[str, Any]) -> str:
    target = row["target"]
    return f" on {target['node']}" if target and target["node"] and "parts)" not in row["text"] else ""


def _next(case: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    """What Greylag does or waits for, else the first step of the fault's page."""
    if one["state"] == "resolved":
        return f"nothing: it ended at {one['resolved_at'][11:16]} UTC, {INCIDENT_REASONS.get(one['reason'], one['reason'])}"
    pending = [row for row in case["actions"] if row["outcome"]["state"] in ("PENDING", "RUNNING")]
    doing = pending[-1]["action"] if pending else None
    if one["state"] == "proposed":
        return f"approve what is proposed: greylag incidents approve {one['id']}"
    if one["state"] in ("acting", "verifying"):
        return f"Greylag is {one['state']}" + (f": {doing['kind']} {part(doing['target'])}" if doing else "") + f"; greylag incidents show {one['id']}"
    steps = first_steps(one["fault"], 1)
    return steps[0] if steps else f"greylag incidents show {one['id']}"


def _blind(spots: Sequence[Mapping[str, Any]], silent: Sequence[str]) -> str:
    """What is not watched on its nodes: what is silent or was lost; a signal that was never there is the doctor's subject."""
    said = [f"{len(silent)} of its nodes are not heard: {', '.join(silent[:3])}"] if silent else []
    lost = sorted({spot["fault"] for spot in spots if spot["state"] == "lost"})
    said += [f"signals were lost for {', '.join(lost[:4])}"] if lost else []
    never = len({spot["fault"] for spot in spots if spot["state"] == "not_configured"})
    said += [f"{never} faults are not judged here (greylag doctor)"] if never else []
    return "; ".join(said)


def _span(ms: float) -> str:
    minutes = ms / 60_000
    return f"{ms / 1000:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def why(name: str, url: str, store: Path | None) -> list[str]:
    """The answer, from a store where one is given, else from the Greylag at `url`. Raises Unavailable in a kind sentence."""
    if store is not None:
        kept = KeptSite(store)
        try:
            return answer(kept, name)
        finally:
            kept.close()
    try:
        return answer(LiveSite(Client(url)), name)
    except Unavailable as error:
        raise Unavailable(f"{error}, and `greylag why --store DIR` asks a kept store") from None


def as_json(lines: Sequence[str]) -> dict[str, Any]:
    """The lines with their words, for programs: {answer, lines: [{what, text}]}."""
    first, *rest = lines
    return {"answer": first, "lines": [plain({"what": line.split(maxsplit=1)[0], "text": line.split(maxsplit=1)[-1]}) for line in rest]}
