"""`greylag why`: ten lines for whoever is on call, from a running Greylag or a kept store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app import cli
from app.why import LINES, WIDTH, answer, as_json
from core.clock import rfc3339
from core.errors import BadInput, Unavailable
from core.render import plain
from core.types import Evidence, Incident, Suspect, Target
from pipeline.store.duck import DuckStore
from tests.store import build

NOW = 1_790_000_010_000
HOT = Target("gpu", "n1", "3", "GPU-1-3")
ROWS = tuple(Evidence(f"gpu.{name}", "°C", 91.0, 61.0, "median of 7 peers") for name in ("a", "b", "c", "d"))
INCIDENT = Incident(
    id="inc-0123456789ab", fault="thermal_throttle", scope="device", culprit=HOT, confidence=0.93, suspects=(), victims=(), findings=("f",),
    evidence=ROWS, jobs=("train-1",), lost_gpu_hours=1.5, owner="infra", klass="page", state="open", reason="opened_by_finding",
    merged_into=None, onset_at=NOW - 600_000, opened_at=NOW - 540_000, updated_at=NOW)


def incident(**changes: Any) -> dict[str, Any]:
    one = Incident(**{name: changes.pop(name, getattr(INCIDENT, name)) for name in Incident.__slots__})
    return {**plain(one), **changes}


@dataclass
class FakeSite:
    """A site with two nodes, a job on both, and what is given."""

    items: Sequence[Mapping[str, Any]] = ()
    heard: Mapping[str, str] = field(default_factory=lambda: {"n1": "fresh", "n2": "fresh", "n3": "fresh"})
    changed: Sequence[Mapping[str, Any]] = ()
    spots: Sequence[Mapping[str, Any]] = ()
    actions: Sequence[Mapping[str, Any]] = ()
    tick: int | None = NOW

    def now(self) -> int | None:
        return self.tick

    def nodes(self) -> Mapping[str, str]:
        return self.heard

    def jobs(self) -> Mapping[str, Sequence[str]]:
        return {"train-1": ("n1", "n2"), "train-2": ("n3",)}

    def incidents(self) -> Sequence[Mapping[str, Any]]:
        return self.items

    def case(self, incident: str) -> Mapping[str, Any]:
        [one] = [i for i in self.items if i["id"] == incident]
        return {"incident": one, "actions": self.actions, "timeline": [], "changes": self.changed, "blind_spots": self.spots,
                "marks": [], "runbook_url": f"http://greylag:9470/runbooks/{one['fault']}"}


def change(text: str, seconds: float, node: str | None = "n1") -> dict[str, Any]:
    return {"text": text, "seconds_from_onset": seconds, "target": plain(Target("node", node)) if node else None}


def said(lines: Sequence[str], word: str) -> str:
    return next((line.removeprefix(word).strip() for line in lines if line.startswith(word)), "")


def test_a_whole_answer() -> None:
    """Cluster, culprit, evidence, since when, what changed, what next, where to read on."""
    spots = [{"fault": "packet_loss", "state": "lost", "any_of": [], "nodes": ["n1"], "count": 1}]
    lines = answer(FakeSite([incident()], changed=[change("driver 550 → 570", -7200.0)], spots=spots), "train-1")
    assert lines == [
        "job train-1: the cluster, not the code (confidence 0.93)",
        "culprit   n1 GPU 3: thermal_throttle (inc-0123456789ab, open)",
        "evidence  gpu.a 91 °C, expected 61 °C (median of 7 peers)",
        "evidence  gpu.b 91 °C, expected 61 °C (median of 7 peers)",
        "evidence  gpu.c 91 °C, expected 61 °C (median of 7 peers)",
        f"since     {rfc3339(NOW - 600_000)[:19].replace('T', ' ')} UTC, 10 min; 1.50 GPU-hours lost",
        "changed   driver 550 → 570 on n1 2.0 h before",
        "next      One GPU: let the job reach a checkpoint, drain the node, and look at the fan, the airflow and the cold plate of that slot.",
        "blind     signals were lost for packet_loss",
        "page      http://greylag:9470/runbooks/thermal_throttle"]


SIDES = [
    ("a part", {}, "the cluster, not the code (confidence 0.93)"),
    ("a rack", {"scope": "rack", "culprit": Target("cooling", None, "loop")}, "the cluster, a shared cause (confidence 0.93)"),
    ("a NaN", {"fault": "nonfinite_loss", "scope": "job", "culprit": None}, "the code or its data (confidence 0.93)"),
    ("a NaN that a GPU began", {"fault": "nonfinite_loss"}, "the cluster, not the code (confidence 0.93)"),
    ("a rank", {"fault": "straggler", "culprit": Target("rank", job="train-1", rank=3)},
     "one rank, cluster or code is not told apart yet (confidence 0.93)"),
    ("a hang without a name", {"fault": "stalled_loss", "scope": "job", "culprit": None},
     "cannot tell cluster from code: no part stands out (confidence 0.93)"),
]


@pytest.mark.parametrize(("changes", "words"), [c[1:] for c in SIDES], ids=[c[0] for c in SIDES])
def test_cluster_or_code(changes: dict[str, Any], words: str) -> None:
    """By fault, scope and who is named; what is not told apart is said."""
    assert answer(FakeSite([incident(**changes)]), "train-1")[0] == f"job train-1: {words}"


NOTHING = [
    ("a job, all heard", "train-1", {}, "job train-1: nothing found on the cluster, looks like the job"),
    ("a node, all heard", "n1", {}, "node n1: nothing found, the node reports; it runs train-1"),
    ("a node is silent", "train-1", {"n1": "fresh", "n2": "lost"}, "job train-1: cannot tell, 1 of 2 nodes are not heard: n2"),
    ("the node itself is silent", "n1", {"n1": "unknown"}, "node n1: cannot tell, 1 of 1 nodes are not heard: n1"),
]


@pytest.mark.parametrize(("name", "heard", "words"), [c[1:] for c in NOTHING], ids=[c[0] for c in NOTHING])
def test_nothing_found_is_an_answer_only_where_all_is_heard(name: str, heard: dict[str, str], words: str) -> None:
    """No data is never read as good news."""
    site = FakeSite(**({"heard": heard} if heard else {}))
    assert answer(site, name)[0] == words
    assert said(answer(site, name), "next")


def test_before_the_first_tick_nothing_can_be_told() -> None:
    """One line."""
    assert answer(FakeSite(tick=None), "n1") == ["node n1: cannot tell, no tick has been judged yet"]


CONCERNED = [
    ("on the node", "n1", {}, True), ("on another node", "n2", {}, False), ("of the job", "train-1", {}, True),
    ("of another job", "train-2", {}, False),
    ("its node is a victim of a rack", "n2", {"scope": "rack", "culprit": Target("rack", None, "r1"), "victims": (Target("gpu", "n2", "0"),)}, True),
    ("merged", "n1", {"state": "merged"}, False),
    ("resolved an hour ago", "n1", {"state": "resolved", "resolved_at": NOW - 3_600_000}, True),
    ("resolved yesterday", "n1", {"state": "resolved", "resolved_at": NOW - 86_400_000}, False),
    ("called wrong", "n1", {"state": "abandoned", "resolved_at": NOW - 60_000}, False),
]


@pytest.mark.parametrize(("name", "changes", "found"), [c[1:] for c in CONCERNED], ids=[c[0] for c in CONCERNED])
def test_which_incidents_answer(name: str, changes: dict[str, Any], found: bool) -> None:
    """Open ones, and those that ended within two hours, of this very job or node."""
    assert bool(said(answer(FakeSite([incident(**changes)]), name), "culprit")) == found


def test_the_graver_incident_comes_first_and_the_others_are_named() -> None:
    """A page before a ticket, then what costs most; ten lines at most."""
    loss = incident(id="inc-2", fault="packet_loss", culprit=Target("nic", "n2", "mlx5_0/1"), lost_gpu_hours=9.0)
    drift = incident(id="inc-3", fault="config_drift", culprit=Target("node", "n2"), klass="ticket", lost_gpu_hours=99.0)
    lines = answer(FakeSite([incident(), loss, drift], heard={"n1": "fresh", "n2": "lost"}), "train-1")
    assert said(lines, "culprit").startswith("n2 mlx5_0/1: packet_loss")
    assert said(lines, "also") == "thermal_throttle on n1 GPU 3, config_drift on n2"
    assert said(lines, "blind") == "1 of its nodes are not heard: n2"
    assert len(lines) <= LINES
    assert lines[-1].startswith("page")


ACTION = {"action": {"kind": "drain", "target": plain(Target("node", "n1"))}, "outcome": {"state": "RUNNING"}}
NEXT = [
    ("proposed", {"state": "proposed"}, "approve what is proposed: greylag incidents approve inc-0123456789ab"),
    ("acting", {"state": "acting"}, "Greylag is acting: drain n1; greylag incidents show inc-0123456789ab"),
    ("resolved", {"state": "resolved", "reason": "recovered", "resolved_at": NOW}, "nothing: it ended at"),
    ("open", {"fault": "gpu_lost"}, "The job is lost: restart it without the node. Drain the node."),
]


@pytest.mark.parametrize(("changes", "words"), [c[1:] for c in NEXT], ids=[c[0] for c in NEXT])
def test_the_next_step(changes: dict[str, Any], words: str) -> None:
    """What Greylag waits for or does, else the first step of the fault's page."""
    assert said(answer(FakeSite([incident(**changes)], actions=[ACTION]), "n1"), "next").startswith(words)


def test_suspects_stand_for_a_culprit_that_is_not_known() -> None:
    """With their probabilities."""
    one = incident(fault="stalled_loss", culprit=None, scope="job", suspects=(Suspect(HOT, 0.7, ()),))
    assert said(answer(FakeSite([one]), "train-1"), "fault").startswith("stalled_loss, suspects n1 GPU 3 0.70")


def test_lines_are_short_enough_for_a_terminal() -> None:
    """Evidence may be long; a line is not."""
    long = tuple(Evidence("gpu.a", "°C", 1.0, None, "peers " * 100) for _ in range(3))
    assert max(map(len, answer(FakeSite([incident(evidence=long)]), "n1"))) <= WIDTH


@pytest.mark.parametrize(("name", "hint"), [("train-1x", "did you mean 'train-1'?"), ("zz", "such as train-1, train-2, n1")])
def test_an_unknown_name_is_one_sentence(name: str, hint: str) -> None:
    """With what is known."""
    with pytest.raises(BadInput, match=r"a job or a node that Greylag knows is needed") as caught:
        answer(FakeSite(), name)
    assert hint in str(caught.value)


def test_a_job_that_ended_is_known_by_its_incidents() -> None:
    """It left the inventory, and whoever asks in the morning still gets the answer."""
    one = incident(jobs=("train-0",), state="resolved", reason="job_ended", resolved_at=NOW - 60_000)
    assert answer(FakeSite([one]), "train-0")[0].startswith("job train-0: nothing is open now; it was the cluster")


def test_the_command_asks_a_kept_store(tmp_path: Path) -> None:
    """What `replay --keep` left: the inventory beside it, no running Greylag."""
    store = DuckStore(tmp_path / "greylag.duckdb")
    store.commit_tick(build.tick(0, incidents=[build.incident("inc-1", build.T0)]))
    store.close()
    (tmp_path / "inventory.yaml").write_text("nodes: [{name: n1}, {name: n2}]\njobs: [{id: train-1, nodes: [n1]}]\n")
    done = CliRunner().invoke(cli.app, ["why", "n1", "--store", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["answer"].startswith("node n1: ")
    assert {row["what"] for row in found["lines"]} >= {"next"}


@pytest.mark.parametrize("args", [["why", "n1"], ["doctor"]])
def test_nobody_at_home_is_said_kindly(args: list[str]) -> None:
    """Where it was asked, how it is started, what else can be asked."""
    done = CliRunner().invoke(cli.app, [*args, "--url", "http://127.0.0.1:9"])
    assert isinstance(done.exception, Unavailable)
    assert "does not answer at http://127.0.0.1:9" in str(done.exception)
    assert "greylag run -c greylag.yaml" in str(done.exception)
    assert "\n" not in str(done.exception)


def test_json_has_the_lines_with_their_words() -> None:
    """For programs."""
    found = as_json(answer(FakeSite([incident()]), "n1"))
    assert [row["what"] for row in found["lines"]][:2] == ["culprit", "evidence"]
