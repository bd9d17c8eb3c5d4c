"""Who is told what: routes, silences, storms and the weekly budget of pages, between the incidents of a tick and the outbox.

For each route (a configured notifier) an incident is untold, told by itself, told within a storm, or withheld because it is
silenced. What was told is told when it ends, whatever was silenced meanwhile; what was withheld is told once its silence is
over, if it still lasts. The state commits with the tick, so a restart repeats nothing and forgets nothing.

A storm: when `storm.incidents` open within `storm.seconds` on a route, those of this tick and all that open within
`storm.seconds` of the last are told by one message, which is brought up to date at most every `storm.update_seconds`.

Pages over `pages_per_week` are sent with the class `ticket` and say so; an incident keeps its class until it ends.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from core.protocols import NotifierPlugin
from core.targets import CLOSED_STATES
from core.telemetry import Telemetry
from core.types import Action, Incident, Notice, Outbound, Outcome
from pipeline.codec import pack, unpack

WEEK_MS = 7 * 86_400_000
URGENT = {"page": 0, "ticket": 1, "log": 2}
TOLD_STATES = ("proposed", "escalated")  # a person is needed
Silenced = Callable[[Incident], bool]


@dataclass(frozen=True, slots=True)
class Match:
    """What a route takes: each list that is given must hold the incident's word. job: patterns such as `train-*`, any of the
    incident's jobs. labels: of the culprit's node, as the inventory has them."""

    fault: tuple[str, ...] = ()
    owner: tuple[str, ...] = ()
    klass: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Storm:
    """incidents that open within `seconds` are a storm; 0 = each is told by itself. The default of 10 in 5 minutes is more than
    one part or one node brings about, and less than a switch or a rack."""

    incidents: int = 10
    seconds: float = 300.0
    update_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class RouteRules:
    """The keys that every `notify[]` entry may have. id: the route's name in the outbox, else `<name>/<place in the list>`.
    pages_per_week: 0 = no limit; 28 is two for each shift of 12 hours."""

    id: str | None = None
    match: Match = Match()
    storm: Storm = Storm()
    pages_per_week: int = 0


@dataclass(frozen=True, slots=True)
class NotifyRoute:
    """A configured notifier: its name in the outbox, the plug-in, the links that its messages carry, what it takes."""

    name: str
    plugin: NotifierPlugin
    links: Mapping[str, str] = field(default_factory=dict)
    rules: RouteRules = RouteRules()


@dataclass(slots=True)
class Told:
    """key: under which it is told, its own id or a storm's. klass: as it was told. said: states that were told."""

    key: str
    klass: str
    said: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Gathering:
    """A storm. members: ever. open: now. told_at: ms, of the last message. dirty: something changed since."""

    since: int
    last_at: int
    klass: str
    note: str
    members: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    told_at: int = 0
    dirty: bool = False


@dataclass(slots=True)
class Book:
    """What a route knows. began_at: its first tick. recent: when incidents that are told by themselves opened. pages: when
    pages were sent, of the last week."""

    began_at: int | None = None
    told: dict[str, Told] = field(default_factory=dict)
    withheld: list[str] = field(default_factory=list)
    recent: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    storms: dict[str, Gathering] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tidings:
    """What a tick has to tell. told: (opened | updated | resolved | reopened, incident) in order. opened: the incidents that
    are open now. acks: by incident who acknowledged it. withholds: a silence of an Alertmanager does not withhold an alert
    from Alertmanager, which has to show it as silenced."""

    at: int
    told: Sequence[tuple[str, Incident]]
    open: Sequence[Incident]
    silenced: Silenced
    silenced_there: Silenced
    acks: Mapping[str, str]
    actions: Sequence[tuple[Action, Outcome]] = ()


class Herald:
    """Turns the news of ticks into messages. Not thread-safe: as the incident book, under the tick's lock."""

    def __init__(self, routes: Sequence[NotifyRoute], telemetry: Telemetry,
                 labels_of: Callable[[str], Mapping[str, str]] | None = None) -> None:
        self.routes = tuple(routes)
        self._telemetry = telemetry
        self._labels_of = labels_of or (lambda node: {})
        self._books: dict[str, Book] = {}

    def tell(self, news: Tidings) -> tuple[Outbound, ...]:
        """The messages of a tick, in the order in which they are to be sent."""
        last: dict[str, Incident] = {}
        words: dict[str, list[str]] = {}
        for word, incident in news.told:
            last[incident.id] = incident
            words.setdefault(incident.id, []).append(word)
        out: list[Outbound] = []
        taken: set[str] = set()
        for route in self.routes:
            teller = _Teller(route, self._books.setdefault(route.name, Book()), news, self._telemetry, self._takes)
            out += teller.messages(last, words)
            taken |= {i for i in last if i in teller.book.told or i in teller.book.withheld}
        if self.routes:
            for name, incident in last.items():
                if "opened" in words[name] and name not in taken and incident.state not in CLOSED_STATES:
                    self._telemetry.add("greylag_notifications_total", notifier="none", result="no_route")
        for name, left in self.pages_left(news.at).items():
            if left is not None:
                self._telemetry.set("greylag_pages_left", left, notifier=name)
        return tuple(out)

    def standing(self, open_: Iterable[Incident]) -> dict[str, tuple[Incident, ...]]:
        """By route whose receiver forgets: the incidents that it has to keep firing, with the class as it was told."""
        found = tuple(open_)
        return {route.name: tuple(replace(one, klass=self._books[route.name].told[one.id].klass) for one in found
                                  if one.id in self._books[route.name].told)
                for route in self.routes if route.plugin.standing and route.name in self._books}

    def pages_left(self, at: int) -> dict[str, int | None]:
        """By route the pages of the week that are left; None = no limit."""
        return {route.name: None if not route.rules.pages_per_week else max(0, route.rules.pages_per_week - sum(
            at - page < WEEK_MS for page in self._books.get(route.name, Book()).pages)) for route in self.routes}

    def _takes(self, match: Match, one: Incident) -> bool:
        """True where the incident is for the route."""
        for allowed, word in ((match.fault, one.fault), (match.owner, one.owner), (match.klass, one.klass), (match.scope, one.scope)):
            if allowed and word not in allowed:
                return False
        if match.job and not any(fnmatchcase(job, pattern) for job in one.jobs for pattern in match.job):
            return False
        if match.labels:
            node = one.culprit.node if one.culprit is not None else None
            own = self._labels_of(node) if node else {}
            return all(own.get(key) == value for key, value in match.labels.items())
        return True

    def dump(self) -> str:
        """All state as JSON; `load` gives it back."""
        return json.dumps({name: pack(book) for name, book in self._books.items()}, separators=(",", ":"))

    def load(self, text: str) -> None:
        """Replaces the state by what `dump` gave. Routes that are configured no more are forgotten."""
        known = {route.name for route in self.routes}
        self._books = {name: unpack(Book, row) for name, row in json.loads(text).items() if name in known}


@dataclass(slots=True)
class _Teller:
    """One route at one tick."""

    route: NotifyRoute
    book: Book
    news: Tidings
    telemetry: Telemetry
    takes: Callable[[Match, Incident], bool]
    out: list[Outbound] = field(default_factory=list)
    changed: dict[str, list[Incident]] = field(default_factory=dict)  # by storm: members that are news at this tick

    def messages(self, last: Mapping[str, Incident], words: Mapping[str, Sequence[str]]) -> list[Outbound]:
        """All messages of the route."""
        at, book = self.news.at, self.book
        book.began_at = at if book.began_at is None else book.began_at
        book.pages = [page for page in book.pages if at - page < WEEK_MS]
        book.recent = [one for one in book.recent if at - one < self._storm_ms]
        opening: list[tuple[str, Incident]] = []
        for name, incident in last.items():
            if incident.state in CLOSED_STATES:
                self._close(incident)
            elif name in book.told:
                self._update(incident, words[name])
            elif "opened" in words[name] or "reopened" in words[name]:
                opening.append(("opened" if "opened" in words[name] else "reopened", incident))
        opening += self._released(set(last))
        self._open([(word, one) for word, one in opening if self._may(one)])
        self._acknowledged(last)
        self._asked(last)
        self._storms()
        return self.out

    @property
    def _storm_ms(self) -> int:
        return round(self.route.rules.storm.seconds * 1000)

    # --- openings -----------------------------------------------------------------------------------------------------
    def _may(self, one: Incident) -> bool:
        """False where the route does not take it, or it is silenced: then it is withheld."""
        if not self.takes(self.route.rules.match, one):
            return False
        there = self.route.plugin.standing and self.news.silenced_there(one)
        if self.news.silenced(one) and not there:
            if one.id not in self.book.withheld:
                self.book.withheld.append(one.id)
                self._count("silenced")
            return False
        if one.id in self.book.withheld:
            self.book.withheld.remove(one.id)
        return True

    def _released(self, news: set[str]) -> list[tuple[str, Incident]]:
        """What was withheld and is open still; whether it may be told now is asked as of any other."""
        held = set(self.book.withheld)
        if not held:
            return []
        live = {one.id: one for one in self.news.open}
        self.book.withheld = [name for name in self.book.withheld if name in live or name in news]
        return [("opened", live[name]) for name in self.book.withheld if name in live and name not in news]

    def _open(self, opening: Sequence[tuple[str, Incident]]) -> None:
        if not opening:
            return
        book, rules, at = self.book, self.route.rules.storm, self.news.at
        active = max((name for name, storm in book.storms.items() if at - storm.last_at <= self._storm_ms),
                     key=lambda name: book.storms[name].last_at, default=None)
        new = rules.incidents > 0 and len(book.recent) + len(opening) >= max(2, rules.incidents)
        if active is None and not new:
            for word, one in opening:
                book.recent.append(at)
                klass, note = self._klass(one.klass)
                book.told[one.id] = Told(one.id, klass, [one.state])
                self._say(word, one.id, [replace(one, klass=klass)], note)
            return
        if active is None:
            names = "\x00".join(one.id for _, one in opening)
            active = "storm-" + hashlib.sha256(f"{self.route.name}\x00{at}\x00{names}".encode()).hexdigest()[:12]
            klass, note = self._klass(min((one.klass for _, one in opening), key=lambda k: URGENT.get(k, 3)))
            book.storms[active] = Gathering(at, at, klass, note)
        storm = book.storms[active]
        if storm.klass != "page" and not storm.note and any(one.klass == "page" for _, one in opening):
            storm.klass, storm.note = self._klass("page")
        for _, one in opening:
            book.told[one.id] = Told(active, storm.klass, [one.state])
            storm.members.append(one.id)
            storm.open.append(one.id)
            self._count("in_storm")
        storm.last_at, storm.dirty = at, True
        self.changed.setdefault(active, []).extend(one for _, one in opening)

    def _klass(self, klass: str) -> tuple[str, str]:
        """The class to tell it under, and what is to be said of that."""
        most = self.route.rules.pages_per_week
        if klass != "page" or not most:
            return klass, ""
        if len(self.book.pages) >= most:
            self._count("over_budget")
            return "ticket", f"The {most} pages of this week are used up: this page is sent as a ticket."
        self.book.pages.append(self.news.at)
        left = most - len(self.book.pages)
        return klass, "This is the last page of this week's budget: those that follow are sent as tickets." if left == 0 else ""

    # --- changes and ends ---------------------------------------------------------------------------------------------
    def _update(self, one: Incident, words: Sequence[str]) -> None:
        told = self.book.told[one.id]
        storm = self.book.storms.get(told.key)
        word = "reopened" if "reopened" in words else one.state if one.state in TOLD_STATES and one.state not in told.said else None
        told.said = [*told.said, one.state] if one.state not in told.said else told.said
        if storm is not None:
            if one.id not in storm.open:
                storm.open.append(one.id)
            if word is not None:  # a loss that grew is no news of a storm
                storm.dirty = True
                self.changed.setdefault(told.key, []).append(one)
            return
        if word is not None:
            self._say(word, one.id, [replace(one, klass=told.klass)])

    def _close(self, one: Incident) -> None:
        book = self.book
        if one.id in book.withheld:
            book.withheld.remove(one.id)
            return
        told = book.told.get(one.id)
        if told is None:
            # One that was open before this route's state began was told by an older Greylag: its end is told too.
            if one.opened_at < (book.began_at or 0) and self.takes(self.route.rules.match, one):
                self._say("merged" if one.state == "merged" else "resolved", one.id, [one])
            return
        storm = book.storms.get(told.key)
        if storm is None:
            del book.told[one.id]
            self._say("merged" if one.state == "merged" else "resolved", one.id, [replace(one, klass=told.klass)])
            return
        storm.open = [name for name in storm.open if name != one.id]
        storm.dirty = True
        self.changed.setdefault(told.key, []).append(one)

    def _acknowledged(self, last: Mapping[str, Incident]) -> None:
        acks = {name: who for name, who in self.news.acks.items() if name in self.book.told}
        if not acks:
            return
        live = {one.id: one for one in self.news.open}
        for name, who in acks.items():
            told = self.book.told[name]
            if name in live and "acknowledged" not in told.said and told.key not in self.book.storms:
                told.said.append("acknowledged")
                self._say("acknowledged", name, [replace(live[name], klass=told.klass)], actor=who)

    def _asked(self, last: Mapping[str, Incident]) -> None:
        """Steps `notify` of a policy: the message is the step."""
        for action, outcome in self.news.actions:
            if action.kind != "notify" or outcome.state != "DONE":
                continue
            one = last.get(action.incident) or next((i for i in self.news.open if i.id == action.incident), None)
            told = self.book.told.get(action.incident)
            if one is not None and told is not None and told.key not in self.book.storms:
                self._say("notify", one.id, [replace(one, klass=told.klass)], str(action.args.get("text") or ""))

    # --- storms -------------------------------------------------------------------------------------------------------
    def _storms(self) -> None:
        live = {one.id: one for one in self.news.open}
        for name, storm in list(self.book.storms.items()):
            over = not storm.open and self.news.at - storm.last_at > self._storm_ms
            due = storm.told_at == 0 or self.route.plugin.standing \
                or self.news.at - storm.told_at >= self.route.rules.storm.update_seconds * 1000
            if storm.dirty and (due or not storm.open):
                self._tell_storm(name, storm, live)
            if over:
                for member in storm.members:
                    self.book.told.pop(member, None)
                del self.book.storms[name]

    def _tell_storm(self, name: str, storm: Gathering, live: Mapping[str, Incident]) -> None:
        event = "storm" if storm.told_at == 0 else "storm_updated" if storm.open else "storm_ended"
        changed = {one.id: one for one in self.changed.get(name, ())}
        if self.route.plugin.standing:
            shown = list(changed.values())
        else:
            shown = [live[one] for one in storm.open if one in live] + [
                one for one in changed.values() if one.state in CLOSED_STATES]
        storm.told_at, storm.dirty = self.news.at, False
        shown = [replace(one, klass=storm.klass) for one in shown]
        self._say(event, name, shown, storm.note, total=len(set(storm.members)), still_open=len(storm.open))

    # --- messages -----------------------------------------------------------------------------------------------------
    def _say(self, event: str, key: str, incidents: Sequence[Incident], note: str = "", actor: str | None = None,
             total: int = 1, still_open: int = 1) -> None:
        at, route = self.news.at, self.route
        notice = Notice(event, at, key, tuple(incidents), note, actor, total, still_open)
        body = route.plugin.render(notice, route.links)
        if body is not None:
            self.out.append(Outbound(f"{key}/{event}/{at}/{route.name}", route.name, key, at, body))

    def _count(self, result: str) -> None:
        self.telemetry.add("greylag_notifications_total", notifier=self.route.name, result=result)
