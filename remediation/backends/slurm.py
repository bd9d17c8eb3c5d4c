"""Slurm, by its own programs: docs/slurm.md says what it does, and with which rights.

An action's id is found again in Slurm itself, so the door needs no memory: the one that it has only spares questions, and
keeps the end of what leaves no trace (a node that was given back has no reason any more).
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from core.errors import ConfigError, Refused
from core.protocols import BackendPlugin, ControlDoor, NodeView, WorldView
from core.types import Action, Outcome
from remediation.backends import slurm_diagnose, slurm_jobs, slurm_nodes, slurm_shrink
from remediation.backends.slurm_commands import NoSuchOption, Runner, Scheduler
from remediation.backends.slurm_json import Cluster, SlurmJob
from remediation.backends.slurm_site import Site, SlurmParams, Trace, Word, read_trace
from remediation.kinds import FINAL

REMEMBERED = 10_000
JOB_WORDS = frozenset({"resume", "released", "resumed", "signalling", "signalled", "shrinking"})  # of a note that an action on a job leaves
Begin = Callable[[Site, Action, Cluster], Word]
BEGIN: Mapping[str, Begin] = {
    "drain": slurm_nodes.begin_drain,
    "exclude_node": slurm_nodes.begin_exclude,
    "undrain": slurm_nodes.begin_undrain,
    "reboot": slurm_nodes.begin_reboot,
    "replace": slurm_nodes.begin_replace,
    "diagnose": slurm_diagnose.begin,
    "reset_gpu": slurm_diagnose.begin_reset,
    "resume_job": slurm_jobs.begin_resume,
    "restart_process": slurm_jobs.begin_restart,
    "shrink_job": slurm_shrink.begin,
}


class SlurmDoor:
    """ControlDoor over Slurm's programs. Raises Unavailable where Slurm gave no usable answer."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._final: dict[str, Outcome] = {}
        self._began: dict[str, int] = {}

    def submit(self, action: Action) -> Outcome:
        """RUNNING, or what became of it at once. An id that Slurm shows, or that was refused, is not begun again."""
        if action.id in self._final:
            return self._final[action.id]
        begin = BEGIN.get(action.kind)
        if begin is None:
            return self._told(action.id, Word("REFUSED", "not_supported"))
        try:
            cluster = self._site.scheduler.cluster()
            found = self._traced(action.id, cluster)
            self._began.setdefault(action.id, self._site.now())
            return self._told(action.id, found if found is not None else begin(self._site, action, cluster))
        except Refused as refused:
            return self._told(action.id, self._half(action.id, refused))
        except NoSuchOption as error:
            return self._told(action.id, Word("REFUSED", "backend_refused", str(error)))

    def _half(self, action_id: str, refused: Refused) -> Word:
        """REFUSED where nothing was done; else Slurm shows that a part of it was, and it goes on from there. Raises Unavailable
        where Slurm does not show it: then nobody knows."""
        begun = self._trace_of(action_id, self._site.scheduler.cluster()) is not None
        return _later(refused) if begun else Word("REFUSED", refused.reason, refused.detail or None)

    def poll(self, action_id: str) -> Outcome:
        """What Slurm shows of it; each look also brings it a step further."""
        if action_id in self._final:
            return self._final[action_id]
        try:
            found = self._traced(action_id, self._site.scheduler.cluster())
        except Refused as refused:
            found = _later(refused)
        except NoSuchOption as error:
            found = Word("FAILED", "backend_refused", str(error))
        if found is None:
            return Outcome(action_id, "REFUSED", "unknown_operation")
        return self._told(action_id, found)

    def _trace_of(self, action_id: str, cluster: Cluster) -> Callable[[], Word] | None:
        """How to go on with what carries the id."""
        site = self._site
        test = slurm_diagnose.tests_of(action_id, cluster, site.user)
        if test is not None:
            return lambda: slurm_diagnose.go_on(site, *test, cluster)
        for node in cluster.nodes.values():
            mine = site.trace(node)
            if mine is not None and mine.id == action_id:
                return lambda node=node, mine=mine: self._node_word(mine, node, cluster)  # type: ignore[misc]
        for job in cluster.jobs:
            mine = read_trace(job.admin_comment)
            if mine is not None and mine.id == action_id and mine.word in JOB_WORDS:
                return lambda job=job, mine=mine: self._job_word(mine, job, cluster)  # type: ignore[misc]
        return None

    def _traced(self, action_id: str, cluster: Cluster) -> Word | None:
        go_on = self._trace_of(action_id, cluster)
        return None if go_on is None else go_on()

    def _node_word(self, trace: Trace, node: slurm_nodes.SlurmNode, cluster: Cluster) -> Word:
        """What a node's reason says of the action in it."""
        site = self._site
        if trace.word in ("reboot", "rebooted"):
            return slurm_nodes.go_on_reboot(site, trace, node, cluster)
        if trace.word == "replace":
            return slurm_nodes.go_on_replace(site, trace, node, cluster)
        if trace.word.startswith("drain"):
            return slurm_nodes.go_on_drain(site, trace, node, cluster)
        if trace.word.startswith("reset"):
            return slurm_nodes.DONE if trace.word == "reset_done" else Word("FAILED", trace.rest or "backend_failed")
        if trace.word.startswith("diagnosed"):
            passed = trace.word == slurm_nodes.PASSED
            return Word("DONE" if passed else "FAILED", trace.rest or ("done" if passed else "diagnose_failed"))
        return slurm_nodes.DONE  # exclude_node: done by being written

    def _job_word(self, trace: Trace, job: SlurmJob, cluster: Cluster) -> Word:
        """What a job's note says of the action in it."""
        if trace.word.startswith("signal"):
            return slurm_jobs.go_on_restart(trace)
        if trace.word == "shrinking":
            return slurm_shrink.go_on(self._site, trace, job, cluster)
        return slurm_jobs.go_on_resume(self._site, trace, job, cluster)

    def _told(self, action_id: str, word: Word) -> Outcome:
        began = self._began.get(action_id)
        took = max(0.0, (self._site.now() - began) / 1000) if began is not None and word.state in ("DONE", "FAILED") else 0.0
        outcome = Outcome(action_id, word.state, word.reason, took, 0, word.detail)
        if word.state in FINAL:
            self._final[action_id] = outcome
            self._began.pop(action_id, None)
            while len(self._final) > REMEMBERED:
                self._final.pop(next(iter(self._final)))
        return outcome


def _later(refused: Refused) -> Word:
    """A refusal in the middle: most pass (a job that is just ending), and are tried again until the deadline."""
    for_good = refused.reason in ("not_permitted", "node_unknown", "job_unknown", "not_requeueable")
    return Word("FAILED" if for_good else "RUNNING", refused.reason, refused.detail or None)


class SlurmView:
    """WorldView over Slurm's programs."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def nodes(self) -> Mapping[str, NodeView]:
        """All nodes by name. Raises Unavailable."""
        cluster = self._site.scheduler.cluster()
        return {name: self._site.view(node, cluster) for name, node in cluster.nodes.items()}


def site_of(params: SlurmParams) -> Site:
    """The site that the parameters describe. Raises ConfigError."""
    for key, given, allowed in (("jobs_by", params.jobs_by, ("id", "name")), ("queue_wait", params.queue_wait, ("propose", "act"))):
        if given not in allowed:
            raise ConfigError("backend", key, given, f"allowed are: {', '.join(allowed)}")
    for key, number in (("timeout_seconds", params.timeout_seconds), ("reserve_minutes", params.reserve_minutes),
                        ("hold_minutes", params.hold_minutes),
                        ("diagnose.minutes", params.diagnose.minutes)):
        if not 0 < number <= 100_000:
            raise ConfigError("backend", key, number, "a number above 0 is needed")
    try:
        re.compile(params.planned_reasons)
    except re.error as error:
        raise ConfigError("backend", "planned_reasons", params.planned_reasons, f"a regular expression is needed ({error})") from None
    for name, words in params.diagnose.programs.items():
        if not words:
            raise ConfigError("backend", f"diagnose.programs.{name}", [], "a command as a list of words is needed")
    for name in params.diagnose.pairs:
        if name not in params.diagnose.programs:
            raise ConfigError("backend", "diagnose.pairs", name, "a test that diagnose.programs has a command for is needed")
    if params.diagnose.output and not params.diagnose.output.startswith("/"):
        raise ConfigError("backend", "diagnose.output", params.diagnose.output, "an absolute path is needed")
    user = params.user or ("root" if params.prefix else getpass.getuser())
    runner = Runner(params.folder, params.conf, params.prefix, params.timeout_seconds)
    return Site(params, Scheduler(runner), user)


def build(params: SlurmParams) -> tuple[ControlDoor, WorldView]:
    """Door and view over one Slurm. Raises ConfigError."""
    site = site_of(params)
    return SlurmDoor(site), SlurmView(replace(site))


PLUGIN = BackendPlugin("slurm", SlurmParams, tuple(BEGIN), build)
