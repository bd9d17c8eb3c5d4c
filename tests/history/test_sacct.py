"""What sacct tells: outputs as a real Slurm 22.05 printed them (slurmdbd over MariaDB), and newer and hostile ones."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.import_command import ImportOptions, import_history
from collectors.history.sacct import SacctRead, read_sacct
from core.errors import BadInput
from core.inventory import read_inventory
from pipeline.ring import Ring
from pipeline.store.duck import DuckStore
from remediation.backends.slurm_hosts import expand

HEAD = "JobID|JobIDRaw|JobName|Cluster|State|ExitCode|Submit|Start|End|Elapsed|NNodes|NodeList"
DAY = "2026-11-28T18:"
ROWS = [  # as printed, but for the columns that nobody reads
    f"1|1|ok|pipe|lab|COMPLETED|0:0|{DAY}13:36|{DAY}13:37|{DAY}13:38|00:00:01|2|n[1-2]",
    f"1.batch|1.batch|batch|lab|COMPLETED|0:0|{DAY}13:37|{DAY}13:37|{DAY}13:38|00:00:01|1|n1",
    f"2|2|fail|lab|FAILED|3:0|{DAY}13:36|{DAY}13:37|{DAY}13:37|00:00:00|1|n1",
    f"3|3|sig|lab|FAILED|0:9|{DAY}13:36|{DAY}13:37|{DAY}13:37|00:00:00|1|n1",
    f"4|4|llama-70b|lab|REQUEUED|0:0|{DAY}13:39|{DAY}13:39|{DAY}13:41|00:00:02|2|n[1-2]",
    f"5|5|cancelme|lab|CANCELLED by 0|0:0|{DAY}13:41|{DAY}13:42|{DAY}13:42|00:00:00|1|n2",
    f"6_1|7|arr|lab|COMPLETED|0:0|{DAY}13:42|{DAY}13:42|{DAY}13:43|00:00:01|1|n2",
    f"4|4|llama-70b|lab|RUNNING|0:0|{DAY}13:45|{DAY}13:47|Unknown|00:01:56|2|n[3-4]",
    f"8|8|nodefail|lab|NODE_FAIL|0:0|{DAY}13:47|{DAY}13:48|{DAY}14:16|00:00:28|1|n1",
    f"9|9|pend|lab|PENDING|0:0|{DAY}13:48|Unknown|Unknown|00:00:00|4|None assigned",
]
T0 = 1_795_889_616_000  # 18:13:36


def read(lines: list[str], **more: object) -> SacctRead:
    return read_sacct(lines, "sacct.txt", expand, **more)  # type: ignore[arg-type]


def told(found: SacctRead) -> list[tuple[object, ...]]:
    return [(r.id, r.outcome, r.nodes, (r.start - T0) // 1000, None if r.end is None else (r.end - T0) // 1000) for r in found.runs]


RUNS = [
    ("1", "COMPLETED", ("n1", "n2"), 1, 2), ("2", "FAILED, exit code 3", ("n1",), 1, 1), ("3", "FAILED, signal 9", ("n1",), 1, 1),
    ("4", "REQUEUED", ("n1", "n2"), 3, 5), ("5", "CANCELLED", ("n2",), 6, 6), ("6_1", "COMPLETED", ("n2",), 6, 7),
    ("4", "RUNNING", ("n3", "n4"), 11, None), ("8", "NODE_FAIL", ("n1",), 12, 40),
]


def test_runs_of_the_real_output() -> None:
    """A name with the delimiter in it, both runs of a requeued job, steps and waiting jobs apart."""
    found = read([HEAD, *ROWS])
    assert told(found) == RUNS
    assert (found.steps, found.waiting, found.unreadable, found.runs[0].name) == (1, 1, 0, "ok|pipe")


FORMS = [
    ("parsable", [f"{line}|" for line in (HEAD, *ROWS)], {}),
    ("seconds", [HEAD, *(row.replace(f"{DAY}13:39", str(T0 // 1000 + 3)) for row in ROWS)], {}),
    ("Berlin", [HEAD, *(row.replace("T18:", "T19:") for row in ROWS)], {"zone": ZoneInfo("Europe/Berlin")}),
    ("twice", [HEAD, *ROWS, HEAD, *ROWS], {}),
    ("byte order mark", ["\ufeff" + HEAD, "", *ROWS], {}),
]


@pytest.mark.parametrize(("lines", "more"), [row[1:] for row in FORMS], ids=[row[0] for row in FORMS])
def test_forms_of_the_same(lines: list[str], more: dict[str, object]) -> None:
    """Delimiters at the end, seconds, another zone, two outputs one after the other: the same runs, each once."""
    assert told(read(lines, **{"zone": UTC, **more})) == RUNS


def number(value: int | None) -> dict[str, object]:
    """A number as Slurm 23.11 and later show it."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


def job(new: bool, state: str, end: int, nodes: str = "n[1-2]", code: int = 0, task: int | None = None) -> dict[str, object]:
    """A job of `sacct --json`, of 22.05 or newer."""
    return {"job_id": 7, "name": "x", "nodes": nodes, "steps": [{}], "state": {"current": [state] if new else state, "reason": "None"},
            "time": {"start": 1000, "end": end, "submission": 900},
            "array": {"job_id": 6 if task is not None else 0, "task_id": number(task) if new else task}, "het": {"job_id": 0, "job_offset": number(None)},
            "exit_code": {"status": ["SUCCESS"] if new else "SUCCESS", "return_code": number(code) if new else code,
                          "signal": {"id": number(None), "name": ""}}}


@pytest.mark.parametrize("new", [False, True])
def test_json_of_both_kinds(new: bool) -> None:
    """States as text or lists, numbers bare or with `set` beside them."""
    jobs = [job(new, "FAILED", 2000, code=3), job(new, "RUNNING", 0, "n3", task=2), {**job(new, "PENDING", 0), "time": {"start": 0, "end": 0}}]
    found = read([json.dumps({"meta": {}, "jobs": jobs}, indent=1)])
    assert [(r.id, r.outcome, r.nodes, r.start, r.end) for r in found.runs] == [
        ("6_2", "RUNNING", ("n3",), 1_000_000, None), ("7", "FAILED, exit code 3", ("n1", "n2"), 1_000_000, 2_000_000)]
    assert (found.waiting, found.steps) == (1, 3)


BAD = [
    ("another text", ["hello", "world"], "a text without a head of sacct"),
    ("a column is missing", ["JobID|State|Start|End"], "no column NodeList"),
    ("cut JSON", ['{"jobs": [{"job_id": 1'], "no whole JSON of sacct"),
    ("another JSON", ['{"nodes": []}'], "no whole JSON of sacct"),
]


@pytest.mark.parametrize(("lines", "sentence"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_what_is_no_output_of_sacct(lines: list[str], sentence: str) -> None:
    """One sentence, with the command that prints one."""
    with pytest.raises(BadInput, match=sentence):
        read(lines)


ODD = [
    ROWS[2][:40], ROWS[2].replace("n1", "n[1-"), ROWS[2].replace("n1", "n[1-99999999]"), ROWS[2].replace(f"{DAY}13:37|00", f"{DAY}13:00|00"),
    ROWS[2].replace("FAILED", "what?"), ROWS[2].replace(f"|{DAY}13:37|00", "|Unknown|00"), ROWS[2].replace(f"{DAY}13:37", "9" * 30), "\x00" * 50,
]


@pytest.mark.parametrize("row", ODD)
def test_rows_that_cannot_be_read_are_counted(row: str) -> None:
    """Cut, hostile or contradictory rows are counted, the first is shown, and the others are read."""
    found = read([HEAD, row, ROWS[0]])
    assert (len(found.runs), found.unreadable, found.first_bad) == (1, 1, (2, row))


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=80), max_size=5))
def test_nothing_breaks_it(lines: list[str]) -> None:
    """Any rows under a good head are read, passed over or counted."""
    found = read([HEAD, *lines])
    assert len(found.runs) + found.unreadable <= len(lines)


def test_import_brings_runs_and_events_once(tmp_path: Path) -> None:
    """Runs stand in the inventory beside the store, with their own nodes; asking sacct again adds only what is new."""
    out = tmp_path / "out"
    first, later = tmp_path / "sacct.txt", tmp_path / "sacct-later.txt"
    first.write_text("\n".join([HEAD, *ROWS]) + "\n")
    later.write_text("\n".join([HEAD, *ROWS]).replace("RUNNING|0:0", "COMPLETED|0:0").replace("|Unknown|00:01:56", f"|{DAY}20:00|00:01:56") + "\n")
    (tmp_path / "inventory.yaml").write_text("nodes:\n- {name: n1, rack: r1}\njobs:\n- {id: own, nodes: [n9]}\n")
    import_history(ImportOptions(str(out), files=(str(first),), inventory=str(tmp_path / "inventory.yaml"), now_ms=T0))
    import_history(ImportOptions(str(out), files=(str(later),), now_ms=T0))
    done = import_history(ImportOptions(str(out), files=(str(first),), now_ms=T0))
    assert (done["jobs"], done["job_runs"], done["events"]) == (7, 8, 16)
    inventory = read_inventory(out / "inventory.json")
    assert inventory.nodes[0].rack == "r1"
    assert [(j.id, j.nodes) for j in inventory.jobs if j.id in ("own", "4")] == [("own", ("n9",)), ("4", ("n1", "n2")), ("4", ("n3", "n4"))]
    assert inventory.jobs[-2].end == "2026-11-28T18:20:00.000Z"
    store = DuckStore(out / "greylag.duckdb", retention_ms=2**53)
    shown = [(e.fields["phase"], e.fields.get("state"), e.fields.get("nodes")) for e in store.events(0, 2**53) if e.target.job == "4"]
    store.close()
    assert shown == [("start", None, "n1,n2"), ("end", "REQUEUED", None), ("restart", None, "n3,n4"), ("end", "COMPLETED", None)]


def test_a_requeued_job_is_on_the_nodes_of_its_run(tmp_path: Path) -> None:
    """The window knows the run of its moment, and a scheduler's start is no phase that excuses a stall."""
    first = tmp_path / "sacct.txt"
    first.write_text("\n".join([HEAD, *ROWS]) + "\n")
    import_history(ImportOptions(str(tmp_path / "out"), files=(str(first),), now_ms=T0))
    ring = Ring(read_inventory(tmp_path / "out" / "inventory.json"))
    seen = {}
    for second in (-6, 9, 24):
        at = T0 + second * 1000
        seen[second] = {j.id: (j.nodes, j.phase) for j in ring.window(at // 15_000 * 15_000).jobs}.get("4")
    assert seen == {-6: None, 9: (("n1", "n2"), "done"), 24: (("n3", "n4"), "unknown")}
