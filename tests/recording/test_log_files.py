"""Logs within a recording: what dates their lines, and what becomes of them."""

from __future__ import annotations

import pytest
from recordings import T0, batches, events, opened, same, scrapes, write

from collectors.recording.log_file import Item, ordered
from core.clock import rfc3339
from core.types import Event, Target

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=p, GPU has fallen off the bus."
SAMPLE = f'x{{job="j",instance="n1:1"}} 1 {T0}\nx{{job="j",instance="n1:1"}} 2 {T0 + 600_000}\n'
BOOT = f'node_boot_time_seconds{{job="node",instance="n1:9100"}} {T0 // 1000 - 1000} {T0}\n'


@pytest.mark.parametrize(
    ("files", "line", "after"),
    [
        ({"x__prom": SAMPLE}, f"{rfc3339(T0 + 7000)} n1 kernel: {XID}", 7000),
        ({"x__prom": SAMPLE}, f"{rfc3339(T0 + 7000)[:-1]} {XID}", 7000),
        ({"x__prom": SAMPLE, "inventory__yaml": f"nodes: [{{name: n1, boot_time: {rfc3339(T0 - 5000)}}}]"}, f"[12.5] {XID}", 7500),
        ({"x__prom": BOOT + SAMPLE}, f"[1007.0] {XID}", 7000),
        ({"x__prom": BOOT + SAMPLE, "inventory__yaml": f"nodes: [{{name: n1, boot_time: {rfc3339(T0 - 5000)}}}]"}, f"[12.5] {XID}", 7500),
        ({"x__prom": BOOT.replace("n1:", "n2:") + SAMPLE}, f"[7.25] {XID}", 7250),
        ({"x__prom": SAMPLE}, f"[7.25] {XID}", 7250),
        ({"x__prom": SAMPLE}, f"[2000000.5] {XID}", 0),
        ({"x__prom": SAMPLE}, XID, 0),
        ({"x__csv": f"metric,instance,timestamp,value\nnode_boot_time_seconds,n1:9100,{T0},{T0 // 1000 - 1000}\n"}, f"[1007.0] {XID}", 7000),
    ],
    ids=["iso", "iso without zone", "boot_time", "node_boot_time", "boot_time first", "another node's boot", "start", "long before",
         "no time", "boot in a table"],
)
def test_what_dates_a_kernel_line(tmp_path, files, line: str, after: int) -> None:
    """Its own date, else boot_time, else node_boot_time_seconds, else the recording's first time."""
    (event,) = events(opened(write(tmp_path, **files, kernel__n1__log=line + "\n")))
    assert event.at == T0 + after


def test_a_syslog_date_gets_the_recordings_year(tmp_path) -> None:
    """2026 here."""
    (event,) = events(opened(write(tmp_path, x__prom=SAMPLE, kernel__n1__log=f"May 28 20:26:50 n1 kernel: {XID}\n")))
    assert rfc3339(event.at) == "2026-05-28T20:26:50.000Z"


def test_a_reboot_within_a_log(tmp_path) -> None:
    """`[seconds]` that begin anew are dated by the second boot that the samples tell."""
    second = T0 + 300_000
    boots = BOOT + f'node_boot_time_seconds{{job="node",instance="n1:9100"}} {second // 1000} {second + 15000}\n'
    found = events(opened(write(tmp_path, x__prom=boots, kernel__n1__log=f"[1010.0] {XID}\n[3.0] Linux version 6\n[20.0] {XID}\n")))
    assert [(e.kind, e.at - T0) for e in found] == [("xid", 10_000), ("boot", 303_000), ("xid", 320_000)]


def test_the_start_of_a_recording_is_no_boot(tmp_path) -> None:
    """Nothing is made up at its beginning or its end."""
    recording = opened(write(tmp_path, x__prom=BOOT + SAMPLE, kernel__n1__log="[1001.0] nothing of note\n", trainer__j__log="hello\n"))
    found = batches(recording)
    assert [e for b in found for e in b.events] == []
    assert sum(len(b.scrapes) for b in found) == 3


@pytest.mark.parametrize(
    ("extra", "device", "gpu_id"),
    [
        ({}, "0000:9b:00.0", None),
        ({"inventory__yaml": "nodes: [{name: n1, gpus: [{index: 4, uuid: GPU-4, pci: '00000000:9B:00.0'}]}]"}, "4", "GPU-4"),
        ({"g__prom": f'DCGM_FI_DEV_GPU_TEMP{{gpu="2",UUID="GPU-2",pci_bus_id="00000000:9B:00.0",Hostname="n1"}} 40 {T0}\n'}, "2", "GPU-2"),
    ],
)
def test_a_gpu_is_named_as_people_name_it(tmp_path, extra, device: str, gpu_id: str | None) -> None:
    """By the inventory, else by samples that carry the PCI address, else by the address."""
    (event,) = events(opened(write(tmp_path, x__prom=SAMPLE, kernel__n1__log=f"{rfc3339(T0 + 7000)} {XID}\n", **extra)))
    assert (event.target.node, event.target.device, event.target.id) == ("n1", device, gpu_id)


def test_trainer_readings_are_scrapes_but_no_samples(tmp_path) -> None:
    """They carry the trainer's series names and signals; `samples` counts only what was read as samples."""
    line = "iteration {}/90 | elapsed time per iteration (ms): 2000.0 | lm loss: 1.5 | grad norm: 1.0 |\n"
    recording = opened(write(tmp_path, x__prom=SAMPLE, trainer__job7__log="".join(line.format(i) for i in (1, 2, 3))))
    found = batches(recording)
    layouts = [one for b in found for one in b.layouts if one.target_id.startswith("log/")]
    assert {one.job for one in layouts} == {"job7"}
    assert {"greylag_train_step", "greylag_train_loss"} <= {s.name for one in layouts for s in one.series}
    assert {"rank.step", "rank.loss", "rank.loss_nonfinite"} <= {r.signal for one in layouts for r in one.signals}
    rows = [(at, row) for at, target, row in scrapes(opened(tmp_path)) if target.startswith("log/")]
    assert [at for at, _ in rows] == [2000, 4000, 6000]
    assert (recording.counts.samples, recording.counts.events) == (2, 1)


def test_readings_of_one_time_are_kept_apart(tmp_path) -> None:
    """HF dicts without any time: each is a reading, a millisecond after the one before."""
    line = "{'loss': 0.5, 'grad_norm': nan, 'epoch': 0.1}\n"
    rows = [at for at, target, _ in scrapes(opened(write(tmp_path, x__prom=SAMPLE, trainer__j__log=line * 3))) if target.startswith("log/")]
    assert rows == [0, 1, 2]


def test_first_and_last_are_over_all_inputs(tmp_path) -> None:
    """Lines that say nothing have times, too; lines without a date are placed before the ends are taken."""
    recording = opened(write(
        tmp_path, x__prom=SAMPLE, kernel__n1__log=f"{rfc3339(T0 - 30_000)} nothing\n",
        trainer__j__log="iteration 1/9 | elapsed time per iteration (ms): 900000.0 | lm loss: 1.0 |\n"))
    assert (recording.first_at, recording.last_at) == (T0 - 30_000, T0 + 870_000)


def test_a_log_alone_is_a_recording(tmp_path) -> None:
    """Without any date it starts at a date that nobody takes for a real one, and goes on by its own time."""
    line = "iteration {}/90 | elapsed time per iteration (ms): 2000.0 | lm loss: 1.5 |\n"
    recording = opened(write(tmp_path, trainer__j__log="".join(line.format(i) for i in range(1, 11))))
    assert (rfc3339(recording.first_at or 0), rfc3339(recording.last_at or 0)) == ("2000-01-01T00:00:02.000Z", "2000-01-01T00:00:20.000Z")


def test_logs_one_after_the_other_are_sorted(tmp_path) -> None:
    """The logs of two ranks joined end to end: far out of order, sorted on disk, the same twice."""
    lines = [f"[{rfc3339(T0 + i * 15_000)[:-1]}] [rank{r}]: iteration {i + 1}/90 | elapsed time per iteration (ms): 15000 | lm loss: 1 |"
             for r in range(2) for i in range(40)]
    write(tmp_path, trainer__j__log="\n".join(lines))
    found = batches(opened(tmp_path))
    times = [s.at for b in found for s in b.scrapes]
    assert times == sorted(times)
    assert len(times) == 80
    assert same(found, batches(opened(tmp_path)))


def test_a_storm_is_an_event_each(tmp_path, monkeypatch) -> None:
    """Thousands of equal lines (case P08), also when they have to be sorted in runs on disk."""
    monkeypatch.setattr("collectors.recording.log_file.RUN_ITEMS", 700)
    lines = [f"{rfc3339(T0 + (i % 3) * 100_000)} {XID}" for i in range(3000)]
    recording = opened(write(tmp_path, kernel__n1__log="\n".join(lines)))
    found = events(recording)
    assert [e.at for e in found] == sorted(e.at for e in found)
    assert (len(found), recording.counts.events) == (3000, 3000)


def test_binary_garbage_is_read_past(tmp_path) -> None:
    """And counted."""
    data = b"\x00\xff\xfe garbage\n" * 3 + f"{rfc3339(T0)} {XID}\n".encode() + b"\xf0\x28"
    recording = opened(write(tmp_path, kernel__n1__log=data))
    assert [e.kind for e in events(recording)] == ["xid"]
    assert recording.tolerated["bad_utf8"] == 4


def test_two_items_of_one_line_keep_their_order() -> None:
    """A line may say several things at one time: a rule's end and its own event."""
    items = [Item(at, line, (Event(at, Target("job", job=name), "job_phase"),), ()) for at, line, name in
             ((5, 1, "b"), (5, 1, "a"), (3, 2, "c"), (9, 3, "d"))]
    assert list(ordered(iter(items), 2)) == [items[2], items[0], items[1], items[3]]
