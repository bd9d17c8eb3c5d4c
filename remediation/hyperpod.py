"""A HyperPod training job's own recovery policy (`runPolicy` of a HyperPodPyTorchJob) as a policy of Greylag.

Keys and their meaning: the operator's documentation (Using the training operator to run jobs; Elastic training) and the
models of its command line (sagemaker-hyperpod-cli, `RunPolicy` and `RestartPolicy`, version 3.5), read on 28 Nov 2026. A job
is restarted by process until `numRestartBeforeFullJobRestart` of them have been made, then as a whole; after
`maxFullJobRestarts` of those the next would fail it. Counts belong to the job and begin anew with each `evalPeriodSeconds`.

What has no counterpart here is said in a line each; keys that nobody documents are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.errors import ConfigError, nearest
from core.yamlfile import Node
from remediation.lint import PER_HOUR_HIGH, PER_JOB_PER_DAY_HIGH
from remediation.policy import LONGEST_PERIOD

KIND = "HyperPodPyTorchJob"
RUN_POLICY = ("jobMaxRetryCount", "restartPolicy", "logMonitoringConfiguration", "startupDeadlineSeconds", "faultDeadlineSeconds",
              "activeDeadlineSeconds", "cleanPodPolicy", "ttlSecondsAfterFinished", "suspend", "workloadMode")
RESTART_POLICY = ("numRestartBeforeFullJobRestart", "evalPeriodSeconds", "maxFullJobRestarts", "maxNumRepeatOffendersToAvoid",
                  "scaleUpSnoozeTimeInSeconds")
CLEAN_POD = ("All", "OnlyComplete", "None")
NO_COUNTERPART = {
    "cleanPodPolicy": "Greylag deletes no pods when a job ends",
    "ttlSecondsAfterFinished": "Greylag deletes no jobs",
    "activeDeadlineSeconds": "Greylag ends no job for its age",
    "faultDeadlineSeconds": "an incident goes to people when its ladder is used up, not after a time",
    "suspend": "Greylag suspends no jobs",
    "workloadMode": "it is the operator's alone",
    "maxNumRepeatOffendersToAvoid": "the ledger of parts counts repeat offenders, and a rule that drains takes the node out",
    "scaleUpSnoozeTimeInSeconds": "Greylag makes no job larger",
    "elasticPolicy": "Greylag makes no job larger; shrink_job is a step that you may add",
}
DAY_SECONDS = 86_400
# The job has to be up, and to step for a while, before a restart counts as one that helped.
STARTUP_SECONDS = 900.0  # where neither startupDeadlineSeconds nor a rule's start cut-off says how long a start takes
PROOF_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """The keys that say something here; None = not given. job: the manifest's name. hangs, slow, faults: whether log rules find
    them. startup_seconds: how long a start may take. unused: keys without a counterpart, by where they stand."""

    job: str | None = None
    max_retries: int | None = None
    restarts: int | None = None
    full_restarts: int | None = None
    period_seconds: int | None = None
    hangs: bool = False
    slow: bool = False
    startup_seconds: float | None = None
    unused: tuple[str, ...] = ()
    faults: bool = False


@dataclass(frozen=True, slots=True)
class Translated:
    """text: a policy file. notes: what has no counterpart, or is not quite the same, one line each."""

    text: str
    notes: tuple[str, ...]


# --- reading ----------------------------------------------------------------------------------------------------------
def run_policy(data: Any, file: str) -> RunPolicy:
    """The policy in a job's manifest, in a `runPolicy` section, or in the content of one. Raises ConfigError."""
    if not isinstance(data, Mapping):
        raise ConfigError(file, "", data, f"a {KIND} manifest, or its runPolicy, is needed")
    kind = data.get("kind")
    if kind is not None and kind != KIND:
        raise ConfigError(_at(data, "kind", file), "kind", kind, f"allowed is: {KIND}")
    spec = data.get("spec", data)
    inner = spec.get("runPolicy") if isinstance(spec, Mapping) else None
    if inner is None and ("kind" in data or "spec" in data):
        raise ConfigError(_at(data, "spec", file), "spec.runPolicy", "nothing", "this key is required")
    section = spec if inner is None else inner
    if not isinstance(section, Mapping):
        raise ConfigError(_at(spec, "runPolicy", file), "runPolicy", section, "a mapping is needed")
    _known(section, RUN_POLICY, file, "runPolicy")
    unused = [key for key in section if key in NO_COUNTERPART]
    restart = section.get("restartPolicy")
    restart = {} if restart is None else restart
    if not isinstance(restart, Mapping):
        raise ConfigError(_at(section, "restartPolicy", file), "runPolicy.restartPolicy", restart, "a mapping is needed")
    _known(restart, RESTART_POLICY, file, "runPolicy.restartPolicy")
    unused += [f"restartPolicy.{key}" for key in restart if key in NO_COUNTERPART]
    if isinstance(spec, Mapping) and spec is not section and "elasticPolicy" in spec:
        unused.append("elasticPolicy")
    clean = section.get("cleanPodPolicy")
    if clean is not None and clean not in CLEAN_POD:
        raise ConfigError(_at(section, "cleanPodPolicy", file), "runPolicy.cleanPodPolicy", clean, f"allowed are: {', '.join(CLEAN_POD)}")
    if restart and "evalPeriodSeconds" not in restart:
        raise ConfigError(_at(section, "restartPolicy", file), "runPolicy.restartPolicy.evalPeriodSeconds", "nothing", "this key is required")
    hangs, slow, faults, cut_off = _log_rules(section, file)
    startup = _count(section, "startupDeadlineSeconds", file, "runPolicy", 1)
    name = data.get("metadata", {}).get("name") if isinstance(data.get("metadata"), Mapping) else None
    return RunPolicy(
        name if isinstance(name, str) and name else None, _count(section, "jobMaxRetryCount", file, "runPolicy", 0),
        _count(restart, "numRestartBeforeFullJobRestart", file, "runPolicy.restartPolicy", 0),
        _count(restart, "maxFullJobRestarts", file, "runPolicy.restartPolicy", 0),
        _count(restart, "evalPeriodSeconds", file, "runPolicy.restartPolicy", 1),
        hangs, slow, cut_off if startup is None else float(startup), tuple(unused), faults)


def _log_rules(section: Mapping[str, Any], file: str) -> tuple[bool, bool, bool, float | None]:
    """(a rule finds hangs, slowness, lines that are a fault, the longest start cut-off). Their own reader checks them in full."""
    rows = section.get("logMonitoringConfiguration")
    if rows is None:
        return False, False, False, None
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ConfigError(_at(section, "logMonitoringConfiguration", file), "runPolicy.logMonitoringConfiguration", rows,
                          "a list of rules is needed")
    cut_offs = [float(v) for row in rows if isinstance(v := row.get("expectedStartCutOffInSeconds"), (int, float))]
    hangs = any("expectedStartCutOffInSeconds" in row or "expectedRecurringFrequencyInSeconds" in row for row in rows)
    faults = any(row.get("faultOnMatch") is True for row in rows)
    return hangs, any("metricThreshold" in row for row in rows), faults, max(cut_offs, default=None)


def _known(section: Mapping[str, Any], keys: tuple[str, ...], file: str, path: str) -> None:
    for key in section:
        if key not in keys:
            raise ConfigError(_at(section, key, file), f"{path}.{key}", "an unknown key",
                              f"allowed are: {', '.join(keys)}{nearest(str(key), keys)}")


def _count(section: Mapping[str, Any], key: str, file: str, path: str, least: int) -> int | None:
    value = section.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(_at(section, key, file), f"{path}.{key}", value, f"a whole number of at least {least} is needed")
    return value


def _at(data: Any, key: str, file: str) -> str:
    return data.where(key) if isinstance(data, Node) else file


# --- translating ------------------------------------------------------------------------------------------------------
PROCESS, WHOLE = "restart_process", "resume_job"


def ladder(policy: RunPolicy) -> tuple[list[tuple[str, int]], list[str]]:
    """[(kind, times), ...] down the ladder of one evaluation period, and what had to be changed."""
    notes: list[str] = []
    restarts = policy.restarts if policy.restarts is not None else 0
    full = policy.full_restarts
    if policy.period_seconds is None:
        rungs = [(PROCESS, policy.max_retries or 0)]
        if policy.max_retries:
            notes.append("restartPolicy is not given: restarts are counted over seven days, HyperPod counts them over the job's life")
    else:
        if full is None:
            full = 1
            notes.append("restartPolicy.maxFullJobRestarts is not given: HyperPod sets no end, here the ladder has one full restart")
        rungs = [rung for _ in range(full) for rung in ((PROCESS, restarts), (WHOLE, 1))] + [(PROCESS, restarts)]
        if policy.max_retries is not None:
            rungs, cut = _at_most(rungs, policy.max_retries, PROCESS)
            cut_words = ", which cuts the ladder short" if cut else ""
            notes.append("jobMaxRetryCount counts over the job's life; here it bounds the process restarts of one evaluation period"
                         + cut_words)
    rungs, cut = _at_most(rungs, PER_JOB_PER_DAY_HIGH, None)
    if cut:
        notes.append(f"more than {PER_JOB_PER_DAY_HIGH} restarts of a job in a day are no repair: the ladder ends there")
    joined: list[tuple[str, int]] = []
    for kind, times in rungs:
        if times and joined and joined[-1][0] == kind:
            joined[-1] = (kind, joined[-1][1] + times)
        elif times:
            joined.append((kind, times))
    return joined, notes


def _at_most(rungs: list[tuple[str, int]], most: int, of: str | None) -> tuple[list[tuple[str, int]], bool]:
    """The rungs up to `most` attempts (of the kind `of`; None = of any), and whether some had to go."""
    out: list[tuple[str, int]] = []
    left = most
    for kind, times in rungs:
        if of not in (None, kind):
            out.append((kind, times))
            continue
        out.append((kind, min(times, left)))
        if times > left:
            return out, True
        left -= times
    return out, False


def translate(data: Any, file: str, mode: str = "observe") -> Translated:
    """The policy file that does the same, as nearly as it can be done. data: parsed YAML. Raises ConfigError."""
    policy = run_policy(data, file)
    rungs, notes = ladder(policy)
    total = sum(times for _, times in rungs)
    period = min(float(policy.period_seconds or LONGEST_PERIOD), LONGEST_PERIOD)
    if policy.period_seconds is not None and policy.period_seconds > LONGEST_PERIOD:
        notes.append(f"restartPolicy.evalPeriodSeconds is longer than the seven days that are counted here: {LONGEST_PERIOD:.0f}")
    notes += _notes(policy, total)
    per_day = max(1, min(PER_JOB_PER_DAY_HIGH, total * math.ceil(DAY_SECONDS / period)))
    head = [f"# Translated from the runPolicy of {policy.job or 'a HyperPod job'} ({file.rpartition('/')[2]})."]
    head += [f"# {note}." for note in notes]
    body = ["version: 1", f"mode: {mode}", "limits:", f"  per_hour: {max(4, min(total, PER_HOUR_HIGH))}", f"  per_job_per_day: {per_day}",
            "  cooldown_seconds: 60            # HyperPod does not rest between restarts ...",
            "  damping_half_life_seconds: 0    # ... and does not wait longer with each", "rules:", *_rule(policy, rungs, period)]
    return Translated("\n".join([*head, *body]) + "\n", tuple(notes))


def _rule(policy: RunPolicy, rungs: list[tuple[str, int]], period: float) -> list[str]:
    faults = "stalled_loss, throughput_drop" if policy.slow else "stalled_loss"
    job = f", job: [{_quoted(policy.job)}]" if policy.job else ""
    deadline = (policy.startup_seconds or STARTUP_SECONDS) + PROOF_SECONDS
    lines = ["- name: hyperpod-restarts", f"  match: {{fault: [{faults}], scope: [device, node, job]{job}}}"]
    if not rungs:
        lines.append("  attempts: []")
    else:
        lines += [f"  period_seconds: {period:.0f}   # the ladder is the job's: all its incidents of a period step down it", "  attempts:"]
    for kind, times in rungs:
        step = "restart_process" if kind == PROCESS else "{resume_job: {mode: full}}"
        lines += [f"  - do: [{step}]"] + ([f"    times: {times}"] if times > 1 else [])
    return [*lines, f"  verify: {{quiet_seconds: 120, step_time_ratio_max: 2, deadline_seconds: {deadline:.0f}}}", "  finally: escalate"]


def _notes(policy: RunPolicy, total: int) -> list[str]:
    out = []
    if not total:
        out.append("no restart is allowed, so each hang goes to people")
    if policy.job is None:
        out.append("the manifest names no job, so the rule speaks for all of them: add `job: [NAME]` to its match")
    out.append("a process that dies is started again by the operator itself; Greylag acts on hangs"
               + (" and slowness" if policy.slow else ""))
    if policy.hangs or policy.slow or policy.faults:
        out.append("logMonitoringConfiguration is read as it is: name the file in greylag.yaml, logs[].rules")
    if policy.faults:
        out.append("faultOnMatch: the operator restarts the processes at such a line; Greylag shows the line, and acts on the hang that follows")
    if policy.restarts is not None or policy.full_restarts is not None:
        out.append("HyperPod does not compare step times; here a job that is twice as slow after a restart counts as not recovered")
    return out + [f"{key} has no counterpart: {NO_COUNTERPART[key.rpartition('.')[2]]}" for key in policy.unused]


def _quoted(name: str | None) -> str:
    return '"' + (name or "").replace("\\", "\\\\").replace('"', '\\"') + '"'
