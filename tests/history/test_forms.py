"""The forms in which history comes: remote read's bytes, VictoriaMetrics' lines, promtool's dump, times and selectors."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.import_command import ImportOptions, duration_ms, import_history, moment
from app.processes import free_port
from collectors.history.pieces import Piece
from collectors.history.protobuf import read_response, write_response
from collectors.history.selector import predicate, read_selector, selector_text
from collectors.history.vm_export import VmExport
from collectors.recording.dump_file import read_pairs, unquoted
from core.derive import STALE_NAN, absent
from core.errors import BadInput, SourceError
from tests import needs
from tests.history.conftest import Made, judged_lines, story
from tests.history.servers import differences, prometheus, stored_past

BITS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
VALUES = st.one_of(st.just(0.0), st.just(STALE_NAN), st.just(-0.0), BITS)
TIMES = st.one_of(st.integers(1_600_000_000_000, 1_900_000_000_000), st.integers(-(2**62), 2**62))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def same_bits(one: np.ndarray, two: np.ndarray) -> bool:
    return np.asarray(one, np.float64).tobytes() == np.asarray(two, np.float64).tobytes()


@given(st.lists(st.tuples(TEXTS, st.lists(st.tuples(TIMES, VALUES), max_size=12)), max_size=4))
def test_remote_read_bytes_come_back(series: list[tuple[str, list[tuple[int, float]]]]) -> None:
    """Any times and any bits, zeros among them, which proto3 leaves out."""
    pieces = [Piece(f"m{i}", (("l", text),) if text else (), np.array([t for t, _ in rows], np.int64),
                    np.array([v for _, v in rows], np.float64)) for i, (text, rows) in enumerate(series)]
    found = list(read_response(write_response(pieces)))
    assert [(p.name, p.labels, p.at.tolist()) for p in found] == [(p.name, p.labels, p.at.tolist()) for p in pieces]
    assert all(same_bits(a.values, b.values) for a, b in zip(found, pieces, strict=True))


@given(st.binary(max_size=60), st.integers(0, 200))
def test_broken_bytes_are_refused_by_name(noise: bytes, cut: int) -> None:
    """Noise and cut answers: SourceError or series, never another error."""
    whole = write_response([Piece("up", (("job", "j"),), np.array([10**12, 10**12 + 1], np.int64), np.array([0.0, 1.5]))])
    reasons: set[str] = set()
    for body in (noise, whole[:cut], whole[:cut] + noise):
        try:
            list(read_response(body))
        except SourceError as error:
            reasons.add(error.reason)
    assert reasons <= {"truncated", "bad_syntax", "bad_encoding"}


VM_LINES = [
    (b'{"metric":{"__name__":"a","le":"+Inf"},"values":[1.5,+Inf,-Inf,null],"timestamps":[1,2,3,4]}', "a", (("le", "+Inf"),),
     [1.5, float("inf"), float("-inf"), STALE_NAN]),
    (b'{"metric":{"__name__":"a","x":"q\\"values\\":[\\n"},"values":[0],"timestamps":[7]}', "a", (("x", 'q"values":[\n'),), [0.0]),
    (b'{"metric":{"__name__":"a"},"values":["NaN","Infinity"],"timestamps":[1,2]}', "a", (), [float("nan"), float("inf")]),
    (b'{"metric":{"x":"1"},"values":[],"timestamps":[]}', "", (("x", "1"),), []),
]


@pytest.mark.parametrize(("line", "name", "labels", "values"), VM_LINES)
def test_lines_of_victoria_metrics(line: bytes, name: str, labels: tuple[object, ...], values: list[float]) -> None:
    """Numbers that are no JSON, labels that look like the rest of the line, stale markers as null."""
    piece = VmExport(None)._piece(line)  # type: ignore[arg-type]
    assert (piece.name, piece.labels) == (name, labels)
    assert same_bits(np.nan_to_num(piece.values, nan=-1) if not absent(piece.values).any() else piece.values,
                     np.nan_to_num(np.array(values), nan=-1) if not absent(piece.values).any() else np.array(values))


DUMPED = [
    (r'{__name__="up", job="node"}', {"__name__": "up", "job": "node"}),
    (r'{__name__="a", p="C:\\tmp \"x\"\ny\té\x00\u2603"}', {"__name__": "a", "p": 'C:\\tmp "x"\ny\té\x00☃'}),
    (r'{"__name__"="a", "odd.name"="}, {"}', {"__name__": "a", "odd.name": "}, {"}),
    ("{}", {}),
]


@pytest.mark.parametrize(("text", "labels"), DUMPED)
def test_labels_of_a_dump(text: str, labels: dict[str, str]) -> None:
    """As Go quotes them, and with quoted names as newer promtools write them."""
    assert read_pairs(text) == labels


@given(TEXTS)
def test_go_quoting_comes_back(text: str) -> None:
    """Escapes of JSON are a part of Go's."""
    assert unquoted(json.dumps(text, ensure_ascii=False).replace("\\/", "/")) == text


def test_a_dump_of_a_real_prometheus(made: Made, tmp_path: Path, told: list[str]) -> None:
    """`promtool tsdb dump` of the data folder: every sample to the bit, the same incidents and findings; by file and by replay."""
    promtool = needs.program("promtool")
    with prometheus(tmp_path / "p", free_port(), made.open_metrics):
        pass
    with open(tmp_path / "history.dump", "wb") as out:
        subprocess.run([promtool, "tsdb", "dump", str(tmp_path / "p" / "data")], stdout=out, check=True)
    import_history(ImportOptions(str(tmp_path / "store"), None, (str(tmp_path / "history.dump"),)))
    assert differences(made.past, stored_past(tmp_path / "store")) == []
    assert judged_lines(story(tmp_path / "store")) == judged_lines(told)


T0 = 1_780_000_000_000
DUMP = "\n".join([
    *(f'{{__name__="a", instance="i:1", job="j"}} {v} {T0 + i * 15_000}' for i, v in enumerate(["1", "NaN", "2", "NaN", "NaN", "+Inf", "NaN"])),
    *(f'{{__name__="b", instance="i:1", job="j"}} {v} {T0 + i * 15_000}' for i, v in enumerate(["NaN", "1e-3"])),
    f'{{__name__="h", instance="i:1", job="j"}} {{count:3, sum:1.5, [1,2]:3}} {T0}', "",
])
KEPT = {"a": {0: 1.0, 30_000: 2.0, 45_000: "nan", 60_000: "nan", 75_000: float("inf")}, "b": {15_000: 0.001}}


def shown(folder: Path) -> dict[str, dict[int, object]]:
    return {key[0]: {at - T0: "nan" if np.isnan(v) else v for at, v in points.items()} for key, points in stored_past(folder).items()}


@pytest.mark.parametrize("packed", [False, True])
def test_nan_in_a_dump(tmp_path: Path, packed: bool) -> None:
    """One NaN alone is a stale marker, several in a row are values; native histograms are passed over and counted."""
    file = tmp_path / ("x.dump.gz" if packed else "x.dump")
    file.write_bytes(gzip.compress(DUMP.encode()) if packed else DUMP.encode())
    said: list[str] = []
    import_history(ImportOptions(str(tmp_path / "store"), None, (str(file),)), said.append)
    assert shown(tmp_path / "store") == KEPT
    assert "1 native histograms were passed over" in said


def test_a_dump_on_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` reads the pipe; selectors and times narrow it."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(DUMP.encode())))
    import_history(ImportOptions(str(tmp_path / "store"), None, ("-",), format="tsdb-dump", match=("a",), start=str(T0 + 1), end=str(T0 + 60_000)))
    assert shown(tmp_path / "store") == {"a": {30_000: 2.0, 45_000: "nan", 60_000: "nan"}}


@pytest.mark.parametrize("line", ["up 1 1700000000000", '{__name__="up"} 1', '{__name__="up"} one 1700000000000', '{__name__="up" x} 1 2', "{__name__"])
def test_what_is_no_dump(tmp_path: Path, line: str) -> None:
    """File and line, and what a line looks like."""
    (tmp_path / "x.dump").write_text(DUMP + line + "\n")
    with pytest.raises(BadInput, match=r"x\.dump:11: got .*a line of `promtool tsdb dump` is needed"):
        import_history(ImportOptions(str(tmp_path / "store"), None, (str(tmp_path / "x.dump"),)))


MOMENTS = [("now", 0), ("30d", -2_592_000_000), ("-1h30m", -5_400_000), ("1780000000", T0 - 1_790_000_000_000),
           ("1780000000.5", T0 + 500 - 1_790_000_000_000), ("1780000000123", T0 + 123 - 1_790_000_000_000),
           ("2026-05-28T20:26:40Z", T0 - 1_790_000_000_000), ("2026-05-28T22:26:40+02:00", T0 - 1_790_000_000_000)]


@pytest.mark.parametrize(("text", "offset"), MOMENTS)
def test_times(text: str, offset: int) -> None:
    """RFC 3339, seconds, milliseconds, and times ago."""
    assert moment(text, "--start", 1_790_000_000_000) == 1_790_000_000_000 + offset


@pytest.mark.parametrize(("text", "ms"), [("15s", 15_000), ("500ms", 500), ("1m30s", 90_000), ("2", 2000)])
def test_durations(text: str, ms: int) -> None:
    """As Prometheus writes them."""
    assert duration_ms(text, "--step") == ms


@pytest.mark.parametrize("text", ["up", '{job="x"}', 'a{b=~"c.*",d!="e\\"f",g!~"h|i"}', '{__name__!=""}'])
def test_selectors_come_back(text: str) -> None:
    """What is read from a selector's own text is the same."""
    assert read_selector(selector_text(read_selector(text))) == read_selector(text)


@pytest.mark.parametrize(("text", "hits"), [("up", True), ('{job=~"no.*"}', True), ('{job=~"no"}', False), ('up{rack=""}', True),
                                            ('{rack!=""}', False), ('{__name__!~"u.*",job="node"}', False)])
def test_selectors_of_files(text: str, hits: bool) -> None:
    """Patterns are anchored, a label that is not there is empty."""
    assert predicate(read_selector(text))("up", {"job": "node"}) is hits
