"""Whatever a person and Greylag do in whatever order: what the person took out stays out, and what they gave back stays in."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kubernetes.site import Site, action
from tests.kubernetes.test_probe import dcgm

PERSON = ("cordon", "uncordon", "mark", "unmark")
GREYLAG = ("drain", "exclude_node", "undrain", "replace", "reboot", "diagnose")
STEPS = st.lists(st.one_of(st.sampled_from(PERSON), st.sampled_from(GREYLAG), st.sampled_from(("wait", "restart", "poll"))), max_size=14)


class Table:
    """One node, a person and Greylag. theirs: the person cordoned it last, while it was in service."""

    def __init__(self) -> None:
        self.site = Site(nodes=2, spares=1, behaviour=lambda p: (0, dcgm()) if "greylag.io/diagnosis" in p["metadata"].get("labels", {}) else None)
        self.site.jobset(pods=2)
        self.theirs = self.marked = False
        self.count = 0
        self.asked: list[str] = []

    @property
    def out(self) -> bool:
        return bool(self.site.get()["spec"].get("unschedulable"))

    def step(self, what: str) -> None:
        if what == "cordon" and not self.out:
            self.site.cordon("n1")
            self.theirs = True
        elif what == "uncordon":
            self.site.cordon("n1", False)
            self.theirs = False
        elif what in ("mark", "unmark"):
            self.marked = what == "mark"
            self.site.patch("n1", lambda o: o["metadata"].setdefault("annotations", {}).update({"greylag.io/maintenance": "fan"})
                            if self.marked else o["metadata"].get("annotations", {}).pop("greylag.io/maintenance", None))
        elif what == "wait":
            self.site.pass_time(45)
        elif what == "restart":
            self.site.restart()
        elif what == "poll":
            for name in self.asked:
                self.site.door.poll(name)
        else:
            self.count += 1
            args = {"tests": "dcgm", "level": 2, "fault": None, "device": None} if what == "diagnose" else {}
            self.asked.append(f"inc-{self.count}/1/1")
            self.site.door.submit(action(what, name=self.asked[-1], deadline=300.0, **args))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_a_persons_hand_is_never_overruled(steps):
    """After each step: a node that the person holds is cordoned and shown as theirs; a step of Greylag never cordons a node
    that they marked, and never uncordons one that they took out."""
    table = Table()
    for what in steps:
        before = table.out
        table.step(what)
        if table.theirs:
            assert table.out, f"{what} took a person's cordon away"
            assert table.site.view.nodes()["n1"].held_by not in (None, "greylag"), what
        if table.marked and what in GREYLAG:
            assert table.out == before, f"{what} changed a node in maintenance"
