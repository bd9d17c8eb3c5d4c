"""What Slurm says, in its three forms, becomes the same records; what cannot be read is an error, never an empty list."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.backends import slurm_json as read
from remediation.backends.slurm_hosts import expand, join

META = {"plugin": {"type": "openapi/v0.0.38"}, "Slurm": {"version": {"major": 22, "micro": 8, "minor": 5}}}
T = 1_795_878_298


def number(value: int | None, infinite: bool = False) -> dict[str, Any]:
    """A number as 23.02 and later write it."""
    return {"set": value is not None, "infinite": infinite, "number": value or 0}


NODE_OLD = {
    "name": "n4", "state": "down", "state_flags": ["DRAIN", "REBOOT_ISSUED"], "reason": "greylag: inc-1/1/2 reboot : reboot issued",
    "reason_set_by_user": "root", "reason_changed_at": T, "boot_time": T, "partitions": ["train", "quiet"], "active_features": "pool",
    "gres": "gpu:h100:8",
}
NODE_NEW = {
    "name": "n4", "state": ["DOWN", "DRAIN", "REBOOT_ISSUED"], "reason": "greylag: inc-1/1/2 reboot : reboot issued",
    "reason_set_by_user": "root", "reason_changed_at": number(T), "boot_time": number(T), "partitions": ["train", "quiet"],
    "active_features": ["pool"], "gres": "gpu:h100:8", "energy": {"current_watts": number(None)},
}
NODE_TEXT = ("NodeName=n4 Arch=x86_64 CoresPerSocket=1 CPUTot=8 AvailableFeatures=pool ActiveFeatures=pool Gres=gpu:h100:8 NodeAddr=127.0.0.1 "
             "OS=Linux 6.18 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=1000 State=DOWN*+DRAIN+REBOOT_ISSUED ThreadsPerCore=1 Partitions=train,quiet  "
             "BootTime=Unknown CfgTRES=cpu=8,mem=1000M AllocTRES= Reason=greylag: inc-1/1/2 reboot : reboot issued [root@2026-11-28T15:06:30]\n")


@pytest.mark.parametrize("nodes", [
    read.nodes_of(json.dumps({"meta": META, "errors": [], "nodes": [NODE_OLD]})),
    read.nodes_of(json.dumps({"nodes": [NODE_NEW], "last_update": number(T), "warnings": []})),
    read.nodes_of_text(NODE_TEXT),
], ids=["22.05", "23.02", "text"])
def test_a_node_in_all_forms(nodes: dict[str, read.SlurmNode]) -> None:
    """State, flags, reason, who gave it, partitions and features."""
    node = nodes["n4"]
    assert (node.base, node.flags) == ("DOWN", {"DRAIN", "REBOOT_ISSUED"})
    assert (node.reason, node.reason_user) == ("greylag: inc-1/1/2 reboot : reboot issued", "root")
    assert (node.partitions, node.features, node.gres) == (("train", "quiet"), ("pool",), "gpu:h100:8")


def test_times_of_both_json_forms_are_milliseconds() -> None:
    """A plain number and `{set, number}`; one that is not set is unknown."""
    rows = [NODE_OLD, {**NODE_NEW, "name": "n5"}, {**NODE_NEW, "name": "n6", "boot_time": number(None)}]
    nodes = read.nodes_of(json.dumps({"nodes": rows}))
    assert [nodes[n].boot_at for n in ("n4", "n5", "n6")] == [T * 1000, T * 1000, 0]


JOB_OLD = {
    "job_id": 7, "name": "llm-7b", "user_name": "ada", "partition": "train", "job_state": "RUNNING", "nodes": "n[1-3],spare1", "node_count": 4,
    "requeue": True, "batch_flag": True, "het_job_id": 0, "array_job_id": 5, "array_task_id": 2, "comment": "greylag=act",
    "admin_comment": "", "restart_cnt": 1, "priority": 4294901759, "state_reason": "None", "excluded_nodes": "n4", "resv_name": "greylag-job-7",
    "submit_time": T, "start_time": T, "end_time": T + 60, "exit_code": 768,
}
JOB_NEW = {
    **JOB_OLD, "job_state": ["RUNNING"], "node_count": number(4), "het_job_id": number(0), "array_job_id": number(5), "array_task_id": number(2),
    "priority": number(4294901759), "hold": False, "submit_time": number(T), "start_time": number(T), "end_time": number(T + 60),
    "exit_code": {"status": ["ERROR"], "return_code": number(3), "signal": {"id": number(None), "name": ""}},
}
JOB_TEXT = ("JobId=7 ArrayJobId=5 ArrayTaskId=2 JobName=llm-7b UserId=ada(1000) GroupId=ada(1000) Priority=4294901759 JobState=RUNNING Reason=None "
            "Requeue=1 Restarts=1 BatchFlag=1 ExitCode=3:0 SubmitTime=Unknown StartTime=Unknown EndTime=Unknown Partition=train ExcNodeList=n4 "
            "NodeList=n[1-3],spare1 NumNodes=4 NumCPUs=4 Reservation=greylag-job-7 Comment=greylag=act \n")


@pytest.mark.parametrize("jobs", [
    read.jobs_of(json.dumps({"meta": META, "jobs": [JOB_OLD]})), read.jobs_of(json.dumps({"jobs": [JOB_NEW]})), read.jobs_of_text(JOB_TEXT),
], ids=["22.05", "23.02", "text"])
def test_a_job_in_all_forms(jobs: tuple[read.SlurmJob, ...]) -> None:
    """Nodes, opt-in, requeue, batch, array, restarts, exclusion, reservation and exit code."""
    [job] = jobs
    assert (job.ref, job.user, job.nodes, job.node_count) == ("5_2", "ada", ("n1", "n2", "n3", "spare1"), 4)
    assert (job.requeue, job.batch, job.het_id, job.restarts, job.held) == (True, True, 0, 1, False)
    assert (job.comment, job.excluded, job.reservation, job.exit_code) == ("greylag=act", ("n4",), "greylag-job-7", 3)
    assert (job.on_nodes, job.waits, job.over, job.clear) == (True, False, False, True)


@pytest.mark.parametrize(("more", "held", "waits", "over"), [
    ({"job_state": "PENDING", "priority": 0, "state_reason": "JobHeldUser"}, True, True, False),
    ({"job_state": ["PENDING"], "priority": number(0), "hold": True}, True, True, False),
    ({"job_state": "COMPLETING", "priority": 0, "state_reason": "JobHeldUser"}, True, False, False),
    ({"job_state": "PENDING", "priority": 10, "state_reason": "BeginTime"}, False, True, False),
    ({"job_state": ["RUNNING", "COMPLETING"], "priority": number(10)}, False, False, False),
    ({"job_state": "CANCELLED", "priority": 10}, False, False, True),
    ({"job_state": ["TIMEOUT"], "priority": number(10)}, False, False, True),
])
def test_where_a_job_stands(more: dict[str, Any], held: bool, waits: bool, over: bool) -> None:
    """Held, waiting, over, in the forms of both."""
    [job] = read.jobs_of(json.dumps({"jobs": [{**JOB_OLD, **more}]}))
    assert (job.held, job.waits, job.over) == (held, waits, over)


@pytest.mark.parametrize(("value", "code"), [
    (0, 0), (768, 3), (15, 143), (None, None), ({"return_code": number(0), "signal": {"signal_id": 9}}, 137),
    ({"return_code": number(None)}, None),
])
def test_exit_codes(value: Any, code: int | None) -> None:
    """A status of wait(), or an object; what is not set is unknown, not 0."""
    assert read.jobs_of(json.dumps({"jobs": [{**JOB_OLD, "exit_code": value}]}))[0].exit_code == code


def test_reservations_in_both_forms() -> None:
    """Nodes and flags as lists or words."""
    new = {"name": "spares", "node_list": "spare[1-2]", "flags": ["MAINT", "IGNORE_JOBS"], "start_time": number(T), "end_time": number(T + 60),
           "users": "root"}
    text = ("ReservationName=spares StartTime=2026-11-28T15:04:44 EndTime=2027-11-28T15:04:44 Duration=365-00:00:00 Nodes=spare[1-2] NodeCnt=2 "
            "Flags=MAINT,IGNORE_JOBS,SPEC_NODES Users=root Groups=(null) State=ACTIVE\n")
    for one in (read.reservations_of(json.dumps({"reservations": [new]})), read.reservations_of_text(text)):
        assert (one["spares"].nodes, one["spares"].flags >= {"MAINT", "IGNORE_JOBS"}) == (("spare1", "spare2"), True)
    assert read.reservations_of_text("No reservations in the system\n") == {}


@pytest.mark.parametrize("field", ["JobName", "Comment"])
def test_a_name_that_looks_like_fields_makes_the_text_unclear(field: str) -> None:
    """A job that writes `Requeue=1` into its name or comment is not believed: nothing is done to it."""
    line = "JobId=7 JobName=x UserId=eve(1) JobState=RUNNING Requeue=0 BatchFlag=1 NumNodes=1 NodeList=n1 Partition=train Comment=y\n"
    line = line.replace(f"{field}={'x' if field == 'JobName' else 'y'}", f"{field}=z Requeue=1 Comment=greylag=act")
    [job] = read.jobs_of_text(line)
    assert not job.clear


READERS = (read.nodes_of, read.jobs_of, read.reservations_of)
WHOLE = json.dumps({"nodes": [NODE_OLD], "jobs": [JOB_OLD], "reservations": []})


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", [
    "", "{}", "[]", "null", '{"nodes": {}, "jobs": 3, "reservations": "x"}', '{"nodes": [1], "jobs": [null], "reservations": [[]]}',
    '{"nodes": [{"name": ""}], "jobs": [{"job_id": {}}], "reservations": [{"name": null}]}',
    '{"nodes": [{"name": "n", "state": 7}], "jobs": [{"job_id": 1, "job_state": {}}], "reservations": [{"name": "r", "node_list": "n[1-"}]}',
    '{"nodes": [{"name": "n", "state": []}], "jobs": [{"job_id": 1, "job_state": "RUNNING", "nodes": "n[1-99999999]"}], "reservations": [7]}',
    "[" * 100_000,
])
def test_what_cannot_be_read_is_an_error(reader: Callable[[str], Any], text: str) -> None:
    """A list that cannot be read is no list of no nodes."""
    with pytest.raises(ValueError, match="Slurm"):
        reader(text)


@given(st.integers(min_value=0, max_value=len(WHOLE) - 1))
def test_a_cut_answer_is_an_error(length: int) -> None:
    """Wherever it is cut."""
    for reader in READERS:
        with pytest.raises(ValueError, match="Slurm"):
            reader(WHOLE[:length])


@given(st.dictionaries(st.sampled_from(sorted(JOB_OLD)), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())))
def test_hostile_rows_are_read_or_refused(changes: dict[str, Any]) -> None:
    """Any values in any field: a record or a ValueError, nothing else."""
    try:
        read.jobs_of(json.dumps({"jobs": [{**JOB_OLD, **changes}]}))
    except ValueError:
        return


@pytest.mark.parametrize(("text", "names"), [
    ("", ()), ("(null)", ()), ("n1", ("n1",)), ("n1,n2", ("n1", "n2")), ("n[1-3,7]", ("n1", "n2", "n3", "n7")),
    ("n[08-10],x", ("n08", "n09", "n10", "x")), ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")), ("a[1]b", ("a1b",)),
])
def test_hostlists(text: str, names: tuple[str, ...]) -> None:
    """Ranges, widths, several dimensions."""
    assert expand(text) == names
    assert expand(join(names)) == names


@pytest.mark.parametrize("text", ["n[", "n]", "n[1-3", "n[[1]]", "n[3-1]", "n[a-b]", "n[]", "n[1-99999999]", "a[1-999]b[1-999]"])
def test_broken_hostlists(text: str) -> None:
    """What is none is an error, and so is one of more nodes than Slurm has."""
    with pytest.raises(ValueError, match=r"brackets|range|more than"):
        expand(text)


def test_switches() -> None:
    """`scontrol show topology`."""
    text = ("SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n1,n2\nSwitchName=spine1 Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]\n")
    assert read.switches_of_text(text) == (("leaf1", 0, ("n1", "n2"), ()), ("spine1", 1, ("n1", "n2", "n3", "n4"), ("leaf1", "leaf2")))
