"""Diagnoses: what a fault's tests are, what the output of real programs says, what it means, and how it scores the detector."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.faults import faults
from core.reasons import ACTION_REASONS
from core.types import Action, Outcome, Target
from remediation.diagnose import RESULTS, STATES, conclude, level_seconds, result_of, scores
from remediation.diagnose import tests_of as how_to_test
from remediation.diagnose_output import LARGEST_CHARS, TOOLS, Check, TestResult, read_output
from remediation.hands import LONGEST_DETAIL
from remediation.plan import make_plan
from tests.remediation.worlds import Fault, Owner, cluster, incident, policy

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples" / "logs"


# --- what is asked for ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", sorted(faults()))
def test_every_fault_has_tests_that_are_read(fault):
    """Programs that a reader exists for, a level of DCGM that returns no node on software alone, checks of those programs."""
    how = how_to_test(fault)
    assert how.tests
    assert set(how.tests) <= set(TOOLS)
    assert how.level in (2, 3, 4)
    prefixes = {"dcgm": ("dcgm.", "gpus."), "ib_write_bw": ("ib.",)}
    allowed = tuple(p for tool in how.tests for p in prefixes.get(tool, (f"{tool}.",)))
    assert all(name.startswith(allowed) for name in how.shown_by)


def diagnose_step(steps="[drain, diagnose, undrain]", one=None):
    text = f"version: 1\nrules:\n- name: r\n  attempts: [{{do: {steps}}}]\n  finally: escalate\n"
    return next(s for s in make_plan(policy(text).rules[0].attempts[0], one or incident()).steps if s.kind == "diagnose")


def test_the_diagnosis_is_told_what_it_is_about():
    """Fault, device, tests and level go with the command, and what came before that may have cured."""
    assert diagnose_step().args == {"fault": "thermal_throttle", "device": "3", "tests": "dcgm", "level": 3, "after": None}
    assert diagnose_step("[drain, reset_gpu, diagnose]").args["after"] == "reset_gpu"


def test_what_the_policy_says_of_a_diagnosis_wins():
    """Its own level and expectations stand beside the rest."""
    args = diagnose_step("[drain, {diagnose: {level: 4, nccl_gbs_min: 460}}]").args
    assert (args["level"], args["nccl_gbs_min"], args["fault"]) == (4, 460, "thermal_throttle")


def test_a_deep_diagnosis_has_the_time_that_it_takes():
    """Level 4 takes one to two hours; the deadline of half an hour would always end it."""
    deep = diagnose_step(one=incident(fault="silent_corruption"))
    assert deep.deadline_seconds > level_seconds(4)
    assert diagnose_step().deadline_seconds == 1800
    assert diagnose_step("[drain, {diagnose: {level: 4, deadline_seconds: 60}}]").deadline_seconds == 60


# --- what programs say --------------------------------------------------------------------------------------------------
def dcgm(*tests, root="DCGM Diagnostic", **more):
    """A report of `dcgmi diag -j`. tests: (category, name, [(gpu, status, warnings)])."""
    categories = [{"category": c, "tests": [{"name": n, "results": [
        {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": status,
         **({"warnings": warnings} if warnings else {})} for gpu, status, warnings in rows]}]} for c, n, rows in tests]
    return json.dumps({root: {"test_categories": categories, **more}, "metadata": {"version": "4.2.3"}}, indent=2)


BAD = [{"warning": "GPU 3: uncorrectable ECC error", "error_id": 12, "error_category": 5, "error_severity": 2}]
SETTING = [{"warning": "Persistence mode for GPU 0 is disabled.", "error_id": 29, "error_category": 8, "error_severity": 5}]
OLD = json.dumps({"DCGM GPU Diagnostic": {"version": "2.4", "test_categories": [
    {"category": "Deployment", "tests": [{"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "Pass"}]},
                                         {"name": "Page Retirement/Row Remap", "results": [{"gpu_ids": "0,1", "status": "Pass"}]}]},
    {"category": "Hardware", "tests": [{"name": "GPU Memory", "results": [{"gpu_ids": "0", "status": "PASS"},
                                                                         {"gpu_ids": "1", "status": "FAIL", "warnings": "bad row"}]}]}]}})

DCGM = [
    (dcgm(("Hardware", "memory", [(0, "Pass", None), (3, "Fail", BAD)])),
     {("dcgm.memory", "0"): "passed", ("dcgm.memory", "3"): "failed"}),
    (dcgm(("Deployment", "software", [(0, "Fail", SETTING)])), {("dcgm.software", "0"): "config"}),
    (dcgm(("Deployment", "software", [(0, "Fail", [*SETTING, *BAD])])), {("dcgm.software", "0"): "failed"}),
    (dcgm(("Stress", "targeted_power", [(0, "Skip", None), (1, "Not Run", None), (2, "Warn", BAD)])),
     {("dcgm.targeted_power", "0"): "skipped", ("dcgm.targeted_power", "1"): "skipped", ("dcgm.targeted_power", "2"): "warned"}),
    ("Running...\n" + dcgm(("Integration", "pcie", [(0, "Pass", None)])) + "\nrc=226\n", {("dcgm.pcie", "0"): "passed"}),
    (OLD, {("dcgm.software", "0"): "passed", ("dcgm.software", "1"): "passed", ("dcgm.row_remap", "0"): "passed",
           ("dcgm.row_remap", "1"): "passed", ("dcgm.memory", "0"): "passed", ("dcgm.memory", "1"): "failed"}),
]


@pytest.mark.parametrize(("text", "checks"), DCGM)
def test_reports_of_dcgm_are_read(text, checks):
    """Versions 2 to 4, with log lines around; a failure for a setting of the node is told from one of a part."""
    assert {(c.name, c.device): c.result for c in read_output("dcgm", text).checks} == checks


REPORT = dcgm(("Hardware", "memory", [(g, "Pass", None) for g in range(8)]), ("Stress", "diagnostic", [(g, "Pass", None) for g in range(8)]))
UNREADABLE = [
    ("dcgm", REPORT[: len(REPORT) // 2]), ("dcgm", REPORT[:-40]), ("dcgm", ""), ("dcgm", "   \n"), ("dcgm", "null"), ("dcgm", "[]"), ("dcgm", "{}"),
    ("dcgm", '{"DCGM Diagnostic": 3}'), ("dcgm", '{"DCGM Diagnostic": {"test_categories": {"a": 1}}}'),
    ("dcgm", '{"DCGM Diagnostic": {"runtime_error": "the host engine is not running"}}'),
    ("dcgm", dcgm(("Hardware", "memory", [(0, "Perhaps", None)]))), ("dcgm", '{"DCGM Diagnostic": {"test_categories": [' + "[" * 90_000),
    ("dcgm", "x" * (LARGEST_CHARS + 1)), ("dcgm", dcgm(*[("Hardware", f"t{i}", [(0, "Pass", None)]) for i in range(600)])),
    ("dcgm", '{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "memory", "results": [{"entity_id": 1e999, "status": "Pass"}]}]}]}}'),
    ("nccl", "# nThread 1\n 8 2 float sum -1 34.2 0.0 0.1 0 33 0.0 0.1 0\n"), ("nccl", "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0\n"),
    ("nccl", "mpirun noticed that process rank 0 exited on signal 9"), ("ib_write_bw", "Couldn't connect to n2:18515"),
    ("ib_write_bw", " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"),
    ("fio", "fio: file hash not empty\n"), ("fio", '{"jobs": []}'), ("fio", '{"jobs": [{"error": 0, "read": {"bw": NaN, "io_bytes": 5}}]}'),
    ("fio", '{"jobs": [{"error": 0, "read": {"bw_bytes": 0, "io_bytes": 0}}]}'), ("service", "active rm -rf"), ("exit", "done"), ("rumour", "1"),
]


@pytest.mark.parametrize(("tool", "text"), UNREADABLE)
def test_what_cannot_be_read_is_no_result(tool, text):
    """Cut off, empty, hostile, huge or not what it should be: a problem in words, and never a pass."""
    found = read_output(tool, text)
    assert found.problem
    assert not found.checks
    assert conclude("thermal_throttle", "3", [found]).reason == "diagnose_inconclusive"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(TOOLS)), st.text(max_size=300), st.floats(allow_nan=True))
def test_no_text_breaks_a_reader(tool, text, need):
    """Whatever a program prints, the answer is a result or a problem, and no crash."""
    found = read_output(tool, text, need)
    assert bool(found.problem) != bool(found.checks)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_report_that_was_cut_is_no_result(data):
    """Wherever it ends, before its last brace nothing of it counts."""
    end = data.draw(st.integers(0, REPORT.rindex("}", 0, REPORT.index('"metadata"'))))
    assert read_output("dcgm", REPORT[:end]).problem


NCCL = """# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     8388608       2097152     float     sum      -1    156.0   53.77   94.10      0    155.1   54.09   94.65      0
  1073741824     268435456     float     sum      -1   4070.2  263.81  461.66      {wrong}   4071.6  263.71  461.50      0
# Out of bounds values : {bounds}
# Avg bus bandwidth    : 277.9
"""
IB = """ Dual-port       : OFF          Device         : mlx5_4
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 1500.000000 != 3300.016000. CPU Frequency is not max.
 2          5000           0.142947            0.012281            0.767588
 65536      560845           0.00               392.02                0.186950
"""
FIO = {"fio version": "fio-3.16", "jobs": [{"jobname": "w", "error": 0, "write": {"io_bytes": 10**9, "bw_bytes": 697_000_000}}]}
SPEEDS = [
    ("nccl", NCCL.format(wrong=0, bounds="0 OK"), 460, {"nccl.correct": "passed", "nccl.speed": "passed"}, 461.66),
    ("nccl", NCCL.format(wrong=0, bounds="0 OK"), 500, {"nccl.correct": "passed", "nccl.speed": "failed"}, 461.66),
    ("nccl", NCCL.format(wrong=0, bounds="0 OK"), None, {"nccl.correct": "passed", "nccl.speed": "unjudged"}, 461.66),
    ("nccl", NCCL.format(wrong=3, bounds="3 FAILED"), 460, {"nccl.correct": "failed", "nccl.speed": "passed"}, 461.66),
    ("nccl", "n1: Test NCCL failure common.cu:958 'unhandled system error'", None, {"nccl.correct": "failed"}, None),
    ("ib_write_bw", IB, 400, {"ib.speed": "passed"}, 392.02),
    ("ib_write_bw", IB, 450, {"ib.speed": "failed"}, 392.02),
    ("ib_write_bw", IB.replace("Gb/sec", "MB/sec").replace("392.02", "11628.60"), 90, {"ib.speed": "passed"}, 93.0288),
    ("fio", json.dumps(FIO), 700, {"fio.errors": "passed", "fio.speed": "passed"}, 697.0),
    ("fio", json.dumps(FIO), 1000, {"fio.errors": "passed", "fio.speed": "failed"}, 697.0),
    ("fio", json.dumps({"jobs": [{"error": 5, "jobname": "w"}]}), None, {"fio.errors": "failed"}, None),
    ("service", "active\nactive\n", None, {"service.active": "passed"}, None),
    ("service", "active\nfailed\n", None, {"service.active": "failed"}, None),
    ("exit", "some words\n0\n", None, {"exit.status": "passed"}, None), ("exit", "1", None, {"exit.status": "failed"}, None),
]


@pytest.mark.parametrize(("tool", "text", "need", "checks", "measured"), SPEEDS)
def test_bandwidths_are_compared_with_what_is_expected(tool, text, need, checks, measured):
    """At the largest size, 5 % forgiven; without an expectation a number is no judgement."""
    found = read_output(tool, text, need)
    assert ({c.name: c.result for c in found.checks}, found.measured) == (checks, pytest.approx(measured) if measured else None)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"the samples are not at {SAMPLES}")
@pytest.mark.parametrize(("name", "tool", "measured"), [
    ("superbench_nccl_allreduce.log", "nccl", 235.26), ("superbench_disk_performance.log", "fio", 697.19)])
def test_output_of_real_machines_is_read(name, tool, measured):
    """As SuperBench kept it."""
    assert read_output(tool, (SAMPLES / name).read_text(encoding="utf-8")).measured == pytest.approx(measured, abs=0.01)


# --- what it means ------------------------------------------------------------------------------------------------------
def ran(*checks, tool="dcgm", problem=""):
    return TestResult(tool, tuple(Check(*c) for c in checks), problem)


POWER, MEMORY = "dcgm.targeted_power", "dcgm.memory"
MEANINGS = [
    ("confirmed", "thermal_throttle", "3", [ran((POWER, "failed", "3"))], "diagnose_confirmed"),
    ("of the whole node", "thermal_throttle", "3", [ran((POWER, "failed", None))], "diagnose_confirmed"),
    ("an adapter's port", "packet_loss", "mlx5_4/1", [ran(("ib.speed", "failed", "mlx5_4"), tool="ib_write_bw")], "diagnose_confirmed"),
    ("a GPU that nobody accused", "thermal_throttle", "3", [ran((POWER, "failed", "5"), (POWER, "passed", "3"))], "diagnose_failed"),
    ("another fault", "thermal_throttle", "3", [ran((POWER, "passed", "3"), (MEMORY, "failed", "3"))], "diagnose_failed"),
    ("another fault, and a test that could not be read", "thermal_throttle", "3",
     [ran((MEMORY, "failed", "3")), ran(tool="nccl", problem="cut off")], "diagnose_failed"),
    ("refuted", "thermal_throttle", "3", [ran((POWER, "passed", "3"), (MEMORY, "passed", "3"))], "diagnose_refuted"),
    ("passed, on others only", "thermal_throttle", "3", [ran((POWER, "passed", "1"), (MEMORY, "passed", "1"))], "diagnose_inconclusive"),
    ("nothing covers it", "thermal_throttle", "3", [ran((MEMORY, "passed", "3"))], "no_fault_found"),
    ("what covers it was skipped", "thermal_throttle", "3", [ran((POWER, "skipped", "3"), (MEMORY, "passed", "3"))], "no_fault_found"),
    ("it comes and goes", "link_flap", "mlx5_4/1", [ran(("ib.speed", "passed", "mlx5_4"), tool="ib_write_bw")], "no_fault_found"),
    ("not sure", "thermal_throttle", "3", [ran((POWER, "warned", "3"), (MEMORY, "passed", "3"))], "diagnose_inconclusive"),
    ("one test could not be read", "thermal_throttle", "3", [ran((POWER, "passed", "3")), ran(tool="nccl", problem="cut off")], "diagnose_inconclusive"),
    ("nothing ran", "thermal_throttle", "3", [], "diagnose_inconclusive"),
    ("all skipped", "thermal_throttle", "3", [ran((POWER, "skipped", "3"))], "diagnose_inconclusive"),
    ("a number that nothing judges", "link_slow", None, [ran(("ib.speed", "unjudged", "mlx5_4"), tool="ib_write_bw")], "diagnose_inconclusive"),
    ("a setting is not the part's", "ecc_uncorrectable", "3", [ran(("dcgm.software", "config", "3"), (MEMORY, "passed", "3"))], "diagnose_refuted"),
    ("a setting is the fault", "config_drift", None, [ran(("dcgm.software", "config", "3"), (MEMORY, "passed", "3"))], "diagnose_confirmed"),
    ("a spare without an accusation", None, None, [ran((MEMORY, "passed", "3"))], "no_fault_found"),
    ("a spare that fails", None, None, [ran((MEMORY, "failed", "3"))], "diagnose_failed"),
]


@pytest.mark.parametrize(("fault", "device", "results", "reason"), [row[1:] for row in MEANINGS], ids=[row[0] for row in MEANINGS])
def test_what_results_mean(fault, device, results, reason):
    """Confirmed, refuted, no fault found, another fault, inconclusive: each with its state of the outcome."""
    found = conclude(fault, device, results)
    assert (found.reason, found.state) == (reason, STATES[reason])
    assert reason in ACTION_REASONS
    assert 0 < len(found.detail) <= LONGEST_DETAIL


@pytest.mark.parametrize(("fault", "gpus", "reason"), [
    ("gpu_lost", 8, "diagnose_confirmed"), ("gpu_lost", 2, "diagnose_refuted"), ("gpu_lost", None, "no_fault_found"),
    ("ecc_uncorrectable", 8, "diagnose_failed")])
def test_a_gpu_that_no_report_names_is_missed(fault, gpus, reason):
    """DCGM tests what it sees: fewer GPUs than the node has is a failure, whatever was accused."""
    assert conclude(fault, "0", [ran((MEMORY, "passed", "0"), (MEMORY, "passed", "1"))], gpus).reason == reason


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(faults())), st.lists(st.tuples(
    st.sampled_from(["dcgm.memory", "dcgm.targeted_power", "ib.speed", "nccl.correct", "fio.speed", "service.active"]),
    st.sampled_from(["passed", "failed", "skipped", "warned", "config", "unjudged"]), st.sampled_from([None, "0", "3"])), max_size=6),
       st.booleans())
def test_no_node_returns_with_a_failed_or_unread_test(fault, checks, unread):
    """DONE needs a check that passed, none that failed, and no output that could not be read."""
    results = [ran(*checks), *([ran(tool="nccl", problem="cut off")] if unread else [])]
    said = {result for _, result, _ in checks}
    if conclude(fault, "3", results).state == "DONE":
        assert "passed" in said
        assert "failed" not in said
        assert not unread


# --- how it scores the detector -------------------------------------------------------------------------------------------
def row(n, reason, state=None, fault="gpu_slow", after=None):
    action = diagnose_action(n, fault, after)
    return action, Outcome(action.id, state or STATES[reason], reason, at=n)


def diagnose_action(n, fault, after):
    args = {"fault": fault, "device": "3", "tests": "dcgm", "level": 3, "after": after} if fault else {}
    return Action(f"inc-{n}/1/3", "diagnose", Target("node", "n1"), args, 1800.0, "act", f"inc-{n}", 1, 3, n, "policy")


def test_detectors_are_scored_by_what_diagnoses_say():
    """Confirmed and refuted count; a pass after a repair, a bare outcome and what is unclear do not; each diagnosis once."""
    rows = [row(1, "diagnose_confirmed"), row(1, "diagnose_confirmed"), row(2, "diagnose_refuted"), row(3, "diagnose_refuted", after="reboot"),
            row(4, "no_fault_found"), row(5, "diagnose_inconclusive"), row(6, "diagnose_failed"), row(7, "done", "DONE"),
            row(8, "diagnose_confirmed", fault=None), row(9, "policy", "RUNNING"), row(10, "deadline_exceeded", "FAILED"),
            row(11, "diagnose_confirmed", fault="packet_loss")]
    slow, loss = scores(rows)
    assert (slow.fault, dict(slow.counts), slow.precision) == (
        "gpu_slow", {"confirmed": 1, "refuted": 1, "repaired": 1, "none": 2, "other": 1, "inconclusive": 2}, 0.5)
    assert (loss.fault, loss.precision) == ("packet_loss", 1.0)


def test_every_result_is_a_word_of_the_list():
    """No diagnosis that ended is lost, whatever its reason."""
    assert {result_of(*row(1, reason)) for reason in STATES} | {"repaired"} == set(RESULTS)


# --- in the engine --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reason", ["diagnose_confirmed", "diagnose_inconclusive", "diagnose_failed"])
def test_a_node_that_does_not_pass_does_not_return(reason):
    """Neither a confirmed fault nor a test that could not be run brings a node back; the next attempt follows."""
    owner = Owner(policy(), cluster())
    owner.open(incident())
    owner.world.fail["diagnose"] = reason
    fault = Fault(owner, ("replace",))
    fault.until("verifying")
    assert "undrain" not in owner.did()
    assert owner.did()[-2:] == ["replace", "resume_job"]


def test_the_detail_of_a_diagnosis_reaches_the_ledger():
    """Which test failed stands in the row that is committed, cut to what a row may hold."""
    owner = Owner(policy(), cluster())
    owner.open(incident())
    original = owner.world._now
    owner.world._now = lambda name: replace(original(name), detail="dcgm.targeted_power failed on GPU 3 " * 20)
    Fault(owner, ("replace",)).until("verifying")
    details = [o.detail for a, o in owner.rows if a.kind == "diagnose" and o.state == "DONE"]
    assert details
    assert all(len(d) == LONGEST_DETAIL for d in details)
