"""The sentences of DESIGN §5 on replay, one by one, at the command itself."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import main
from app.replay import ReplayOptions, replay
from tests.evaluate.plan import Plan, draw
from tests.evaluate.recordings import write

Answer = tuple[int, str, str]
T0 = 1_772_000_000_000
# Two nodes of two GPUs for a quarter of an hour: the smallest recording with an incident.
SMALL = {"interval": 15, "seconds": 900, "gpus": 2, "used": 2, "address": "host"}


def hang_plan(**fixed: object) -> Plan:
    """The small recording, in time order unless another form is asked for."""
    return draw(150, "stalled_loss", **{**SMALL, "form": "time", **fixed})
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
TIME_KEYS = {"at", "onset_at", "opened_at", "updated_at", "started_at", "ended_at", "resolved_at"}
INCIDENT_KEYS = {"id", "fault", "scope", "culprit", "confidence", "suspects", "victims", "findings", "jobs", "lost_gpu_hours",
                 "owner", "class", "state", "merged_into", "onset_at", "opened_at", "updated_at"}
TARGET_KEYS = {"kind", "node", "device", "id", "job", "rank", "serial"}


@pytest.fixture
def greylag(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs the command in this process; gives exit status, stdout and stderr."""

    def run(*args: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["greylag", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0 if code is None else 1), said.out, said.err

    return run


@pytest.fixture(scope="module")
def hang(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small recording with a stalled job."""
    folder = tmp_path_factory.mktemp("hang")
    write(hang_plan(), folder)
    return folder


@pytest.fixture(scope="module")
def told(hang: Path) -> str:
    """What a replay of the recording says."""
    lines: list[str] = []
    replay(ReplayOptions((str(hang),)), lines.append)
    return "".join(line + "\n" for line in lines)


def page(times: list[int], name: str = "node_load1") -> str:
    return "".join(f'{name}{{instance="n1:9100",job="node"}} {i} {at}\n' for i, at in enumerate(times))


def summary_of(out: str) -> dict[str, object]:
    return dict(json.loads(out.splitlines()[-1]))


@pytest.mark.parametrize("name", ["a.prom", "a.om", "a.csv", "a.parquet", "kernel.n1.log", "trainer.j.log"])
def test_empty_file_is_an_empty_input(greylag: Callable[..., Answer], tmp_path: Path, name: str) -> None:
    """An empty file of any kind gives the empty summary with null times and exit 0."""
    (tmp_path / name).touch()
    code, out, _ = greylag("replay", "--json", tmp_path / name)
    assert (code, json.loads(out)) == (0, {"type": "summary", "samples": 0, "events": 0, "findings": 0, "incidents": 0,
                                           "started_at": None, "ended_at": None})


BAD = {
    "no time": ("a.prom", b'up{instance="a:1"} 1\n'),
    "no number": ("a.prom", b'up{instance="a:1"} 1 1772000000000\nup{instance="a:1"} x 1772000015000\n'),
    "half a line": ("a.prom", b'up{instance="a:1"} 1 1772000000000\nup{instance="a'),
    "half a gzip": ("a.prom.gz", gzip.compress(b'up{instance="a:1"} 1 1772000000000\n' * 50, mtime=0)[:40]),
    "no gzip": ("a.prom.gz", b"plain text"),
    "no parquet": ("a.parquet", b"PAR1 nothing"),
    "a column lacks": ("a.csv", b"metric,value\nup,1\n"),
    "a null time": ("a.csv", b"metric,timestamp,value\nup,,1\n"),
    "an unknown key": ("inventory.yaml", b"nodes:\n- {name: n1, colour: red}\n"),
    "another name": ("notes.txt", b"hello"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_sentence(greylag: Callable[..., Answer], tmp_path: Path, what: str) -> None:
    """Bad input is exit 2 and one sentence that names the file, and nothing on stdout."""
    name, body = BAD[what]
    (tmp_path / name).write_bytes(body)
    code, out, err = greylag("replay", "--json", tmp_path / name)
    assert (code, out, err.count("\n")) == (2, "", 1), (out, err)
    assert name in err


def test_missing_path_is_one_sentence(greylag: Callable[..., Answer], tmp_path: Path) -> None:
    """A path that does not exist is exit 2."""
    code, out, err = greylag("replay", "--json", tmp_path / "none.prom")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_exit_status_of_an_incident(greylag: Callable[..., Answer], hang: Path) -> None:
    """With --fail-on incident an incident is exit 1, for people as well."""
    code, out, _ = greylag("replay", hang, "--fail-on", "incident")
    assert code == 1
    assert "1 incidents" in out or "1 incident" in out


def test_nothing_found_does_not_fail(greylag: Callable[..., Answer], tmp_path: Path) -> None:
    """Without an incident --fail-on incident is exit 0; a word that is not allowed is exit 2."""
    (tmp_path / "a.prom").write_text(page([T0, T0 + 15_000]))
    assert greylag("replay", tmp_path, "--json", "--fail-on", "incident")[0] == 0
    assert greylag("replay", tmp_path, "--json", "--fail-on", "finding")[0] == 2


def test_lines_of_a_replay(told: str) -> None:
    """Objects one a line, in time order, the summary last and right; keys are always there; times are RFC 3339 with ms."""
    rows = [json.loads(line) for line in told.splitlines()]
    assert {r["type"] for r in rows} <= {"incident", "finding", "event", "coverage", "action", "summary"}
    assert [r["type"] for r in rows].index("summary") == len(rows) - 1
    times = [r["at"] for r in rows[:-1]]
    assert times == sorted(times)
    last = rows[-1]
    assert set(last) == {"type", "samples", "events", "findings", "incidents", "started_at", "ended_at"}
    assert last["incidents"] == len({r["incident"]["id"] for r in rows if r["type"] == "incident"}) == 1
    assert last["findings"] == sum(r["type"] == "finding" and r["event"] == "opened" for r in rows)
    assert last["events"] == sum(r["type"] == "event" for r in rows)
    for row in rows:
        _check_times(row)
    for one in (r["incident"] for r in rows if r["type"] == "incident"):
        assert set(one) >= INCIDENT_KEYS
        assert one["culprit"] is None or set(one["culprit"]) == TARGET_KEYS
        assert all(set(s) == {"target", "probability", "reasons"} for s in one["suspects"])


def _check_times(value: object) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in TIME_KEYS and inner is not None:
                assert TIME.fullmatch(str(inner)), (key, inner)
            _check_times(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_times(inner)


def test_two_replays_are_equal_and_order_is_free(greylag: Callable[..., Answer], hang: Path, told: str) -> None:
    """The same bytes again, by the command, for the files one by one in the reverse order; an incident alone is exit 0."""
    code, out, _ = greylag("replay", "--json", *sorted(hang.iterdir(), reverse=True))
    assert (code, out) == (0, told)


def test_samples_count_what_was_read(greylag: Callable[..., Answer], tmp_path: Path) -> None:
    """`samples` counts what inputs hold, repeats included, and nothing that logs give."""
    (tmp_path / "a.prom").write_text(page([T0, T0 + 15_000, T0 + 15_000]) + page([T0], "node_time_seconds"))
    (tmp_path / "trainer.j.log").write_text(
        " [2026-02-25 06:14:00] iteration 10/ 100 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.0E+00 | grad norm: 1.0 |\n")
    found = summary_of(greylag("replay", "--json", tmp_path)[1])
    assert found["samples"] == 4


def test_started_and_ended_are_of_all_inputs(greylag: Callable[..., Answer], tmp_path: Path) -> None:
    """The summary's times are the first and last of any input, logs included."""
    (tmp_path / "a.prom").write_text(page([T0, T0 + 15_000]))
    (tmp_path / "kernel.n1.log").write_text("2026-02-25T06:30:00Z n1 kernel: NVRM: Xid (PCI:0000:53:00): 31, pid=1, name=x, MMU\n")
    found = summary_of(greylag("replay", "--json", tmp_path)[1])
    assert (found["started_at"], found["ended_at"], found["events"]) == (
        "2026-02-25T06:13:20.000Z", "2026-02-25T06:30:00.000Z", 1)


def test_seconds_and_milliseconds_are_the_same_instants(greylag: Callable[..., Answer], tmp_path: Path) -> None:
    """The same samples as *.prom in ms and as *.om in seconds give the same output."""
    times = [T0 + 15_000 * i for i in range(8)]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "x.prom").write_text(page(times))
    body = "".join(f'node_load1{{instance="n1:9100",job="node"}} {i} {at / 1000:.3f}\n' for i, at in enumerate(times))
    (tmp_path / "b" / "x.om").write_text(body + "# EOF\n")
    assert greylag("replay", "--json", tmp_path / "a")[1] == greylag("replay", "--json", tmp_path / "b")[1]


def test_form_of_the_file_does_not_matter(greylag: Callable[..., Answer], tmp_path: Path, told: str) -> None:
    """The recording grouped by family, and packed, gives the same output."""
    write(hang_plan(form="family"), tmp_path)
    for file in tmp_path.glob("*.prom"):
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert greylag("replay", "--json", tmp_path)[1] == told
