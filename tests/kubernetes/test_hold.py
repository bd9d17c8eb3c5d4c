"""Taking a node out and giving it back: drain, exclude_node, undrain, replace, reboot."""

from __future__ import annotations

import json

import pytest

from core.clock import rfc3339
from core.errors import Unavailable
from core.types import Action, Target
from tests.kubernetes.fake import Problem
from tests.kubernetes.site import T0, Site, action

HYPERPOD = "sagemaker.amazonaws.com/node-health-status"


def made(**params) -> Site:
    """Four nodes, a spare, a JobSet of four pods, and a daemon on n1."""
    site = Site(**params)
    site.jobset()
    site.daemon("n1")
    return site


def held(**params) -> Site:
    """n1 is drained by us."""
    site = made(**params)
    assert site.do(action("drain")).state == "DONE"
    return site


def checked(site: Site, name: str = "n1") -> None:
    """A diagnosis has passed just now."""
    site.pass_time(1)
    site.patch(name, lambda o: o["metadata"].setdefault("annotations", {}).update({"greylag.io/checked-at": rfc3339(site.cluster.now_ms)}), "greylag")


def test_a_drain_cordons_taints_and_evicts():
    """Pods go with their grace; the daemon stays; who, why and for which incident is written on the node."""
    site = made()
    told = site.door.submit(action("drain"))
    assert (told.state, told.reason) == ("RUNNING", "policy")
    assert (site.get()["spec"]["unschedulable"], site.taints()) == (True, ["greylag.io/held"])
    hold = json.loads(site.get()["metadata"]["annotations"]["greylag.io/held-by"])
    assert (hold["by"], hold["action"], hold["incident"], hold["at"]) == ("greylag", "inc-1/1/1", "inc-1", "2027-01-15T08:00:00.000Z")
    site.pass_time(30)
    told = site.door.poll("inc-1/1/1")
    assert (told.state, told.reason, told.took_seconds) == ("DONE", "done", 30.0)
    assert site.pods("n1") == []
    assert site.cluster.get("Pod", "exporter-n1", "default") is not None


def test_our_taint_puts_no_pod_out():
    """NoSchedule, never NoExecute, which would go past disruption budgets."""
    site = held()
    assert {t["key"]: t["effect"] for t in site.get()["spec"]["taints"]} == {
        "greylag.io/held": "NoSchedule", "node.kubernetes.io/unschedulable": "NoSchedule"}


def test_a_disruption_budget_is_waited_for():
    """429: the eviction is asked again at each look, and goes through when the budget allows it."""
    site = made()
    budget = site.budget(least=4)
    told = site.door.submit(action("drain"))
    assert (told.state, told.reason) == ("RUNNING", "disruption_budget")
    assert "ml/train-w-0-0" in told.detail
    site.pass_time(60)
    assert site.door.poll("inc-1/1/1").reason == "disruption_budget"
    assert len(site.pods("n1")) == 1
    site.cluster.change(budget, lambda o: o["spec"].update(minAvailable=3))
    site.door.poll("inc-1/1/1")
    site.pass_time(30)
    assert site.door.poll("inc-1/1/1").state == "DONE"


def test_a_budget_that_never_allows_it_is_never_overridden():
    """At the deadline the drain fails by the budget's name; no pod was touched, and the cordon stays for a person."""
    site = made()
    site.budget(least=4)
    told = site.do(action("drain", deadline=300.0), seconds=900)
    assert (told.state, told.reason) == ("FAILED", "disruption_budget")
    assert len(site.pods("n1")) == 1
    assert site.view.nodes()["n1"].held_by == "greylag"
    site.cluster.objects["PodDisruptionBudget"].clear()
    site.pass_time(60)
    assert site.door.poll("inc-1/1/1").reason == "disruption_budget"
    assert len(site.pods("n1")) == 1, "nothing is evicted after the deadline"


def test_two_budgets_over_one_pod_are_a_wait():
    """The API server answers 500 for ever: that is the pods' owner's mistake, and a reason with a name."""
    site = made()
    site.budget(least=1)
    site.cluster.make("PodDisruptionBudget", "second", "ml", spec={"minAvailable": 1, "selector": {"matchLabels": {"app": "train"}}})
    assert site.door.submit(action("drain")).reason == "disruption_budget"


def test_a_busy_api_server_is_no_budget():
    """429 by the API's own flow control is Unavailable, worth another try."""
    site = made()
    site.cluster.fail["create", "pods/eviction"] = [Problem(429, "TooManyRequests", "slow down", {"causes": [{"reason": "Overload"}]})]
    with pytest.raises(Unavailable):
        site.door.submit(action("drain"))
    assert site.door.poll("inc-1/1/1").state == "RUNNING"


@pytest.mark.parametrize("opted", [False, None])
def test_a_job_that_did_not_opt_in_is_waited_for(opted):
    """Nothing of it is evicted; the drain is done when it has ended by itself."""
    site = Site()
    site.jobset(opted=False, **({"greylag.io__remediate": "false"} if opted is False else {}))
    told = site.door.submit(action("drain"))
    assert (told.state, told.reason) == ("RUNNING", "waits_for_job")
    assert site.cluster.log.count(("create", "pods/eviction", site.pods("n1")[0])) == 0
    for name in site.pods("n1"):
        site.controllers.end_pod(site.cluster.get("Pod", name, "ml"), 0)
    assert site.do(action("drain")).state == "DONE"


def test_a_whole_namespace_can_opt_in_and_a_job_can_still_say_no():
    """The backend's list counts for all jobs of the namespace, but their own word wins."""
    site = Site(opted_in_namespaces=("ml",))
    site.jobset(opted=False)
    site.jobset("precious", pods=1, opted=False, **{"greylag.io__remediate": "false"})
    site.door.submit(action("drain"))
    site.pass_time(30)
    assert [p for p in site.pods("n1") if p.startswith("train")] == []
    assert site.door.submit(action("resume_job", name="inc-1/1/9", job="precious")).reason == "not_opted_in"


def test_an_eviction_that_would_kill_the_job_is_not_asked_for():
    """A JobSet without restarts left whose Job does not ignore disruptions: it is waited for, by name."""
    site = Site()
    site.jobset(ignore=False, restarts=0)
    assert site.door.submit(action("drain")).reason == "not_requeueable"
    assert len(site.pods("n1")) == 1
    assert site.cluster.get("JobSet", "train", "ml")["status"].get("conditions") is None


def test_an_eviction_may_use_up_a_restart():
    """With restarts left the JobSet starts again elsewhere."""
    site = Site(spares=0, nodes=5)
    site.jobset(ignore=False, restarts=1)
    assert site.do(action("drain")).state == "DONE"
    assert site.cluster.get("JobSet", "train", "ml")["status"]["restarts"] == 1
    assert site.where() == {"n2", "n3", "n4", "n5"}


def test_a_bare_pod_with_a_gpu_is_not_evicted():
    """Nothing would make it anew, even where it opted in."""
    site = Site()
    site.cluster.make("Pod", "notebook", "ml", metadata={"labels": {"greylag.io/remediate": "true"}}, spec={
        "nodeName": "n1", "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, status={"phase": "Running"})
    assert site.door.submit(action("drain")).reason == "not_requeueable"


def test_a_drain_may_delete_with_grace_where_the_policy_asks():
    """`evict: delete` goes past the budget, with at least a second of grace."""
    site = made()
    site.budget(least=4)
    site.door.submit(action("drain", evict="delete", grace_seconds=90))
    pod = site.cluster.get("Pod", site.pods("n1")[0], "ml")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 90


@pytest.mark.parametrize("args", [{"evict": "force"}, {"grace_seconds": 0}, {"grace_seconds": -1}, {"grace_seconds": True},
                                  {"grace_seconds": "now"}, {"grace_seconds": 1e9}])
def test_nothing_is_killed_at_once(args):
    """Grace 0 is a force; what cannot be meant is refused before anything is touched."""
    site = made()
    assert (site.door.submit(action("drain", **args)).state, site.door.submit(action("drain", **args)).reason) == ("REFUSED", "not_supported")
    assert site.taints() == []


@pytest.mark.parametrize(("told", "reason"), [(None, "policy"), ("2027-01-15T07:55:00.000Z", "waits_for_checkpoint"), ("noon", "policy")])
def test_a_drain_may_wait_for_a_save(told, reason):
    """Of a job that tells when it saved: until it has saved once more, or checkpoint_wait_seconds are over."""
    site = made()
    job = site.cluster.get("JobSet", "train", "ml")
    site.cluster.change(job, lambda o: o["metadata"].update(annotations={"greylag.io/checkpoint-at": told} if told else {}))
    assert site.door.submit(action("drain", wait_for="checkpoint")).reason == reason
    if reason == "policy":
        return
    site.pass_time(60)
    assert site.door.poll("inc-1/1/1").reason == "waits_for_checkpoint"
    site.cluster.change(job, lambda o: o["metadata"].update(annotations={"greylag.io/checkpoint-at": rfc3339(site.cluster.now_ms)}))
    assert site.door.poll("inc-1/1/1").reason == "policy"


def test_a_save_that_does_not_come_is_not_waited_for_without_end():
    """After checkpoint_wait_seconds the pods are evicted."""
    site = made(checkpoint_wait_seconds=120.0)
    job = site.cluster.get("JobSet", "train", "ml")
    site.cluster.change(job, lambda o: o["metadata"].update(annotations={"greylag.io/checkpoint-at": "2027-01-15T07:55:00.000Z"}))
    assert site.do(action("drain", wait_for="checkpoint")).took_seconds == 150.0


def test_on_a_silent_node_pods_are_told_to_stop_and_not_waited_for():
    """They cannot say that they have stopped: the drain is done, nothing is forced, and the node can be replaced."""
    site = made()
    site.ready("n1", "Unknown")
    site.door.submit(action("drain"))
    site.pass_time(300)
    assert site.door.poll("inc-1/1/1").state == "DONE"
    pod = site.cluster.get("Pod", next(p for p in site.pods("n1")), "ml")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30
    assert site.do(action("replace", name="inc-1/1/2")).state == "DONE"


def test_on_a_silent_node_what_may_not_be_stopped_is_waited_for():
    """A job that did not opt in is not told to stop there either."""
    site = Site()
    site.jobset(opted=False)
    site.ready("n1", "Unknown")
    told = site.do(action("drain", deadline=120.0), seconds=300)
    assert (told.state, told.reason) == ("FAILED", "waits_for_job")


def test_exclude_node_moves_nobody():
    """Cordon and taint; the job goes on."""
    site = made()
    assert site.do(action("exclude_node")).state == "DONE"
    assert len(site.pods("n1")) == 1
    assert site.view.nodes()["n1"].state == "draining"


def test_undrain_takes_back_what_we_did_and_nothing_else():
    """Another's taint, label and annotation stay."""
    site = held()
    site.patch("n1", lambda o: (o["spec"]["taints"].append({"key": "other", "effect": "NoSchedule"}), o["metadata"]["labels"].update(a="b")))
    checked(site)
    assert site.do(action("undrain", name="inc-1/1/2")).state == "DONE"
    node = site.get()
    assert "unschedulable" not in node["spec"]
    assert site.taints() == ["other"]
    assert node["metadata"]["labels"]["a"] == "b"
    assert "greylag.io/held-by" not in node["metadata"]["annotations"]


@pytest.mark.parametrize("when", [None, "2027-01-15T07:59:59.000Z"])
def test_undrain_only_after_a_diagnosis(when):
    """One that passed since the node was taken out; an older one says nothing."""
    site = made()
    if when is not None:
        site.patch("n1", lambda o: o["metadata"].update(annotations={"greylag.io/checked-at": when}))
    site.do(action("drain"))
    assert site.door.submit(action("undrain", name="inc-1/1/2")).reason == "not_diagnosed"
    checked(site)
    assert site.door.submit(action("undrain", name="inc-1/1/3")).state == "DONE"


def test_undrain_leaves_a_persons_cordon_alone():
    """Also where our old annotation still stands."""
    site = held()
    site.cordon("n1", False)
    site.cordon("n1")
    told = site.do(action("undrain", name="inc-1/1/2"))
    assert (told.state, told.reason) == ("REFUSED", "other_hand")
    assert site.get()["spec"]["unschedulable"] is True


def test_undrain_of_a_node_that_a_person_gave_back():
    """Already so; our taint and annotation go."""
    site = held()
    site.cordon("n1", False)
    told = site.do(action("undrain", name="inc-1/1/2"))
    assert (told.state, told.reason) == ("DONE", "already_so")
    assert site.taints() == []


def test_undrain_of_a_node_that_was_never_out():
    """Already so."""
    site = made()
    assert site.do(action("undrain")).reason == "already_so"


@pytest.mark.parametrize(("mode", "on_hyperpod", "written"), [
    ("auto", True, "UnschedulablePendingReplacement"), ("auto", False, None), ("always", False, "UnschedulablePendingReplacement"),
    ("never", True, "Schedulable")])
def test_replace_labels_the_node_and_takes_a_spare(mode, on_hyperpod, written):
    """The plain label always, HyperPod's where the node is HyperPod's; a spare loses its label and taint."""
    site = made(hyperpod=mode)
    if on_hyperpod:
        site.patch("n1", lambda o: o["metadata"]["labels"].update({HYPERPOD: "Schedulable"}))
    site.do(action("drain"))
    told = site.do(action("replace", name="inc-1/1/2"))
    assert (told.state, told.detail) == ("DONE", "s1 is in service")
    labels = site.get()["metadata"]["labels"]
    assert (labels["greylag.io/wanted"], labels.get(HYPERPOD)) == ("replacement", written)
    assert site.view.nodes()["s1"].state == "in_service"
    assert site.view.nodes()["n1"].held_by == "greylag", "our own value is not HyperPod's word"


def test_undrain_takes_the_wish_for_replacement_back():
    """A label that we changed gets its old value; one that somebody changed after us keeps theirs."""
    site = made()
    site.patch("n1", lambda o: o["metadata"]["labels"].update({HYPERPOD: "Schedulable"}))
    site.do(action("drain"))
    site.do(action("replace", name="inc-1/1/2"))
    checked(site)
    site.do(action("undrain", name="inc-1/1/3"))
    labels = site.get()["metadata"]["labels"]
    assert (labels.get("greylag.io/wanted"), labels[HYPERPOD]) == (None, "Schedulable")


@pytest.mark.parametrize("kind", ["replace", "reboot", "diagnose"])
def test_what_needs_an_empty_node_of_ours(kind):
    """not_drained where the node is in service, or a job still runs on it."""
    site = made()
    assert site.do(action(kind)).reason == "not_drained"
    site.do(action("exclude_node", name="inc-1/1/2"))
    assert site.do(action(kind, name="inc-1/1/3")).reason == "not_drained"


def test_replace_without_a_free_spare():
    """Where the site keeps spares and none is free, nothing is labelled; where it keeps none, the provider brings one."""
    site = held()
    site.cordon("s1")
    assert site.do(action("replace", name="inc-1/1/2")).reason == "no_spare"
    assert "greylag.io/wanted" not in site.get()["metadata"]["labels"]
    other = held(spares=0)
    assert other.do(action("replace", name="inc-1/1/2")).state == "DONE"


def test_replace_takes_the_spare_that_was_tested_last():
    """Without a word of the engine's."""
    site = held(spares=3)
    checked(site, "s2")
    assert site.do(action("replace", name="inc-1/1/2")).detail == "s2 is in service"


def test_replace_takes_the_spare_that_is_asked_for():
    """And no other."""
    site = held(spares=2)
    assert site.do(action("replace", name="inc-1/1/2", spare="s2")).detail == "s2 is in service"
    assert site.view.nodes()["s1"].state == "spare"
    assert site.do(action("replace", name="inc-1/1/3", spare="s9")).reason == "no_spare"


def test_replace_never_takes_a_spare_that_is_to_be_avoided():
    """Neither the one tested last nor the next best, not asked for and not in a second try; with all of them unfit there is none."""
    site = held(spares=3)
    checked(site, "s2")
    site.cluster.before_write.append(lambda: site.cluster.before_write.append(lambda: site.cordon("s1")))
    told = site.do(action("replace", name="inc-1/1/2", avoid="s2"))
    assert (told.state, told.detail, site.view.nodes()["s2"].state) == ("DONE", "s3 is in service", "spare")
    other = held(spares=2)
    assert other.do(action("replace", name="inc-1/1/2", avoid="s1, s2")).reason == "no_spare"
    assert other.do(action("replace", name="inc-1/1/3", avoid="s1,s2", spare="s2")).reason == "no_spare"


def test_a_spare_that_is_taken_meanwhile_is_left_and_the_next_is_used():
    """Between the choice and the write a person cordons s1."""
    site = held(spares=2)
    later = site.cluster.before_write
    later.append(lambda: later.append(lambda: site.cordon("s1")))  # before the label: nothing; before the spare's write: the cordon
    told = site.do(action("replace", name="inc-1/1/2"))
    assert (told.state, told.detail) == ("DONE", "s2 is in service")
    assert site.view.nodes()["s1"].held_by == "kubectl-cordon"


def test_a_reboot_is_done_when_the_node_has_booted():
    """Another boot id, and ready again; the labels go."""
    site = held(hyperpod="always")
    assert site.door.submit(action("reboot", name="inc-1/1/2")).state == "RUNNING"
    labels = site.get()["metadata"]["labels"]
    assert (labels["greylag.io/wanted"], labels[HYPERPOD]) == ("reboot", "UnschedulablePendingReboot")
    assert site.view.nodes()["n1"].state == "rebooting"
    site.ready("n1", "Unknown")
    site.reboots("n1")
    assert site.door.poll("inc-1/1/2").state == "RUNNING"
    site.ready("n1", "True")
    assert site.door.poll("inc-1/1/2").state == "DONE"
    labels = site.get()["metadata"]["labels"]
    assert (labels.get("greylag.io/wanted"), labels.get(HYPERPOD)) == (None, None)
    assert site.view.nodes()["n1"].held_by == "greylag"


def test_a_reboot_that_nobody_follows_is_taken_back():
    """No reboot comes later out of the blue."""
    site = held()
    told = site.do(action("reboot", name="inc-1/1/2", deadline=300.0), seconds=600)
    assert (told.state, told.reason) == ("FAILED", "deadline_exceeded")
    assert "greylag.io/wanted" not in site.get()["metadata"]["labels"]


# --- idempotency, conflicts, restarts ----------------------------------------------------------------------------------
def test_the_same_id_is_carried_out_once():
    """Submitted again, also by a new process, it goes on from what stands on the node."""
    site = made()
    site.door.submit(action("drain"))
    site.restart()
    site.door.submit(action("drain"))
    assert sum(row[:2] == ("create", "pods/eviction") for row in site.cluster.log) == 1
    site.pass_time(30)
    site.restart()
    assert site.door.poll("inc-1/1/1").state == "DONE"
    assert site.door.submit(action("drain")).took_seconds == 30.0


def test_a_lost_answer_is_found_on_the_node():
    """The write arrived and its answer did not: the poll finds the entry and goes on."""
    site = made()
    site.wire.lose = 1
    with pytest.raises(Unavailable):
        site.door.submit(action("drain"))
    assert site.taints() == ["greylag.io/held"]
    assert site.door.poll("inc-1/1/1").state == "RUNNING"
    site.pass_time(45)
    assert site.do(action("drain")).state == "DONE"


def test_another_hand_in_the_same_moment_wins():
    """A person cordons between our read and our write: 409, read anew, stand down."""
    site = made()
    site.cluster.before_write.append(lambda: site.cordon("n1"))
    told = site.door.submit(action("drain"))
    assert (told.state, told.reason) == ("REFUSED", "other_hand")
    assert site.taints() == []


def test_a_harmless_change_in_the_same_moment_is_read_again():
    """A kubelet's status write makes a 409, and the second try goes through."""
    site = made()
    site.cluster.before_write.append(lambda: site.patch("n1", lambda o: o["metadata"]["labels"].update(x="y"), "kubelet"))
    assert site.door.submit(action("drain")).state == "RUNNING"
    assert site.get()["metadata"]["labels"]["x"] == "y"


def test_a_node_that_changes_without_end_is_left():
    """After four spoiled tries: target_busy, which the engine tries again later."""
    site = made()
    count = iter(range(100))

    def spoil() -> None:
        site.patch("n1", lambda o: o["metadata"]["labels"].update(x=str(next(count))), "kubelet")
        site.cluster.before_write.append(lambda: None)
    handle = site.cluster.handle

    def handles(request):
        if request.method == "PATCH":
            spoil()
        return handle(request)
    site.cluster.handle = handles
    assert (site.door.submit(action("drain")).reason, site.taints()) == ("target_busy", [])


def test_a_drain_stands_down_when_the_cordon_is_taken_over():
    """A person uncordons the node in the middle: no further eviction."""
    site = made()
    site.budget(least=4)
    site.door.submit(action("drain"))
    site.cordon("n1", False)
    site.cluster.objects["PodDisruptionBudget"].clear()
    told = site.door.poll("inc-1/1/1")
    assert (told.state, told.reason) == ("FAILED", "other_hand")
    assert len(site.pods("n1")) == 1


def test_one_action_at_a_time_on_a_node():
    """While one of ours runs another is busy; one past its deadline holds nothing up."""
    site = made()
    site.budget(least=4)
    site.door.submit(action("drain", deadline=60.0))
    assert site.door.submit(action("exclude_node", name="inc-2/1/1")).reason == "target_busy"
    site.pass_time(61)
    assert site.door.submit(action("exclude_node", name="inc-2/1/2")).state == "DONE"


def test_a_second_drain_of_ours_goes_on_with_the_first_hold():
    """The next attempt of the incident drains again: the hold is the same, undrain knows it."""
    site = held()
    assert site.do(action("drain", name="inc-1/2/1")).state == "DONE"
    hold = json.loads(site.get()["metadata"]["annotations"]["greylag.io/held-by"])
    assert hold["action"] == "inc-1/1/1"


def test_a_node_that_goes_away_fails_the_action():
    """Named, and never repeated."""
    site = made()
    site.budget(least=4)
    site.door.submit(action("drain"))
    site.cluster.remove(site.get())
    assert (site.door.poll("inc-1/1/1").state, site.door.poll("inc-1/1/1").reason) == ("FAILED", "node_unknown")


@pytest.mark.parametrize("kind", ["escalate", "notify"])
def test_what_it_cannot_do_is_refused(kind):
    """By name."""
    told = made().door.submit(Action("inc-1/1/1", kind, Target("job", job="train"), {}, 60.0, "act", "inc-1", 1, 1, T0, "policy"))
    assert (told.state, told.reason) == ("REFUSED", "not_supported")


def test_a_refused_command_is_named_and_nothing_is_half_done():
    """403 on the first write: REFUSED not_permitted; on a later one: FAILED, since the node is out."""
    site = made()
    site.cluster.fail["patch", "nodes"] = [Problem(403, "Forbidden", "nodes is forbidden")]
    told = site.door.submit(action("drain"))
    assert (told.state, told.reason, told.detail) == ("REFUSED", "not_permitted", "nodes is forbidden")
    site.cluster.fail["create", "pods/eviction"] = [Problem(403, "Forbidden", "pods/eviction is forbidden")] * 9
    told = site.door.submit(action("drain", name="inc-1/1/2"))
    assert (told.state, told.reason) == ("FAILED", "not_permitted")
    assert site.view.nodes()["n1"].held_by == "greylag"


@pytest.mark.parametrize("code", [401, 408, 410, 500, 502, 503, 504])
def test_a_server_in_trouble_is_worth_another_try(code):
    """Unavailable from all three."""
    site = made()
    site.cluster.fail = {(v, r): [Problem(code, "Trouble", "no")] * 9 for v in ("get", "list", "patch") for r in ("nodes", "pods")}
    for ask in (lambda: site.door.submit(action("drain")), lambda: site.door.poll("inc-1/1/1"), site.view.nodes):
        with pytest.raises(Unavailable):
            ask()


@pytest.mark.parametrize("body", [b"", b"<html>", b"3", b"[1]", b'{"items": 7}'])
def test_nonsense_is_unavailable(body):
    """An answer that cannot be read says nothing."""
    site = made()
    site.wire.nonsense = body
    with pytest.raises(Unavailable):
        site.view.nodes()


def test_a_dead_server_is_unavailable():
    """Nobody answers: nothing is known."""
    site = made()
    site.cluster.down = True
    for ask in (lambda: site.door.submit(action("drain")), lambda: site.door.poll("inc-1/1/1"), site.view.nodes):
        with pytest.raises(Unavailable):
            ask()
