"""What the output of a test program says: `dcgmi diag -j`, nccl-tests, `ib_write_bw`, `fio --output-format=json`.

Pure functions over text that may be cut off, huge or hostile. `read_output` is the one door: it never raises, and what it
cannot read is no result at all (`problem`), never a pass. Whoever ran the program gives the results of all of them to
`remediation.diagnose.conclude`, which answers with the reason of the outcome.

A check that compares a number needs to know what to expect. Without `need` a bandwidth is only a number: the check is
then `unjudged`, and the program's own word on correctness is all that counts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

LARGEST_CHARS = 8_000_000    # a level-4 report of eight GPUs has some 100 kB
MOST_CHECKS = 500
LONGEST_WORDS = 160

PASSED, FAILED, SKIPPED, WARNED, CONFIG, UNJUDGED = "passed", "failed", "skipped", "warned", "config", "unjudged"
# The worst word counts where a check has several.
_WORST = (PASSED, UNJUDGED, SKIPPED, CONFIG, WARNED, FAILED)


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a program.

    name: `dcgm.memory`, `nccl.speed`, ... as `remediation/diagnoses.yaml` names them. result: passed; failed; skipped (not run);
    warned (it ran, and is not sure); config (it failed for a setting of the node, not for a part); unjudged (it ran, but
    nothing says what to expect). device: what it is about, as people say it (a GPU's index, an adapter), None = the node.
    """

    name: str
    result: str
    device: str | None = None
    words: str = ""


@dataclass(frozen=True, slots=True)
class TestResult:
    """What one program said. checks: empty where `problem` says in a few words why nothing can be read from it.

    tool: one of TOOLS. measured: its main number (busbw in GB/s, bandwidth in Gb/s, throughput in MB/s), None = none.
    """

    __test__: ClassVar[bool] = False  # pytest: this is no test case

    tool: str
    checks: tuple[Check, ...] = ()
    problem: str = ""
    measured: float | None = None


def read_output(tool: str, text: str, need: float | None = None) -> TestResult:
    """What the output of `tool` says. Never raises.

    tool: `dcgm` (`dcgmi diag -r LEVEL -j`), `nccl` (`all_reduce_perf`), `ib_write_bw` (with `--report_gbits`), `fio`
    (`--output-format=json`), `service` (`systemctl is-active NAME...`: one word a line), `exit` (any other check: the last
    line is its exit status). text: standard output; log lines before and after it do no harm. need: the least that its
    main number must reach, 5 % forgiven: GB/s of bus bandwidth (nccl), Gb/s (ib_write_bw), MB/s (fio); None = not known.
    """
    reader = TOOLS.get(tool)
    if reader is None:
        return TestResult(tool, problem="no program of that name is read")
    if len(text) > LARGEST_CHARS:
        return TestResult(tool, problem="the output is too large to be one")
    if not text.strip():
        return TestResult(tool, problem="there is no output")
    try:
        found = reader(text, need if need is not None and math.isfinite(need) and need > 0 else None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        return TestResult(tool, problem=f"the output could not be read ({type(error).__name__})")
    if not found.checks and not found.problem:
        return TestResult(tool, problem="the output names no check")
    if len(found.checks) > MOST_CHECKS:
        return TestResult(tool, problem="the output names too many checks to be one")
    return found


# --- DCGM -------------------------------------------------------------------------------------------------------------
# Severity of a DCGM error (dcgm_errors.h, dcgmErrorSeverity_t): 5 = it can be configured, the part is not to blame.
CONFIG_SEVERITY = 5
# What older versions (2 and 3) call a test; version 4 has the names on the right.
_OLD_NAMES = {
    "denylist": "software", "blacklist": "software", "nvml_library": "software", "cuda_main_library": "software",
    "cuda_toolkit_library": "software", "permissions_and_os_blocks": "software", "persistence_mode": "software",
    "environment_variables": "software", "graphics_processes": "software", "inforom": "software",
    "page_retirement_row_remap": "row_remap", "gpu_memory": "memory", "sm_stress": "diagnostic", "eud_test": "eud",
}
_STATUS = {"pass": PASSED, "fail": FAILED, "warn": WARNED, "skip": SKIPPED, "skipped": SKIPPED, "not run": SKIPPED,
           "not_run": SKIPPED}


def _dcgm(text: str, need: float | None) -> TestResult:
    """All test categories of the report: `DCGM Diagnostic` (version 4), `DCGM GPU Diagnostic` (before).

    A status that is no known word, a runtime error, or a report whose end is missing is no result.
    """
    data = _object(text)
    root = data.get("DCGM Diagnostic") or data.get("DCGM GPU Diagnostic")
    if not isinstance(root, Mapping):
        return TestResult("dcgm", problem="the report has no DCGM diagnostic in it")
    if root.get("runtime_error"):
        return TestResult("dcgm", problem=f"dcgmi: {_short(root['runtime_error'])}")
    checks = [check for category in _list(root.get("test_categories")) for test in _list(category.get("tests"))
              for check in _dcgm_test(test)]
    return TestResult("dcgm", _merged(checks))


def _dcgm_test(test: Mapping[str, Any]) -> Iterator[Check]:
    name = re.sub(r"[^a-z0-9]+", "_", str(test["name"])[:60].lower()).strip("_")
    name = "dcgm." + _OLD_NAMES.get(name, name)
    rows = _list(test.get("results"))
    summary = test.get("test_summary")
    if not rows and isinstance(summary, Mapping) and "status" in summary:
        rows = [summary]
    for row in rows:
        result = _STATUS[str(row["status"]).strip().lower()]
        warnings = row.get("warnings") or ()
        warnings = [warnings] if isinstance(warnings, (str, Mapping)) else list(warnings)
        severities = [w.get("error_severity") for w in warnings if isinstance(w, Mapping)]
        if result == FAILED and warnings and len(severities) == len(warnings) and set(severities) == {CONFIG_SEVERITY}:
            result = CONFIG
        words = _short("; ".join(str(w.get("warning", "")) if isinstance(w, Mapping) else str(w) for w in warnings[:3]))
        for device in _dcgm_devices(row):
            yield Check(name, result, device, words)


def _dcgm_devices(row: Mapping[str, Any]) -> list[str | None]:
    """The GPUs that a result is about: `entity_id` with its group (version 4), `gpu_id`, or `gpu_ids` as `0,1,2`."""
    if row.get("entity_id") is not None:
        return [str(int(row["entity_id"]))] if str(row.get("entity_group", "GPU")).upper() == "GPU" else [None]
    ids = row.get("gpu_id", row.get("gpu_ids"))
    found: list[str | None] = [one.strip() for one in str(ids).split(",") if ids is not None and _is_index(one.strip())]
    return found[:64] or [None]


def _is_index(text: str) -> bool:
    return text.isdigit() and len(text) < 4


# --- nccl-tests -------------------------------------------------------------------------------------------------------
_AVERAGE = re.compile(r"^#\s*Avg bus bandwidth\s*:\s*(\S+)", re.MULTILINE)
_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(\d+)\s*(\w+)", re.MULTILINE)
_NCCL_FAILED = re.compile(r"(Test NCCL failure|Test CUDA failure|NCCL WARN .*(?:error|failed)|Test failure)[^\n]*", re.IGNORECASE)


def _nccl(text: str, need: float | None) -> TestResult:
    """`all_reduce_perf`: right results, and the bus bandwidth at the largest size (the mean over all sizes says little).

    The summary at its end has to be there: a run that was cut off is no result, one that NCCL broke off is a failure.
    """
    bounds = _BOUNDS.search(text)
    broken = _NCCL_FAILED.search(text)
    if broken is not None:
        return TestResult("nccl", (Check("nccl.correct", FAILED, None, _short(broken.group(0))),))
    if bounds is None or _AVERAGE.search(text) is None:
        return TestResult("nccl", problem="the summary at the end is missing")
    rows = [row for line in text.splitlines() if (row := _nccl_row(line)) is not None]
    if not rows:
        return TestResult("nccl", problem="there is no measurement in it")
    wrong = bounds.group(2).upper() != "OK" or int(bounds.group(1)[:18]) > 0 or any(w for _, _, w in rows)
    largest = max(size for size, _, _ in rows)
    best = max(bus for size, bus, _ in rows if size == largest)
    said = "wrong results" if wrong else ""
    return TestResult("nccl", (Check("nccl.correct", FAILED if wrong else PASSED, None, said),
                               _speed("nccl.speed", best, need, "GB/s")), measured=best)


def _nccl_row(line: str) -> tuple[int, float, bool] | None:
    """(bytes, bus bandwidth in GB/s, whether results were wrong) of a line of the table, None for any other line.

    Columns: size, count, type, redop, [root], then time, algbw, busbw, errors, once or twice.
    """
    words = line.split()
    if len(words) < 8 or not words[0].isdigit() or not words[1].isdigit() or words[2].isdigit():
        return None
    tail = words[-8:] if len(words) >= 12 else words[-4:]
    groups = [tail[i:i + 4] for i in range(0, len(tail), 4)]
    wrong = any(g[3] not in ("N/A", "0") and _number(g[3], 0.0) > 1e-3 for g in groups)
    return int(words[0][:18]), max(_number(g[2]) for g in groups), wrong


# --- perftest ---------------------------------------------------------------------------------------------------------
_IB_HEAD = re.compile(r"^\s*#bytes\s+#iterations\s+.*BW average\[(Gb/sec|MB/sec|MiB/sec)\]", re.MULTILINE)
_IB_DEVICE = re.compile(r"^\s*Dual-port\s*:.*Device\s*:\s*(\S+)|^\s*Device\s*:\s*(\S+)", re.MULTILINE)


def _ib_write_bw(text: str, need: float | None) -> TestResult:
    """`ib_write_bw`: the average bandwidth at the largest message. Without its table the two sides did not meet: no result."""
    head = _IB_HEAD.search(text)
    if head is None:
        return TestResult("ib_write_bw", problem="there is no table of bandwidths in it")
    scale = {"Gb/sec": 1.0, "MB/sec": 0.008, "MiB/sec": 0.008388608}[head.group(1)]
    rows = []
    for line in text[head.end():].splitlines():
        words = line.split()
        if len(words) >= 4 and words[0].isdigit() and words[1].isdigit():
            rows.append((int(words[0][:18]), _number(words[3]) * scale))
    if not rows:
        return TestResult("ib_write_bw", problem="there is no measurement in it")
    largest = max(size for size, _ in rows)
    best = max(speed for size, speed in rows if size == largest)
    named = _IB_DEVICE.search(text)
    device = next((one[:40] for one in named.groups() if one), None) if named else None
    return TestResult("ib_write_bw", (_speed("ib.speed", best, need, "Gb/s", device),), measured=best)


# --- fio --------------------------------------------------------------------------------------------------------------
def _fio(text: str, need: float | None) -> TestResult:
    """`fio --output-format=json`: no I/O error, and the sum of what its jobs read and wrote in MB/s (10⁶ bytes)."""
    jobs = _list(_object(text).get("jobs"))
    if not jobs:
        return TestResult("fio", problem="the report has no job in it")
    errors = [job for job in jobs if int(job["error"]) != 0]
    moved = total = 0.0
    for job in jobs:
        for way in ("read", "write"):
            one = job.get(way) or {}
            total += _number(one.get("bw_bytes", _number(one.get("bw", 0.0)) * 1024.0))
            moved += _number(one.get("io_bytes", _number(one.get("io_kbytes", 0.0)) * 1024.0))
    if errors:
        said = _short(f"error {int(errors[0]['error'])} in job {errors[0].get('jobname', '')}")
        return TestResult("fio", (Check("fio.errors", FAILED, None, said),))
    if moved <= 0:
        return TestResult("fio", problem="nothing was read or written")
    return TestResult("fio", (Check("fio.errors", PASSED), _speed("fio.speed", total / 1e6, need, "MB/s")), measured=total / 1e6)


# --- services and the rest ----------------------------------------------------------------------------------------------
def _service(text: str, need: float | None) -> TestResult:
    """`systemctl is-active`: one word a service; all have to be `active`."""
    words = text.split()
    if any(w not in ("active", "reloading", "inactive", "failed", "activating", "deactivating", "unknown") for w in words):
        return TestResult("service", problem="a word that systemctl does not say")
    bad = [w for w in words if w not in ("active", "reloading")]
    return TestResult("service", (Check("service.active", FAILED if bad else PASSED, None, ", ".join(sorted(set(bad)))),))


def _exit(text: str, need: float | None) -> TestResult:
    """Any other program: 0 in its last line is a pass, another number a failure."""
    last = text.strip().splitlines()[-1].strip()
    if not re.fullmatch(r"\d{1,3}", last):
        return TestResult("exit", problem="the last line is no exit status")
    return TestResult("exit", (Check("exit.status", PASSED if int(last) == 0 else FAILED, None, f"exit status {last}"),))


TOOLS: Mapping[str, Callable[[str, float | None], TestResult]] = {
    "dcgm": _dcgm, "nccl": _nccl, "ib_write_bw": _ib_write_bw, "fio": _fio, "service": _service, "exit": _exit,
}


# --- small things -------------------------------------------------------------------------------------------------------
FORGIVEN = 0.95  # SuperBench: more than 5 % below what is expected counts as defective


def _speed(name: str, measured: float, need: float | None, unit: str, device: str | None = None) -> Check:
    said = f"{measured:.4g} {unit}" + (f" of {need:.4g}" if need is not None else "")
    if need is None:
        return Check(name, UNJUDGED, device, said)
    return Check(name, PASSED if measured >= need * FORGIVEN else FAILED, device, said)


def _merged(checks: list[Check]) -> tuple[Check, ...]:
    """One check for each name and device: the worst of what was said of it."""
    out: dict[tuple[str, str | None], Check] = {}
    for one in checks:
        known = out.get((one.name, one.device))
        if known is None or _WORST.index(one.result) > _WORST.index(known.result):
            out[one.name, one.device] = one
    return tuple(out.values())


def _object(text: str) -> Mapping[str, Any]:
    """The first JSON object that begins a line; log lines before and after it are left out. Raises ValueError where there is
    none, or where it is cut off."""
    start = re.search(r"^[ \t]*\{", text, re.MULTILINE)
    if start is None:
        raise ValueError("no object")
    data, _ = json.JSONDecoder(parse_constant=_no_constant).raw_decode(text, start.end() - 1)
    if not isinstance(data, dict):
        raise ValueError("no object")
    return data


def _no_constant(word: str) -> float:
    raise ValueError(word)


def _list(value: Any) -> list[Mapping[str, Any]]:
    """A list of objects; None is an empty one. Raises TypeError on anything else."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise TypeError("a list of objects is needed")
    return value


def _number(value: Any, otherwise: float | None = None) -> float:
    """A finite number of at least 0. Raises ValueError on anything else where `otherwise` is not given."""
    try:
        found = float(value)
    except (ValueError, TypeError):
        found = math.nan
    if math.isfinite(found) and found >= 0:
        return found
    if otherwise is None:
        raise ValueError("no number")
    return otherwise


def _short(value: Any) -> str:
    """Text for people: one line, bounded, without control characters."""
    text = "".join(c if c.isprintable() else " " for c in str(value)[: 4 * LONGEST_WORDS])
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_WORDS else text[: LONGEST_WORDS - 1] + "…"
