"""A diagnosis, or the reset of a GPU, as a Slurm job on a node that is out.

A drained node takes no job. So the node is put into a reservation that only we may use, taken back for as long as the
test runs, and drained again before the reservation goes. Whatever ends Greylag between these steps leaves the node in the
reservation, where nobody else's work gets to it.

A test between two nodes (`diagnose.pairs`) takes a spare as the other one: both stand in the reservation, and the job has both.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from core.errors import Refused, Unavailable
from core.types import Action
from remediation.backends.slurm_commands import call
from remediation.backends.slurm_hosts import join
from remediation.backends.slurm_jobs import reservations_of, spares
from remediation.backends.slurm_json import Cluster, SlurmJob, SlurmNode
from remediation.backends.slurm_nodes import PASSED, find
from remediation.backends.slurm_site import (
    DONE,
    RUNS,
    TEST_JOB,
    Site,
    Trace,
    Word,
    read_trace,
    testing_reservation,
    write_trace,
)
from remediation.diagnose import conclude
from remediation.diagnose_output import FAILED, TOOLS, TestResult, read_output

_BEGIN, _END = "=== greylag test ", "=== greylag exit "
_SECTION = re.compile(rf"^{_BEGIN}(\w+)\n(.*?)^{_END}(\d+)\n", re.MULTILINE | re.DOTALL)
READ_SECONDS, LARGEST_BYTES = 5.0, 16_000_000
KEEP_OUT = "maint,ignore_jobs"
# The job gets none of our environment: a shell knows where programs are all the same, what it starts does not; and what it starts
# by srun would get none of the job's, either.
WAY = 'export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"; unset SLURM_EXPORT_ENV'
NOT_PAUSED = 75  # EX_TEMPFAIL: our own word of a reset's script


def begin(site: Site, action: Action, cluster: Cluster) -> Word:
    """Submits the tests of a node that is out, or of a spare. Raises Refused."""
    how = site.params.diagnose
    wanted = [one for one in str(action.args.get("tests") or "").split(",") if one in how.programs]
    wanted = wanted or [one for one in how.programs if one == "exit"]
    if not wanted:
        _place(site, action, cluster)
        raise Refused("not_supported", "diagnose.programs names none of the tests")
    wanted, partner = _paired(site, action, cluster, wanted)
    return _submit(site, action, cluster, "diagnose", _about(action, wanted, partner), _script(site, action, wanted, partner), partner)


def _paired(site: Site, action: Action, cluster: Cluster, wanted: list[str]) -> tuple[list[str], str | None]:
    """(the tests that are run, the partner of those between two nodes, None where there are none). Raises Refused `target_busy`
    where a node that is out has to wait for a partner; a spare is tested without one rather than not at all."""
    pairs = [one for one in wanted if one in site.params.diagnose.pairs]
    if not pairs:
        return wanted, None
    avoid = {name.strip() for name in str(action.args.get("avoid") or "").split(",")}  # unchecked, drifted, or failed their own test
    others, kept = spares(site, cluster), spares(site, cluster, reservations_of(action.incident, cluster))  # kept for the incident: last
    free = [name for name in (*others, *kept) if name != action.target.node and name not in avoid]
    if free:
        return wanted, free[0]
    alone = [one for one in wanted if one not in pairs]
    if alone and site.kept_spare(action.target.node or "", cluster):
        return alone, None
    raise Refused("target_busy", f"no spare is free to be the other node of {', '.join(pairs)}")


def begin_reset(site: Site, action: Action, cluster: Cluster) -> Word:
    """Runs the configured command on the node of the GPU, which has to be out. Raises Refused."""
    every = action.args.get("gpus") == "all"
    command = site.params.reset_all_gpus if every else site.params.reset_gpu
    if not command:
        raise Refused(*(("reset_needs_all", "reset_all_gpus is not configured") if every and site.params.reset_gpu else
                        ("not_supported", "reset_gpu is not configured")))
    device = action.target.device or ""
    if not re.fullmatch(r"[\w:.-]{1,60}", device):
        raise Refused("backend_refused", "the GPU has no index")
    words = [device if word == "{device}" else word for word in command]
    script = _reset_script(site, words, pause=bool(action.args.get("pause_monitoring", True)))
    return _submit(site, action, cluster, "reset_gpu", f"node={action.target.node}", script)


def _reset_script(site: Site, words: list[str], pause: bool) -> str:
    """The command, and around it what stops and starts the monitoring: it is started again however the job ends, and nothing is
    reset where it could not be stopped."""
    lines = ["#!/bin/sh", WAY]
    if pause and site.params.resume_monitoring:
        lines += ["again() { trap - EXIT TERM INT; " + f"{shlex.join(site.params.resume_monitoring)} </dev/null; " + 'exit "$1"; }',
                  "trap 'again $?' EXIT", "trap 'again 143' TERM INT"]
    if pause and site.params.pause_monitoring:
        lines.append(f"{shlex.join(site.params.pause_monitoring)} </dev/null || exit {NOT_PAUSED}")
    return "\n".join((*lines, f"{shlex.join(words)} </dev/null", ""))


def _place(site: Site, action: Action, cluster: Cluster) -> tuple[SlurmNode, bool]:
    """(the node, whether it is a spare). Raises Refused where it is neither ours and out, nor a spare."""
    node = find(action, cluster)
    state, held = site.state(node, cluster), site.held_by(node, cluster)
    if held is not None and not site.ours(node, cluster):
        raise Refused("other_hand", held)
    spare = state == "spare" and action.kind == "diagnose"
    if not spare and (held is None or state != "drained"):
        raise Refused("not_drained", state)
    return node, spare


def _submit(site: Site, action: Action, cluster: Cluster, word: str, about: str, script: str, partner: str | None = None) -> Word:
    node, spare = _place(site, action, cluster)
    how = site.params.diagnose
    place = site.params.spares if spare else testing_reservation(node.name)
    both, kept = join((node.name, partner) if partner else (node.name,)), cluster.reservations.get(place)
    if not spare and kept is None:
        site.scheduler.reserve(place, both, site.user, KEEP_OUT, "infinite")
    elif not spare and partner and kept is not None and partner not in kept.nodes:
        site.scheduler.set_reservation(place, f"nodes={both}")
    if not spare and ("DRAIN" in node.flags or node.base == "DOWN"):
        site.scheduler.resume(node.name)
    options = [f"--nodes={2 if partner else 1}", f"--nodelist={both}", "--exclusive", f"--reservation={place}", "--no-requeue", "--export=NIL",
               f"--job-name={TEST_JOB}", f"--time={max(1, how.minutes)}", "--chdir=/", f"--output={_output(site, '%j')}",
               f"--comment={write_trace(action.id, word, about)}"]
    if how.partition:
        options.append(f"--partition={how.partition}")
    site.scheduler.submit(*options, script=script)
    return RUNS


def _about(action: Action, tests: list[str], partner: str | None) -> str:
    """What the reading of the results needs, for a Greylag that starts anew."""
    device = action.args.get("device")
    safe = device if isinstance(device, str) and re.fullmatch(r"[\w:./-]{1,60}", device) else "-"
    fault = action.args.get("fault")
    about = f"node={action.target.node} fault={fault if isinstance(fault, str) else '-'} device={safe} tests={','.join(tests)}"
    return f"{about} partner={partner}" if partner else about


def _output(site: Site, job: str) -> str:
    return f"{site.params.diagnose.output.rstrip('/')}/{TEST_JOB}-{job}.out" if site.params.diagnose.output else "/dev/null"


def _script(site: Site, action: Action, tests: list[str], partner: str | None) -> str:
    """A script that runs the tests one after another; every word is quoted, nothing of the action is looked at by the shell.
    Its status is that of the first test that failed. Of two nodes Slurm runs it on either: a test of one node is sent to it."""
    node = action.target.node or ""
    fill = {"{level}": str(action.args.get("level") or 2), "{device}": str(action.args.get("device") or ""), "{node}": node,
            "{partner}": partner or ""}
    lines = ["#!/bin/sh", WAY, "status=0"]
    if partner and site.params.conf:
        lines.append(f"export SLURM_CONF={shlex.quote(site.params.conf)}")
    srun = f"{site.params.folder.rstrip('/')}/srun" if site.params.folder else "srun"
    for one in tests:
        words = [fill.get(word, word) for word in site.params.diagnose.programs[one]]
        if partner and one not in site.params.diagnose.pairs:
            words = [srun, "--nodes=1", "--ntasks=1", f"--nodelist={node}", *words]
        lines += [f"echo {shlex.quote(_BEGIN + one)}", f"{shlex.join(words)} </dev/null", "code=$?",
                  f"printf '\\n%s%s\\n' {shlex.quote(_END)} $code", '[ "$status" -ne 0 ] || status=$code']
    return "\n".join((*lines, "exit $status", ""))


def go_on(site: Site, trace: Trace, job: SlurmJob, cluster: Cluster) -> Word:
    """RUNNING while the job is there; then its results are read, the node is drained with them as its reason, and the
    reservation goes."""
    about = dict(word.split("=", 1) for word in trace.rest.split() if "=" in word)
    node = cluster.nodes.get(about.get("node", ""))
    if node is None:
        return Word("FAILED", "node_unknown", about.get("node"))
    if not job.over or "COMPLETING" in job.states:
        return RUNS if "RUNNING" in job.states else Word("RUNNING", "in_queue", f"job {job.ref} waits: {job.reason}")
    found = _result(site, job, about) if trace.word == "diagnose" else _reset_result(job)
    if testing_reservation(node.name) in cluster.reservations:
        _close(site, trace, node, cluster, found)
    return found


def _close(site: Site, trace: Trace, node: SlurmNode, cluster: Cluster, found: Word) -> None:
    good = found.state == "DONE"
    word = (PASSED if good else "diagnosed_failed") if trace.word == "diagnose" else ("reset_done" if good else "reset_failed")
    drained_by_others = "DRAIN" in node.flags and not site.ours(node, cluster)
    if not drained_by_others:
        site.scheduler.drain(node.name, write_trace(trace.id, word, found.reason))
    site.scheduler.free_reservation(testing_reservation(node.name))


def _reset_result(job: SlurmJob) -> Word:
    """A reset is no test: the node stays out until one has passed."""
    if job.state == "COMPLETED" and job.exit_code == 0:
        return DONE
    if job.exit_code == NOT_PAUSED:
        return Word("FAILED", "gpu_in_use", "what watches the GPUs could not be stopped")
    return Word("FAILED", "backend_failed", f"job {job.ref} ended as {job.state.lower()}, exit status {job.exit_code}")


def _result(site: Site, job: SlurmJob, about: dict[str, str]) -> Word:
    """What the job's end and its output say. What cannot be read is never a pass."""
    if job.state not in ("COMPLETED", "FAILED"):
        return Word("FAILED", "diagnose_inconclusive", f"job {job.ref} ended as {job.state.lower()}")
    fault, device = about.get("fault", "-"), about.get("device", "-")
    results = _read(site, job, about.get("tests", "").split(","))
    found = conclude(None if fault == "-" else fault, None if device == "-" else device, results, site.params.diagnose.gpus or None)
    return Word(found.state, found.reason, f"{found.detail}; with {about['partner']}" if "partner" in about else found.detail)


def _read(site: Site, job: SlurmJob, tests: list[str]) -> list[TestResult]:
    if not site.params.diagnose.output:
        code = "" if job.exit_code is None else str(job.exit_code)
        return [read_output("exit", code)]
    try:
        text = _file(_output(site, str(job.id)))
    except (Unavailable, OSError, ValueError) as error:
        return [TestResult(one, problem=f"the output cannot be read ({error})") for one in tests]
    sections = {name: (said, int(code)) for name, said, code in _SECTION.findall(text)}
    return [_one(site, name, *sections.get(name, ("", -1))) for name in tests]


def _file(path: str) -> str:
    """A file of the shared folder, which may hang: read by a program that can be ended. Raises Unavailable, OSError."""
    code, out, said = call(("head", "-c", str(LARGEST_BYTES), "--", str(Path(path))), {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, READ_SECONDS)
    if code != 0:
        raise OSError(said[:80])
    return out


def _one(site: Site, name: str, said: str, code: int) -> TestResult:
    """One test: its own words, and its exit status where they say nothing bad."""
    if code < 0:
        return TestResult(name, problem="it did not come to its end")
    if name not in TOOLS or name == "exit":
        return read_output("exit", str(code))
    found = read_output(name, said, site.params.diagnose.need.get(name))
    bad = any(check.result == FAILED for check in found.checks)
    return found if code == 0 or bad or found.problem else TestResult(name, problem=f"it ended with status {code}")


def tests_of(action_id: str, cluster: Cluster, user: str) -> tuple[Trace, SlurmJob] | None:
    """The newest job of ours that tests for the action."""
    mine = [(trace, job) for job in cluster.jobs if job.name == TEST_JOB and job.user == user
            and (trace := read_trace(job.comment)) is not None and trace.id == action_id]
    return max(mine, key=lambda one: one[1].id, default=None)
