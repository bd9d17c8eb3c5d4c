"""Incidents: which findings belong together, who is named, and how an incident lives and ends."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from core.types import Finding, Incident, JobState, Target
from core.window import Window
from pipeline.incidents import IncidentBook
from tests.pipeline.worlds import T0, finding, inventory, tick, window

NODES = 8


def gpu(node: int, device: int = 0) -> Target:
    return Target("gpu", f"n{node}", str(device), f"GPU-{node}-{device}")


def nic(node: int, device: int = 0) -> Target:
    return Target("nic", f"n{node}", f"mlx5_{device}/1")


def rank(n: int, node: int | None = None, device: int | None = None) -> Target:
    return Target("rank", None if node is None else f"n{node}", None if device is None else str(device), job="j", rank=n)


ENTITIES = {"gpu": tuple(gpu(n, d) for n in range(NODES) for d in range(8)),
            "nic": tuple(nic(n, d) for n in range(NODES) for d in range(2))}


def site(**place: object) -> object:
    """Eight nodes, four in each of two racks, leaves and cooling loops; place: overrides by key."""
    def node(i: int) -> dict[str, object]:
        half = i * 2 // NODES
        return {"name": f"n{i}", "rack": f"r{half}", "leaf": f"leaf{half}", "cooling": f"loop{half}",
                **{k: v(i) for k, v in place.items()}}  # type: ignore[operator]
    return inventory(nodes=[node(i) for i in range(NODES)]).topology()


JOBS = (JobState("j", "train", tuple(f"n{i}" for i in range(4)), ranks_per_node=8),)


def seen(i: int, topology: object = None, jobs: tuple[JobState, ...] = JOBS) -> Window:
    return window(tick(i), entities=ENTITIES, topology=site() if topology is None else topology, jobs=jobs)


def opened(findings: list[Finding], topology: object = None) -> list[Incident]:
    news = IncidentBook().update(seen(0, topology), findings, ())
    assert all(word == "opened" for word, _ in news)
    return [incident for _, incident in news]


def loss(target: Target, reason: str = "loss_seen_here", **more: object) -> Finding:
    return finding(target, "packet_loss", reason=reason, **more)  # type: ignore[arg-type]


def stall(target: Target, **more: object) -> Finding:
    return finding(target, "stalled_loss", **{"reason": "behind_in_collectives", **more})  # type: ignore[arg-type]


JOB = Target("job", job="j")
DAY = 24 * 3_600_000
FIRMWARE = site(labels=lambda i: {"bmc_firmware": "24.09" if i in (0, 3, 6) else "24.06"})
CASES = [
    ("one hot GPU", [finding(gpu(1))], None, [("thermal_throttle", "device", "gpu:GPU-1-0", ("j",))]),
    ("a hot GPU of a node without a job", [finding(gpu(6))], None, [("thermal_throttle", "device", "gpu:GPU-6-0", ())]),
    ("two hot GPUs of a node are two", [finding(gpu(1)), finding(gpu(1, 5))], None,
     [("thermal_throttle", "device", "gpu:GPU-1-0", ("j",)), ("thermal_throttle", "device", "gpu:GPU-1-5", ("j",))]),
    ("three hot GPUs of a node within minutes are the node", [finding(gpu(1, d), onset=T0 - 60_000 * d) for d in (0, 3, 5)], None,
     [("thermal_throttle", "node", "node:n1/", ("j",))]),
    ("five of eight are the node", [finding(gpu(1, d)) for d in range(5)], None,
     [("thermal_throttle", "node", "node:n1/", ("j",))]),
    ("three nodes of a loop are the loop", [finding(gpu(i)) for i in range(3)], None,
     [("thermal_throttle", "rack", "cooling:/loop0", ("j",))]),
    ("without a loop it is the rack", [finding(gpu(i)) for i in range(3)], site(cooling=lambda i: None),
     [("thermal_throttle", "rack", "rack:/r0", ("j",))]),
    ("two nodes of four with three parts are the loop", [finding(gpu(0)), finding(gpu(1)), finding(gpu(1, 1))], None,
     [("thermal_throttle", "rack", "cooling:/loop0", ("j",))]),
    ("two nodes with a part each are two", [finding(gpu(0)), finding(gpu(1))], None,
     [("thermal_throttle", "device", "gpu:GPU-0-0", ("j",)), ("thermal_throttle", "device", "gpu:GPU-1-0", ("j",))]),
    ("a finding elsewhere stays by itself", [finding(gpu(i)) for i in (0, 1, 2, 7)], None,
     [("thermal_throttle", "rack", "cooling:/loop0", ("j",)), ("thermal_throttle", "device", "gpu:GPU-7-0", ())]),
    ("half of all nodes are the fleet", [finding(gpu(i)) for i in (0, 1, 4, 5)], None,
     [("thermal_throttle", "fleet", None, ("j",))]),
    ("without an inventory half of all nodes are the fleet", [finding(gpu(i)) for i in (0, 2, 4, 6)], window(T0).topology,
     [("thermal_throttle", "fleet", None, ("j",))]),
    ("three nodes of eight that share nothing are three", [finding(gpu(i), "xid_fatal") for i in (0, 3, 6)], None,
     [("xid_fatal", "device", f"gpu:GPU-{i}-0", ("j",) if i < 4 else ()) for i in (0, 3, 6)]),
    ("a label separates", [finding(gpu(i), "clock_loss") for i in (0, 3, 6)], FIRMWARE,
     [("clock_loss", "fleet", "label:/bmc_firmware=24.09", ("j",))]),
    ("a lossy NIC", [loss(nic(1))], None, [("packet_loss", "device", "nic:n1/mlx5_0/1", ("j",))]),
    ("its peers are victims", [loss(nic(1)), loss(nic(2), "retransmits_stand_out", severity=0.8)], None,
     [("packet_loss", "device", "nic:n1/mlx5_0/1", ("j",))]),
    ("a sender that stands out alone", [loss(nic(1), "retransmits_stand_out")], None,
     [("packet_loss", "device", "nic:n1/mlx5_0/1", ("j",))]),
    ("three ports of a leaf are the switch", [loss(nic(i)) for i in range(3)], None,
     [("packet_loss", "switch", "switch:/leaf0", ("j",))]),
    ("a rank whose GPU is known", [stall(rank(9, 1, 1))], None, [("stalled_loss", "device", "gpu:GPU-1-1", ("j",))]),
    ("a rank whose GPU is not", [stall(rank(9))], None, [("stalled_loss", "job", "rank:j/9", ("j",))]),
    ("a whole job", [stall(JOB)], None, [("stalled_loss", "job", None, ("j",))]),
    ("a job and its rank are one", [stall(JOB), stall(rank(9, 1, 1))], None,
     [("stalled_loss", "device", "gpu:GPU-1-1", ("j",))]),
    ("two faults are two", [finding(gpu(1)), stall(JOB)], None,
     [("stalled_loss", "job", None, ("j",)), ("thermal_throttle", "device", "gpu:GPU-1-0", ("j",))]),
]


@pytest.mark.parametrize(("findings", "topology", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_table(findings: list[Finding], topology: object, expected: list) -> None:
    """Which incidents open for findings, in any order of the findings."""
    for order in itertools.islice(itertools.permutations(findings), 6):
        found = opened(list(order), topology)
        got = [(i.fault, i.scope, None if i.culprit is None else i.culprit.key, i.jobs) for i in found]
        assert sorted(got, key=str) == sorted(expected, key=str)
        assert all(sum(s.probability for s in i.suspects) <= 1 + 1e-9 for i in found)


@pytest.mark.parametrize("known", [1, 0], ids=["named-at-once", "a-part-first"])
def test_a_node_that_a_detector_named_stays_one_incident_when_its_parts_are_found(known: int) -> None:
    """Its fans fail: the hottest GPU and the node are found, then all of its GPUs; the incident keeps its name."""
    book, node = IncidentBook(), finding(Target("node", "n1"))
    book.update(seen(0), [*[node] * known, finding(gpu(1))], ())
    for i, count in ((1, 1), (2, 5), (3, 8)):
        book.update(seen(i), [node, *(finding(gpu(1, d)) for d in range(count))], ())
    assert [(i.scope, None if i.culprit is None else i.culprit.key) for i in book.open()] == [("node", "node:n1/")]


def test_failures_far_apart_in_time_are_not_shared() -> None:
    """Three nodes of eight in a rack that fail on different days share nothing."""
    rack = site(cooling=lambda i: "loop", rack=lambda i: "r", leaf=lambda i: "l")
    found = opened([finding(gpu(i), onset=T0 - i * DAY) for i in range(3)], rack)
    assert {i.scope for i in found} == {"device"}


CONFIDENCES = [
    ("physics on a part", finding(gpu(1), severity=0.3), 0.9, 1.0),
    ("a rank that is behind", stall(rank(1, 1, 1), severity=0.9), 0.8, 0.98),
    ("a rank by watchdog lines", stall(rank(1), reason="watchdog_behind", severity=0.9), 0.5, 0.8),
    ("a whole job", stall(JOB, severity=0.9), 0.8, 0.98),
]


@pytest.mark.parametrize(("one", "low", "high"), [c[1:] for c in CONFIDENCES], ids=[c[0] for c in CONFIDENCES])
def test_confidence(one: Finding, low: float, high: float) -> None:
    """How sure an incident is, by its evidence."""
    assert low <= opened([one])[0].confidence <= high


def test_suspects_of_a_whole_job() -> None:
    """Weights become probabilities, ranks become their GPUs."""
    found = opened([stall(JOB, suspects=((rank(1, 0, 1), 3.0, "late"), (rank(2), 1.0, "quiet")))])[0]
    assert [(s.target.key, s.probability) for s in found.suspects] == [("gpu:GPU-0-1", 0.75), ("rank:j/2", 0.25)]


def test_a_gpu_carries_its_rank() -> None:
    """The GPU of a culprit rank keeps job and rank, and the stable id."""
    culprit = opened([stall(rank(9, 1, 1))])[0].culprit
    assert culprit is not None
    assert (culprit.kind, culprit.id, culprit.job, culprit.rank) == ("gpu", "GPU-1-1", "j", 9)


def test_ids_and_owners() -> None:
    """The id is that of fault, scope, key and opening; owner and class come from the list of faults."""
    found = opened([loss(nic(1))])[0]
    assert found.id == Incident.make_id("packet_loss", "device", "nic:n1/mlx5_0/1", T0)
    assert (found.owner, found.klass) == ("network", "page")


# --- life ---------------------------------------------------------------------------------------------------------------
def life(*ticks: list[Finding], book: IncidentBook | None = None, **more: object) -> list[list[str]]:
    """The news of each tick as `word:state`, in one book."""
    book, out, before = book or IncidentBook(), [], []
    for i, findings in enumerate(ticks):
        ended = [replace(f, ended_at=tick(i), end_reason=more.get("end", "cleared")) for f in before if f not in findings]
        news = book.update(seen(i, **{k: v for k, v in more.items() if k != "end"}), findings, ended)  # type: ignore[arg-type]
        out.append([f"{word}:{incident.state}" for word, incident in news])
        before = findings
    return out


HOT = finding(gpu(1))


def test_resolved_after_quiet() -> None:
    """Quiet for 120 s ends an incident, not before."""
    news = life([HOT], *[[]] * 9)
    assert news == [["opened:open"], *[[]] * 8, ["resolved:resolved"]]


def test_reasons_of_the_end() -> None:
    """Evidence that ran out is no good news, and the reason says so."""
    book = IncidentBook()
    life([HOT], *[[]] * 9, book=book, end="expired")
    news = list(book._entries.values())
    assert [e.incident.reason for e in news] == ["evidence_expired"]


def test_reopened_with_the_same_id() -> None:
    """The same fault on the same part within 30 minutes is the same incident."""
    book = IncidentBook()
    news = life([HOT], *[[]] * 9, [finding(gpu(1), at=tick(10))], book=book)
    assert news[-1] == ["reopened:open"]
    assert len(book._entries) == 1


def test_another_part_is_another_incident() -> None:
    """A stall whose culprit is another rank does not reopen the old one."""
    news = life([stall(rank(1, 0, 1))], *[[]] * 9, [stall(rank(9, 1, 1), at=tick(10))])
    assert news[-1] == ["opened:open"]


def test_after_30_minutes_it_is_new() -> None:
    """What comes back later is another incident."""
    assert life([HOT], *[[]] * 131, [finding(gpu(1), at=tick(132))])[-1] == ["opened:open"]


def test_wider_incident_absorbs() -> None:
    """Single incidents become part of the shared one, which stays one while parts recover."""
    parts = [finding(gpu(i), at=tick(i)) for i in range(3)]
    book = IncidentBook()
    news = life(parts[:1], parts[:2], parts, parts[:1], parts[:1], book=book)
    assert news[2] == ["opened:open", "updated:merged", "updated:merged"]
    assert [i.scope for i in book.open()] == ["rack"]
    merged = [e.incident for e in book._entries.values() if e.incident.state == "merged"]
    assert {i.merged_into for i in merged} == {book.open()[0].id}


def test_hands_off_while_remediation_works() -> None:
    """An incident that is acted upon is neither resolved nor merged by the book."""
    book = IncidentBook()
    life([HOT], book=book)
    book.adopt(tick(1), replace(book.open()[0], state="acting", reason="action_planned", attempt=1))
    assert not [w for news in life(*[[]] * 20, book=book) for w in news]
    assert (book.open()[0].state, book.open()[0].attempt) == ("acting", 1)
    assert book.quiet_since(book.open()[0].id) is not None


def test_engine_resolves() -> None:
    """What remediation resolves is closed, and reopens when the evidence comes back."""
    book = IncidentBook()
    life([HOT], book=book)
    book.adopt(tick(1), replace(book.open()[0], state="resolved", reason="recovered"))
    assert not book.open()
    assert life([], [HOT], book=book)[-1] == ["reopened:open"]


def test_abandoned_stays_closed_while_its_evidence_stays() -> None:
    """What a person closed does not open again for the same finding."""
    book = IncidentBook()
    life([HOT], book=book)
    book.adopt(tick(0), replace(book.open()[0], state="abandoned"))
    assert life([HOT], [HOT], book=book) == [[], []]


def test_updates_are_damped() -> None:
    """Nothing is told while nothing changes; new evidence is."""
    hotter = finding(gpu(1), observed=110.0)
    assert life([HOT], [HOT], [hotter], [hotter]) == [["opened:open"], [], ["updated:open"], []]


def test_culprit_found_later_is_the_same_incident() -> None:
    """A stall of a job whose rank is found later stays one incident, with the culprit filled in."""
    book = IncidentBook()
    news = life([stall(JOB)], [stall(JOB), stall(rank(9, 1, 1))], book=book)
    assert news == [["opened:open"], ["updated:open"]]
    assert book.open()[0].culprit is not None


def test_job_end_is_the_reason() -> None:
    """An incident of a job that ended is resolved for that."""
    book = IncidentBook()
    life([stall(JOB)], *[[]] * 9, book=book, jobs=(replace(JOBS[0], phase="done"),))
    assert [e.incident.reason for e in book._entries.values()] == ["job_ended"]


def test_dump_and_load() -> None:
    """A restart at any tick changes nothing."""
    parts = [finding(gpu(i), at=tick(i)) for i in range(3)]
    script = [parts[:1], parts[:2], parts, parts[:1], *[[]] * 9, parts[:1]]
    plain = life(*script)
    for cut in range(len(script)):
        book = IncidentBook()
        news = life(*script[:cut], book=book)
        text, book = book.dump(), IncidentBook()
        book.load(text)
        assert book.dump() == text
        before = script[cut - 1] if cut else []
        for i in range(cut, len(script)):
            ended = [replace(f, end_reason="cleared") for f in before if f not in script[i]]
            news.append([f"{w}:{x.state}" for w, x in book.update(seen(i), script[i], ended)])
            before = script[i]
        assert news == plain


def ranks_window(i: int, steps: list[float], seconds: list[float]) -> Window:
    """A job of two ranks on n0 that reports step and step time."""
    parts = [rank(0, 0, 0), rank(1, 0, 1)]
    rows = {"rank.step": (parts, [[s, s] for s in steps]), "rank.step_seconds": (parts, [[s, s] for s in seconds])}
    job = JobState("j", "train", ("n0",), (0, 1), 8)
    return window(tick(i), rows, jobs=(job,), topology=site())


LOSSES = [
    ("a hang loses everything", [9.0] * 40, [1.0] * 40, 1.0),
    ("half the speed loses half", [float(i) for i in range(40)], [1.0] * 30 + [2.0] * 10, 0.5),
    ("the usual speed loses nothing", [float(i) for i in range(40)], [1.0] * 40, 0.0),
]


@pytest.mark.parametrize(("steps", "seconds", "share"), [c[1:] for c in LOSSES], ids=[c[0] for c in LOSSES])
def test_lost_gpu_hours(steps: list[float], seconds: list[float], share: float) -> None:
    """Each tick adds the GPUs of the job times the share of its work that is lost."""
    book = IncidentBook()
    book.update(ranks_window(0, steps, seconds), [finding(gpu(0), at=tick(0), onset=tick(-10))], ())
    assert book.open()[0].lost_gpu_hours == pytest.approx(8 * 15 / 3600 * share)


def test_losses_by_job_the_worst_on_top() -> None:
    """A hang costs all of its job's GPUs, a part without a job nothing; a restart keeps the sums."""
    book = IncidentBook()
    book.update(ranks_window(0, [9.0] * 40, [1.0] * 40), [finding(gpu(0), at=tick(0), onset=tick(-10)), finding(gpu(5), at=tick(0))], ())
    again = IncidentBook()
    again.load(book.dump())
    [row] = again.losses()
    assert (row["job"], row["open"], [one["fault"] for one in row["incidents"]]) == ("j", 1, ["thermal_throttle"])
    assert row["lost_gpu_hours"] == pytest.approx(8 * 15 / 3600)


def test_a_roll_out_that_is_seen_in_one_rack_first_is_one_incident_of_its_label() -> None:
    """Two nodes of one loop are hot, then all that have the firmware: the loop's incident is merged, and the label's stays."""
    topology = site(labels=lambda i: {"bmc_firmware": "24.09" if i in (0, 1, 6) else "24.06"})
    hot = {i: [finding(gpu(i, d)) for d in range(4)] for i in (0, 1, 6)}
    book = IncidentBook()
    book.update(seen(0, topology), [*hot[0], *hot[1]], ())
    assert [(i.scope, str(i.culprit)) for i in book.open()] == [("rack", "loop0")]
    for at in (4, 5):
        book.update(seen(at, topology), [f for found in hot.values() for f in found], ())
        assert [(i.scope, str(i.culprit)) for i in book.open()] == [("fleet", "bmc_firmware=24.09")]
    book.update(seen(9, topology), [*hot[0], *hot[1]], ())
    assert [(i.scope, str(i.culprit)) for i in book.open()] == [("fleet", "bmc_firmware=24.09")]


@pytest.mark.parametrize(("later", "onset", "scopes"), [
    ((0, 1, 2), T0 + 60_000, ["rack:/r0"]), ((0, 1, 2), T0 + 3_600_000, ["gpu:GPU-1-0", "pdu:/p0a"]), ((0, 2, 5), T0 + 60_000, ["gpu:GPU-5-0", "pdu:/p0a"])],
    ids=["its rack", "an hour later", "in another rack"])
def test_a_rack_of_which_one_feed_is_seen_first_is_one_incident(later: tuple[int, ...], onset: int, scopes: list[str]) -> None:
    """The limit of a rack is cut: those of its nodes that need most are found first, and hang on one of two feeds."""
    topology = site(pdu=lambda i: f"p{i // 4}{'ab'[i % 2]}", cooling=lambda i: None)
    book = IncidentBook()
    first = [finding(gpu(i, d), "power_cap") for i in (0, 2) for d in range(2)]
    book.update(seen(0, topology), first, ())
    assert [str(i.culprit.key) for i in book.open() if i.culprit] == ["pdu:/p0a"]
    more = [finding(gpu(i), "power_cap", onset=onset) for i in later if i not in (0, 2)]
    book.update(seen(4, topology), [*first, *more], ())
    assert sorted(i.culprit.key for i in book.open() if i.culprit) == scopes


def test_a_roll_out_that_is_taken_back_keeps_its_incident() -> None:
    """The label is gone from all nodes while they are still hot: the incident stays that of the label."""
    hot = [finding(gpu(i, d)) for i in (0, 3, 6) for d in range(4)]
    book = IncidentBook()
    book.update(seen(0, FIRMWARE), hot, ())
    before = book.open()
    book.update(seen(4), hot, ())
    assert [(i.id, i.scope, str(i.culprit)) for i in book.open()] == [(before[0].id, "fleet", "bmc_firmware=24.09")]
