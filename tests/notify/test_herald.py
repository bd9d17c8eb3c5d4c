"""Who is told what: routes, silences, storms, the weekly budget, and a state that a restart does not lose."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocols import NotifierPlugin
from core.telemetry import Telemetry
from core.types import Action, Incident, Notice, Outbound, Outcome, Target
from pipeline.herald import WEEK_MS, Herald, Match, NotifyRoute, RouteRules, Storm, Tidings
from tests.notify.receivers import AT, INCIDENT, incident

TICK = 15_000


def render(notice: Notice, links: Mapping[str, str]) -> str:
    return json.dumps({"event": notice.event, "ids": [one.id for one in notice.incidents], "klass": [one.klass for one in notice.incidents],
                       "note": notice.note, "total": notice.total, "open": notice.still_open, "actor": notice.actor})


def route(name: str = "r", standing: bool = False, **rules: object) -> NotifyRoute:
    return NotifyRoute(name, NotifierPlugin(name, object, lambda params: None, render, standing), {}, RouteRules(**rules))  # type: ignore[arg-type]


class Site:
    """A herald, the incidents that are open, and who is silenced; `tick` tells and gives the messages."""

    def __init__(self, *routes: NotifyRoute, labels: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.routes, self.labels = routes, labels or {}
        self.telemetry = Telemetry()
        self.herald = self.make()
        self.open: dict[str, Incident] = {}
        self.silenced: set[str] = set()
        self.there: set[str] = set()
        self.acks: dict[str, str] = {}
        self.at = AT

    def make(self) -> Herald:
        return Herald(self.routes, self.telemetry, lambda node: self.labels.get(node, {}))

    def restart(self) -> None:
        """A new herald with the state that was committed."""
        text = self.herald.dump()
        self.herald = self.make()
        self.herald.load(text)

    def tick(self, *told: tuple[str, Incident], after: int = TICK, actions: Sequence[tuple[Action, Outcome]] = ()) -> list[Outbound]:
        self.at += after
        told = tuple((word, replace(one, opened_at=self.at) if word == "opened" else one) for word, one in told)
        for _, one in told:
            self.open.pop(one.id, None)
            if one.state not in ("resolved", "abandoned", "merged"):
                self.open[one.id] = one
        return list(self.herald.tell(Tidings(self.at, told, tuple(self.open.values()), lambda one: one.id in self.silenced,
                                             lambda one: one.id in self.there, self.acks, actions)))


def events(messages: Sequence[Outbound]) -> list[str]:
    return [json.loads(message.body)["event"] for message in messages]


def bodies(messages: Sequence[Outbound]) -> list[dict[str, object]]:
    return [json.loads(message.body) for message in messages]


def over(one: Incident, state: str = "resolved") -> tuple[str, Incident]:
    return "resolved", replace(one, state=state, resolved_at=AT + 10**9)


# --- one incident -----------------------------------------------------------------------------------------------------
def test_an_incidents_life_is_told_once_each() -> None:
    """Opened, proposed, escalated, acknowledged, ended; what repeats is not told again, other news are not told at all."""
    site, one = Site(route()), INCIDENT
    lives = [("opened", one), ("updated", replace(one, lost_gpu_hours=9.0)), ("updated", replace(one, state="proposed")),
             ("updated", replace(one, state="proposed", confidence=0.1)), ("updated", replace(one, state="escalated"))]
    said = [events(site.tick(step)) for step in lives]
    site.acks = {one.id: "ada"}
    said += [events(site.tick()), events(site.tick()), events(site.tick(over(one)))]
    assert said == [["opened"], [], ["proposed"], [], ["escalated"], ["acknowledged"], [], ["resolved"]]


def test_what_was_absorbed_ends() -> None:
    """Its alert must not fire for ever."""
    site = Site(route())
    site.tick(("opened", INCIDENT))
    assert events(site.tick(("updated", replace(INCIDENT, state="merged", merged_into="inc-2")))) == ["merged"]


def test_what_never_was_told_does_not_end() -> None:
    """An incident of another route, and one that opened and closed within a tick."""
    site = Site(route(match=Match(owner=("network",))))
    assert [events(site.tick(("opened", INCIDENT))), events(site.tick(over(INCIDENT)))] == [[], []]
    site = Site(route())
    site.tick()
    assert events(site.tick(("opened", INCIDENT), over(replace(INCIDENT, opened_at=AT + 2 * TICK)))) == []


def test_an_incident_of_an_older_greylag_ends() -> None:
    """It was told by a Greylag that kept no such state."""
    site = Site(route())
    site.tick()
    assert events(site.tick(over(replace(INCIDENT, opened_at=AT - 10**7)))) == ["resolved"]


def test_a_step_notify_of_a_policy_is_a_message() -> None:
    """With the policy's own text."""
    site = Site(route())
    site.tick(("opened", INCIDENT))
    action = Action("a/1/1", "notify", INCIDENT.culprit or Target("node"), {"text": "look at the fans"}, 60.0, "act", INCIDENT.id, 1, 1, AT, "policy")
    [told] = bodies(site.tick(actions=[(action, Outcome(action.id, "DONE", "done"))]))
    assert (told["event"], told["note"]) == ("notify", "look at the fans")


# --- routes -----------------------------------------------------------------------------------------------------------
NAN = replace(INCIDENT, fault="nonfinite_loss", owner="job owner", scope="job", culprit=Target("job", job="train-1"))


@pytest.mark.parametrize(("match", "takes"), [
    (Match(), True), (Match(owner=("job owner",)), True), (Match(owner=("infra", "network")), False), (Match(klass=("page",)), True),
    (Match(klass=("ticket",)), False), (Match(fault=("nonfinite_loss",)), True), (Match(scope=("node",)), False), (Match(job=("train-*",)), True),
    (Match(job=("infer-*",)), False), (Match(owner=("job owner",), klass=("ticket",)), False), (Match(labels={"team": "x"}), False)])
def test_a_nan_goes_to_the_jobs_owner(match: Match, takes: bool) -> None:
    """Each list that a match gives must hold."""
    assert events(Site(route(match=match)).tick(("opened", NAN))) == (["opened"] if takes else [])


@pytest.mark.parametrize(("labels", "takes"), [({"team": "a"}, True), ({"team": "a", "zone": "1"}, False), ({"team": "b"}, False)])
def test_labels_are_those_of_the_culprits_node(labels: Mapping[str, str], takes: bool) -> None:
    """As the inventory has them."""
    site = Site(route(match=Match(labels=labels)), labels={"n7": {"team": "a"}})
    assert bool(site.tick(("opened", INCIDENT))) == takes


def test_what_no_route_takes_is_counted() -> None:
    """It is seen in the metrics."""
    site = Site(route(match=Match(owner=("network",))))
    site.tick(("opened", INCIDENT))
    assert site.telemetry.get("greylag_notifications_total", notifier="none", result="no_route") == 1


# --- silences ---------------------------------------------------------------------------------------------------------
def test_a_silenced_incident_is_told_when_the_silence_ends() -> None:
    """If it lasts until then; one that ended meanwhile is never told."""
    site, one, other = Site(route()), incident(1), incident(2)
    site.silenced = {one.id, other.id}
    said = [events(site.tick(("opened", one), ("opened", other))), events(site.tick(over(other)))]
    site.silenced = set()
    said += [events(site.tick()), events(site.tick()), events(site.tick(over(one)))]
    assert said == [[], [], ["opened"], [], ["resolved"]]


def test_the_end_is_told_whatever_was_silenced_meanwhile() -> None:
    """No alert fires for ever elsewhere."""
    site = Site(route())
    site.tick(("opened", INCIDENT))
    site.silenced = {INCIDENT.id}
    assert events(site.tick(over(INCIDENT))) == ["resolved"]


@pytest.mark.parametrize(("there", "said"), [(True, ["opened"]), (False, [])])
def test_an_alertmanager_is_told_of_what_it_silences_itself(there: bool, said: list[str]) -> None:
    """It has to show the alert as silenced; a silence of Greylag's own keeps it back there too."""
    site = Site(route(standing=True))
    site.silenced, site.there = {INCIDENT.id}, {INCIDENT.id} if there else set()
    assert events(site.tick(("opened", INCIDENT))) == said
    assert [one.id for one in site.herald.standing(site.open.values())["r"]] == [INCIDENT.id] * len(said)


# --- storms -----------------------------------------------------------------------------------------------------------
def many(first: int, last: int, **changes: object) -> list[tuple[str, Incident]]:
    return [("opened", incident(i, **changes)) for i in range(first, last)]


def test_a_thousand_at_once_are_one_message() -> None:
    """And one more each minute while members come and go, and one when all have ended."""
    site = Site(route(storm=Storm(10, 60.0, 60.0)))
    [first] = bodies(site.tick(*many(0, 1000)))
    quiet = events(site.tick(*many(1000, 1001)))
    [update] = bodies(site.tick(*(over(incident(i)) for i in range(500)), after=60_000))
    [end] = bodies(site.tick(*(over(incident(i)) for i in range(500, 1001))))
    assert (first["event"], first["total"], quiet) == ("storm", 1000, [])
    assert (update["event"], update["total"], update["open"]) == ("storm_updated", 1001, 501)
    assert (end["event"], end["open"]) == ("storm_ended", 0)


def test_a_storm_that_builds_up_takes_in_what_follows() -> None:
    """The first are told by themselves and end by themselves; the tenth begins the storm."""
    site = Site(route(storm=Storm(10, 300.0, 0.0)))
    said = [events(site.tick(*many(i, i + 1))) for i in range(12)]
    assert said == [["opened"]] * 9 + [["storm"], ["storm_updated"], ["storm_updated"]]
    assert events(site.tick(over(incident(0)))) == ["resolved"]


def test_after_a_storm_incidents_are_told_by_themselves_again() -> None:
    """Once its time has passed; a member that comes back within it belongs to it still."""
    site = Site(route(storm=Storm(3, 60.0, 0.0)))
    site.tick(*many(0, 5))
    back = events(site.tick(over(incident(1)))) + events(site.tick(("reopened", incident(1))))
    site.tick(*(over(incident(i)) for i in range(5)))
    site.tick(after=120_000)
    assert (back, events(site.tick(*many(7, 8)))) == (["storm_updated", "storm_updated"], ["opened"])


def test_a_growing_loss_is_no_news_of_a_storm() -> None:
    """Else each minute of it would be told."""
    site = Site(route(storm=Storm(3, 60.0, 0.0)))
    site.tick(*many(0, 5))
    assert events(site.tick(("updated", incident(1, lost_gpu_hours=99.0)))) == []


def test_a_standing_notifier_gets_the_members_that_changed() -> None:
    """Alertmanager knows states, not numbers: each member's alert begins and ends."""
    site = Site(route(standing=True, storm=Storm(3, 60.0, 600.0)))
    [first] = bodies(site.tick(*many(0, 5)))
    [second] = bodies(site.tick(over(incident(2))))
    assert (len(first["ids"]), second["ids"]) == (5, [incident(2).id])  # type: ignore[arg-type]
    assert len(site.herald.standing(site.open.values())["r"]) == 4


# --- the weekly budget ------------------------------------------------------------------------------------------------
def test_pages_over_the_budget_are_tickets_and_say_so() -> None:
    """The last page says that it is; the next is a ticket until its end; tickets cost nothing; after a week there are pages again."""
    site = Site(route(pages_per_week=2))
    told = [bodies(site.tick(("opened", incident(i))))[0] for i in range(3)]
    ticket = bodies(site.tick(("opened", incident(9, klass="ticket"))))[0]
    end = bodies(site.tick(over(incident(2))))[0]
    later = bodies(site.tick(("opened", incident(4)), after=WEEK_MS))[0]
    assert [t["klass"] for t in (*told, ticket, end, later)] == [["page"], ["page"], ["ticket"], ["ticket"], ["ticket"], ["page"]]
    assert ("last page" in str(told[1]["note"]), "used up" in str(told[2]["note"]), told[0]["note"]) == (True, True, "")
    assert (site.herald.pages_left(site.at), site.telemetry.get("greylag_notifications_total", notifier="r", result="over_budget")) == ({"r": 1}, 1)


def test_a_storm_costs_one_page() -> None:
    """Whatever its size."""
    site = Site(route(pages_per_week=5))
    site.tick(*many(0, 200))
    assert site.herald.pages_left(site.at) == {"r": 4}


def test_each_route_has_a_budget_of_its_own() -> None:
    """One team's pages are not another's."""
    site = Site(route("a", pages_per_week=1), route("b"))
    site.tick(("opened", incident(1)))
    assert [b["klass"] for b in bodies(site.tick(("opened", incident(2))))] == [["ticket"], ["page"]]


# --- any order of things ----------------------------------------------------------------------------------------------
STEPS = st.lists(st.tuples(st.sampled_from(["opened", "reopened", "updated", "escalated", "resolved", "merged", "silence", "release", "wait", "restart"]),
                           st.integers(0, 5)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.booleans())
def test_every_opening_has_its_end_in_any_order_of_things(steps: list[tuple[str, int]], standing: bool) -> None:
    """Nothing is told twice as open, nothing ends that was not told, all that is told ends when all has ended; a restart between
    any two steps changes nothing."""
    site, twin = (Site(route(standing=standing, storm=Storm(3, 60.0, 30.0), pages_per_week=2)) for _ in range(2))
    state: dict[str, str] = {}
    told: dict[str, bool] = {}

    def both(*news: tuple[str, Incident], after: int = TICK) -> list[Outbound]:
        twin.silenced = set(site.silenced)
        twin.restart()
        first, second = site.tick(*news, after=after), twin.tick(*news, after=after)
        assert first == second
        return first

    def check(messages: list[Outbound]) -> None:
        for one in bodies(messages):
            ended = one["event"] in ("resolved", "merged", "storm_ended")
            key = next(m.incident for m in messages if json.loads(m.body) == one)
            assert told.get(key, False) if ended or one["event"] in ("escalated", "storm_updated") else True
            assert not (one["event"] in ("opened", "storm") and told.get(key, False))
            told[key] = not ended

    for word, number in steps:
        name, one = incident(number).id, incident(number)
        if word == "silence":
            site.silenced.add(name)
        elif word == "release":
            site.silenced.discard(name)
        elif word == "wait":
            check(both(after=TICK * 8))
        elif word in ("opened", "reopened") and state.get(name) != "open" and (word == "opened") == (name not in state):
            state[name] = "open"
            check(both((word, one)))
        elif word in ("updated", "escalated") and state.get(name) == "open":
            check(both(("updated", replace(one, state="escalated" if word == "escalated" else "open"))))
        elif word in ("resolved", "merged") and state.get(name) == "open":
            state[name] = "closed"
            check(both(over(one, word)))
    check(both(*(over(incident(i)) for i in range(6) if state.get(incident(i).id) == "open")))
    check(both(after=TICK * 40))
    assert not any(told.values())
