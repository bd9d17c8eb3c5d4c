"""Loki's past: every line once, whatever its order, limits, tenants and labels; what cannot be read whole is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import app.import_command as command
from app.import_command import ImportOptions, import_history
from collectors.history.loki import Entry, Loki
from collectors.history.web import Access, Server
from core.errors import BadInput, Unavailable
from pipeline.store.duck import DuckStore
from tests.history.loki_server import FakeLoki

T0 = 1_764_000_000_000
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."
STEP = "[2025-11-24 16:00:{:02d}] iteration {:8d}/ 1000 | elapsed time per iteration (ms): 1080.0 | lm loss: 3.0E+00 | grad norm: 1.0 |"


@pytest.fixture
def loki(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLoki]:
    """A Loki without lines; between tries nobody waits."""
    monkeypatch.setattr(command.time, "sleep", lambda seconds: None)
    made = FakeLoki()
    yield made
    made.close()


def options(loki: FakeLoki, out: Path, **more: object) -> ImportOptions:
    """An import of an hour."""
    given = {"start": str(T0 - 600_000), "end": str(T0 + 3_000_000), "match": ('{job="kernel"}',), "now_ms": T0 + 3_600_000, **more}
    return ImportOptions(str(out), loki.url, **given)  # type: ignore[arg-type]


def events(folder: Path) -> list[tuple[int, str, str | None, object]]:
    """(ms, kind, node or job, XID or phase) of a store's events."""
    store = DuckStore(folder / "greylag.duckdb", retention_ms=2**53)
    found = store.events(0, 2**53, limit=100_000)
    store.close()
    return [(e.at, e.kind, e.target.node or e.target.job, e.fields.get("xid", e.fields.get("phase"))) for e in found]


def read(loki: FakeLoki, direction: str, selectors: tuple[str, ...] = ('{a=~".+"}',), span: int = 100) -> list[Entry]:
    """All lines of the first ms."""
    server = Server(loki.url, Access(), lambda seconds: None)
    try:
        return Loki(server, direction).read(selectors, 0, span)
    finally:
        server.close()


ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(0, 2)), max_size=60)


@pytest.fixture(scope="module")
def quick() -> Iterator[FakeLoki]:
    """One server for all examples."""
    made = FakeLoki()
    yield made
    made.close()


@settings(max_examples=15)
@given(rows=ROWS, asked=st.sampled_from(["forward", "backward"]), only=st.sampled_from([None, "forward", "backward"]))
def test_pages_give_every_line_once(quick: FakeLoki, rows: list[tuple[int, int, int]], asked: str, only: str | None) -> None:
    """Any lines over any streams, many of one time and some equal, in pages of 25, however the server orders them."""
    quick.streams.clear()
    quick.most, quick.only = 25, only
    for stream in range(4):
        mine = [(ms / 10, f"line {word}") for ms, of, word in rows if of == stream]
        quick.add({"a": str(stream)}, mine)
    crowded = any(n >= 25 for n in Counter(ms for ms, _, _ in rows).values())
    wanted = Counter((round(ms / 10 * 1_000_000), (("a", str(of)),), f"line {word}") for ms, of, word in rows)
    with suppress(BadInput) if crowded else nullcontext():
        found = read(quick, asked)
        assert Counter(map(tuple, found)) == wanted
        assert [e.ns for e in found] == sorted(e.ns for e in found)


def test_two_selectors_of_one_line_give_it_once(loki: FakeLoki) -> None:
    """Equal lines of one stream stay two, and are not four."""
    loki.add({"a": "1", "b": "2"}, [(1, "x"), (1, "x"), (2, "y")])
    assert [e.line for e in read(loki, "forward", ('{a="1"}', '{b="2"}'))] == ["x", "x", "y"]


@pytest.mark.parametrize("only", [None, "backward"])
def test_more_lines_of_one_moment_than_a_page_holds_are_refused(loki: FakeLoki, only: str | None) -> None:
    """Nobody can page them; the sentence says when, and nothing is cut."""
    loki.most, loki.only = 20, only
    loki.add({"a": "1"}, [(1, "early")] + [(5, f"line {i}") for i in range(30)] + [(9, "late")])
    with pytest.raises(BadInput, match="a narrower selector is needed: the server gives 20 lines at once"):
        read(loki, "forward")


def test_kernel_and_trainer_lines_become_events_and_series(loki: FakeLoki, tmp_path: Path) -> None:
    """Labels say whose the lines are, structured metadata as well; metrics of a trainer's log are series."""
    loki.add({"job": "kernel", "host": "n17"}, [(T0, XID), (T0 + 1000, "usb 1-1: new device")])
    loki.add({"job": "kernel"}, [(T0 + 2000, XID, {"host": "n18"})])
    loki.add({"job": "trainer", "train_job": "llama"}, [(T0 + 5000 + i * 1000, STEP.format(i, 10 + i)) for i in range(20)])
    done = import_history(options(loki, tmp_path / "out", match=('{job="kernel"}', '{job="trainer"}')))
    assert (done["way"], done["lines"], done["lines_passed_over"]) == ("loki", 23, 0)
    kinds = {(kind, where, what) for _, kind, where, what in events(tmp_path / "out")}
    assert kinds == {("xid", "n17", 79), ("xid", "n18", 79), ("job_phase", "llama", "train")}
    assert done["series"] >= 3


def test_log_names_say_whose_lines_are(loki: FakeLoki, tmp_path: Path) -> None:
    """Labels that nobody knows are named by a pattern over them."""
    loki.add({"app": "host-logs", "machine_id": "n17"}, [(T0, XID)])
    names = ('machine_id="(?P<node>[^"]+)"',)
    import_history(options(loki, tmp_path / "out", match=('{app="host-logs"}',), log_names=names))
    assert [row[1:3] for row in events(tmp_path / "out")] == [("xid", "n17")]


def test_a_killed_import_goes_on_and_a_second_one_doubles_nothing(loki: FakeLoki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes away in the middle; the same command goes on, another one over the same time brings nothing new."""
    loki.add({"job": "kernel", "host": "n1"}, [(T0 + i * 60_000, XID) for i in range(40)])
    real, calls = loki.answer, []

    def failing(path: str, params: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        calls.append(path)
        return real(path, params, headers) if len(calls) != 5 and not 5 < len(calls) < 9 else (503, b"later")

    loki.answer = failing  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="goes on where this one ended"):
        import_history(options(loki, tmp_path / "out"))
    loki.answer = real  # type: ignore[method-assign]
    import_history(options(loki, tmp_path / "out"))
    import_history(options(loki, tmp_path / "out", match=('{job=~"kern.*"}',)))
    assert [at for at, *_ in events(tmp_path / "out")] == [T0 + i * 60_000 for i in range(40)]


def test_tenants_and_narrow_limits(loki: FakeLoki, tmp_path: Path) -> None:
    """Two tenants in one header; a server that allows an hour and 50 lines at once is asked so."""
    loki.tenants, loki.most, loki.widest_ms = ("a", "b"), 50, 900_000
    for tenant, host in (("a", "n1"), ("b", "n2"), ("c", "n3")):
        loki.add({"job": "kernel", "host": host}, [(T0 + i * 1000, XID) for i in range(100)], tenant)
    done = import_history(options(loki, tmp_path / "out", headers=("X-Scope-OrgID: a|b",)))
    assert done["lines"] == 200
    assert Counter(row[2] for row in events(tmp_path / "out")) == {"n1": 100, "n2": 100}


REFUSED = [
    ("no tenant", {"tenants": ("a",)}, {"match": ('{job="kernel"}',)}, "--header 'X-Scope-OrgID: TENANT' is needed"),
    ("no selector", {}, {"match": ()}, r"one is needed, such as '\{app=\"kernel\"\}'; the labels of this Loki are: app, host, job"),
    ("a selector that is none", {}, {"match": ("kernel",), "format": "loki"}, "the server says: parse error at line 1"),
    ("nothing there", {}, {"match": ('{job="nobody"}',)}, "no line of a kernel's or a trainer's log"),
    ("strange labels", {}, {"match": ('{app="x"}',)}, r"--log-names .* labels are \{app=\"x\"\}"),
]


@pytest.mark.parametrize(("server", "more", "sentence"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_bad_questions_get_one_sentence(loki: FakeLoki, tmp_path: Path, server: dict, more: dict, sentence: str) -> None:
    """What is missing, and how it is given; no store is left."""
    loki.add({"job": "kernel", "host": "n1"}, [(T0, XID)])
    loki.add({"app": "x"}, [(T0, "hello")])
    for name, value in server.items():
        setattr(loki, name, value)
    with pytest.raises(BadInput, match=sentence):
        import_history(options(loki, tmp_path / "out", **more))
    assert not (tmp_path / "out" / "greylag.duckdb").exists()


HOSTILE = [b"", b"null", b"[]", b'{"status":"success","data":{"resultType":"matrix","result":[]}}',
           b'{"status":"success","data":{"resultType":"streams","result":[{"stream":{},"values":[["x","y"]]}]}}',
           b'{"status":"success","data":{"resultType":"streams","result":[{"stream":{},"values":[["1","y"]]}]}}', b"[" * 100_000]


@pytest.mark.parametrize("body", HOSTILE, ids=["empty", "null", "list", "matrix", "no time", "another time", "deep"])
def test_answers_that_are_none_are_refused(loki: FakeLoki, tmp_path: Path, body: bytes) -> None:
    """Whatever comes, it is one sentence."""
    real = loki.answer
    loki.answer = lambda path, params, headers: (200, body) if path == "/loki/api/v1/query_range" else real(path, params, headers)  # type: ignore[method-assign]
    with pytest.raises(BadInput):
        import_history(options(loki, tmp_path / "out"))


def test_answers_that_break_off_are_asked_again(loki: FakeLoki, tmp_path: Path) -> None:
    """A cut connection is tried three times, and nothing is lost or doubled."""
    loki.add({"job": "kernel", "host": "n1"}, [(T0, XID)])
    loki.cuts = 2
    import_history(replace(options(loki, tmp_path / "out"), format="loki"))
    assert len(events(tmp_path / "out")) == 1
