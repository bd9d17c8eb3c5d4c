"""The manifest of permissions is enough, and each verb of it is needed."""

from __future__ import annotations

from importlib.resources import files

import pytest
import yaml

from app.kubernetes_inventory import KubernetesInventory, KubernetesInventoryParams
from core.errors import Refused, Unavailable
from remediation.backends.kubernetes_api import Api
from tests.kubernetes.fake import Rule
from tests.kubernetes.site import Site, action, client
from tests.kubernetes.test_probe import dcgm, diagnose


def manifest(name: str) -> list[dict]:
    """The documents of a manifest."""
    return list(yaml.safe_load_all(files("sample_data").joinpath("kubernetes", name).read_text(encoding="utf-8")))


def single_rules(name: str) -> list[Rule]:
    """One rule for each verb on each resource."""
    return [Rule((group,), (resource,), (verb,), doc["metadata"].get("namespace"), tuple(rule.get("resourceNames") or ()))
            for doc in manifest(name) if doc["kind"] in ("ClusterRole", "Role") for rule in doc["rules"]
            for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]]


def site_with(rules: list[Rule]) -> Site:
    """Greylag's token may do what the rules say."""
    site = Site(token="greylag", behaviour=lambda pod: (0, dcgm()) if pod["metadata"]["labels"].get("greylag.io/diagnosis") else None)
    site.cluster.users["greylag"] = ("system:serviceaccount:greylag:greylag", tuple(rules))
    return site


class Failed(Exception):
    """Something did not work."""


def all_that_it_does(rules: list[Rule]) -> str:
    """Everything that the backend does, on small clusters; the first thing that did not work, in words."""

    def expect(site: Site, what) -> None:
        told = site.do(what, seconds=240, step=60)
        if told.state != "DONE":
            raise Failed(f"{what.kind} {what.target.job or what.target.node}: {told.state} {told.reason} {told.detail}")

    def run(kind: str, **labels: str) -> None:
        site = site_with(rules)
        getattr(site, kind)(pods=2, **labels)
        expect(site, action("drain"))
        if kind == "job":
            expect(site, diagnose())
            expect(site, action("replace", name="inc-1/1/3"))
            expect(site, action("undrain", name="inc-1/1/5"))
            site.view.nodes()
            site.listens()
            expect(site, action("restart_process", name="inc-1/1/6", job="train"))
        expect(site, action("resume_job", name="inc-1/1/4", job="train"))
        site.restart()
        if site.door.poll("inc-1/1/4").state != "DONE":
            raise Failed("a new process does not find the action")

    for kind, labels in (("job", {}), ("jobset", {}), ("pytorch", {}), ("jobset", {"kueue.x-k8s.io__queue_name": "q"}),
                         ("pytorch", {"kueue.x-k8s.io__queue_name": "q"})):
        try:
            run(kind, **labels)
        except (Unavailable, Refused, Failed) as error:
            return f"{kind}: {error}"
    return ""


def test_the_manifest_is_enough():
    """The API server that enforces exactly these rules accepts all that the backend does."""
    assert all_that_it_does(single_rules("rbac.yaml")) == ""


@pytest.mark.parametrize("gone", single_rules("rbac.yaml"), ids=lambda r: f"{r.verbs[0]} {r.resources[0]} {r.namespace or ''}".strip())
def test_each_verb_of_the_manifest_is_needed(gone):
    """Without it something of what the backend does fails."""
    rules = single_rules("rbac.yaml")
    rules.remove(gone)
    assert all_that_it_does(rules)


def inventory(rules: list[Rule]) -> int:
    """How many nodes the inventory has under these rules."""
    site = site_with(rules)
    site.jobset()
    made, _ = client(site.cluster, "greylag")
    found = KubernetesInventory(Api(made), KubernetesInventoryParams())()
    return len(found.nodes) * bool(found.jobs)


def test_the_watching_manifest_is_enough_for_the_inventory():
    """And for nothing that changes anything."""
    rules = single_rules("rbac-watch.yaml")
    assert inventory(rules) == 5
    assert {v for r in rules for v in r.verbs} == {"list"}
    assert site_with(rules).door.submit(action("drain")).reason == "not_permitted"


@pytest.mark.parametrize("gone", [0, 1])
def test_each_verb_of_the_watching_manifest_is_needed(gone):
    """Without it there is no inventory."""
    rules = single_rules("rbac-watch.yaml")
    del rules[gone]
    with pytest.raises(Refused):
        inventory(rules)


@pytest.mark.parametrize("name", ["rbac.yaml", "rbac-watch.yaml"])
def test_roles_are_bound_to_the_service_account(name):
    """Each role has a binding to the one account, and asks for no star."""
    docs = manifest(name)
    roles = {(d["kind"], d["metadata"]["name"]) for d in docs if d["kind"] in ("Role", "ClusterRole")}
    bound = {(d["roleRef"]["kind"], d["roleRef"]["name"]) for d in docs if d["kind"].endswith("Binding")}
    accounts = {(s["kind"], s["namespace"], s["name"]) for d in docs if d["kind"].endswith("Binding") for s in d["subjects"]}
    assert (roles, accounts) == (bound, {("ServiceAccount", "greylag", "greylag")})
    assert not any("*" in (*r.groups, *r.resources, *r.verbs) for r in single_rules(name))
