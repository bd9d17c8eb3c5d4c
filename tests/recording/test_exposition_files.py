"""Recordings in exposition formats: order, times, scrapes, staleness, errors."""

from __future__ import annotations

import gzip
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import T0, MemorySorter, batches, opened, same, scrapes, write

from core.errors import BadInput

A = 'a{job="j",instance="n1:1"}'
B = 'b{job="j",instance="n1:1",gpu="0"}'


def page(*lines: str) -> str:
    """Lines whose last word is ms after T0."""
    out = []
    for line in lines:
        head, _, at = line.rpartition(" ")
        out.append(f"{head} {T0 + int(at)}")
    return "\n".join(out) + "\n"


def test_samples_of_one_instance_at_one_time_are_one_scrape(tmp_path) -> None:
    """Two series, two times: two scrapes of one target, counted as four samples."""
    recording = opened(write(tmp_path, x__prom=page(f"{A} 1 0", f"{B} 2 0", f"{A} 3 15000", f"{B} 4 15000")))
    assert scrapes(recording) == [(0, "j/n1:1", {"a": 1, "b{gpu=0}": 2}), (15000, "j/n1:1", {"a": 3, "b{gpu=0}": 4})]
    assert (recording.counts.samples, recording.counts.events) == (4, 0)


def test_a_series_that_the_next_scrape_lacks_is_stale(tmp_path) -> None:
    """It stands in the layout with the stale marker, and comes back."""
    recording = opened(write(tmp_path, x__prom=page(f"{A} 1 0", f"{B} 2 0", f"{A} 3 15000", f"{A} 4 30000", f"{B} 5 30000")))
    assert [row for _, _, row in scrapes(recording)] == [
        {"a": 1, "b{gpu=0}": 2}, {"a": 3, "b{gpu=0}": None}, {"a": 4, "b{gpu=0}": 5}]


def test_grouped_by_family_is_the_same_as_in_time_order(tmp_path) -> None:
    """A file that lists one family after the other goes through the sorter and gives the same scrapes."""
    lines = [f'm{m}{{job="j",instance="n{n}:1"}} {m * n + t}.5 {t * 15000}' for t in range(30) for n in range(3) for m in range(4)]
    in_time = scrapes(opened(write(tmp_path / "a", x__prom=page(*lines))))
    before = MemorySorter.made
    grouped = scrapes(opened(write(tmp_path / "b", x__prom=page(*sorted(lines, key=lambda line: line.split("{")[0])))))
    assert sorted(in_time) == sorted(grouped) or [sorted(r[2].items()) for r in in_time] == [sorted(r[2].items()) for r in grouped]
    assert MemorySorter.made == before + 1


def test_a_little_out_of_order_streams(tmp_path) -> None:
    """Up to a minute needs no sorter."""
    lines = [f"{A} {i} {i * 1000}" for i in range(300)]
    for start in range(0, 300, 50):
        block = lines[start : start + 50]
        random.Random(start).shuffle(block)
        lines[start : start + 50] = block
    before = MemorySorter.made
    recording = opened(write(tmp_path, x__prom=page(*lines)))
    assert [(at, row["a"]) for at, _, row in scrapes(recording)] == [(i * 1000, i) for i in range(300)]
    assert MemorySorter.made == before


def test_files_are_merged_in_time(tmp_path) -> None:
    """Two files with one instance each, and one instance spread over both."""
    recording = opened(write(
        tmp_path, a__prom=page(f"{A} 1 0", f"{A} 2 15000"), b__prom=page(f"{B} 3 0", f"{B} 4 15000"),
        c__prom=page('a{job="j",instance="n2:1"} 9 15000')))
    assert scrapes(recording) == [
        (0, "j/n1:1", {"a": 1, "b{gpu=0}": 3}), (15000, "j/n1:1", {"a": 2, "b{gpu=0}": 4}), (15000, "j/n2:1", {"a": 9})]


def test_openmetrics_times_are_seconds(tmp_path) -> None:
    """With exemplars, a missing `# EOF`, and one in the middle."""
    text = (
        "# TYPE a counter\n"
        f'a_total{{job="j",instance="n1:1"}} 1 {T0 / 1000:.3f} # {{trace_id="x y"}} 0.5 {T0 / 1000:.3f}\n'
        "# EOF\n# TYPE a counter\n"
        f'a_total{{job="j",instance="n1:1"}} 2 {T0 / 1000 + 1.25:.3f} # {{trace_id="z"}} 0.5\n'
    )
    recording = opened(write(tmp_path, x__om=text))
    assert scrapes(recording) == [(0, "j/n1:1", {"a_total": 1}), (1250, "j/n1:1", {"a_total": 2})]
    assert (recording.first_at, recording.last_at) == (T0, T0 + 1250)


def test_types_and_repeated_families(tmp_path) -> None:
    """HELP and TYPE are optional and may repeat; the type reaches the layout."""
    text = "# HELP a h\n# TYPE a counter\n" + page(f"{A} 1 0") + "# TYPE b gauge\n" + page(f"{B} 2 0") + "# TYPE a counter\n" + page(
        f"{A} 3 15000")
    found = batches(opened(write(tmp_path, x__prom=text)))
    assert [(s.name, s.type) for s in found[0].layouts[0].series] == [("a", "counter"), ("b", "gauge")]


def test_a_nan_is_a_value(tmp_path) -> None:
    """Only what is not there is stale."""
    rows = scrapes(opened(write(tmp_path, x__prom=page(f"{A} NaN 0", f"{B} +Inf 0"))))
    assert math.isnan(rows[0][2]["a"] or 0.0)
    assert rows[0][2]["b{gpu=0}"] == math.inf


def test_blanks_of_dcgm_are_absent(tmp_path) -> None:
    """As live."""
    line = 'DCGM_FI_DEV_GPU_TEMP{{gpu="{}",Hostname="n1"}} {} 0'
    rows = scrapes(opened(write(tmp_path, x__prom=page(line.format(0, 45), line.format(1, 2147483632)))))
    assert list(rows[0][2].values()) == [45, None]


@pytest.mark.parametrize(
    ("labels", "target", "node"),
    [
        ('job="dcgm",instance="n1:9400"', "dcgm/n1:9400", "n1"),
        ('job="dcgm",instance="[::1]:9400"', "dcgm/[::1]:9400", "::1"),
        ('job="j",instance="10.0.0.1:9400",node="n7"', "j/10.0.0.1:9400", "n7"),
        ('instance="n1:9400"', "n1:9400", "n1"),
        ('Hostname="n2"', "n2", "n2"),
        ('hostname="n2"', "n2", "n2"),
        ('kubernetes_node="n2"', "n2", "n2"),
        ('node="n2"', "n2", "n2"),
        ('node="0"', "n9", "n9"),
        ("", "n9", "n9"),
    ],
)
def test_what_names_the_instance(tmp_path, labels: str, target: str, node: str) -> None:
    """job and instance, else what names the node, else the file; a NUMA node's number names nothing."""
    found = batches(opened(write(tmp_path, n9__prom=page(f"x{{{labels}}} 1 0"))))
    assert [(one.target_id, one.node) for b in found for one in b.layouts] == [(target, node)]


def test_different_jobs_on_one_instance_are_different_targets(tmp_path) -> None:
    """And their rhythms do not make each other's series stale."""
    fast = [f'f{{job="x",instance="n1"}} {i} {i * 5000}' for i in range(6)]
    slow = [f's{{job="y",instance="n1"}} {i} {i * 15000}' for i in range(2)]
    rows = scrapes(opened(write(tmp_path, x__prom=page(*sorted(fast + slow, key=lambda line: int(line.split()[-1]))))))
    assert all(None not in row.values() for _, _, row in rows)
    assert {target for _, target, _ in rows} == {"x/n1", "y/n1"}


@pytest.mark.parametrize("labels", ['instance="n1"', 'node="n1"'])
def test_exporters_that_share_a_node_label_are_read_apart(tmp_path, labels: str) -> None:
    """A recording without jobs mixes exporters of different rhythm; none makes another's series stale."""
    gpu = [f'DCGM_FI_DEV_GPU_TEMP{{gpu="0",{labels}}} 50 {t}' for t in range(0, 60000, 15000)]
    job = [f'greylag_train_step{{rank="0",{labels}}} {t} {t}' for t in range(0, 60000, 5000)]
    rows = scrapes(opened(write(tmp_path, x__prom=page(*sorted(gpu + job, key=lambda line: int(line.split()[-1]))))))
    assert all(None not in row.values() for _, _, row in rows)


def test_families_with_times_of_their_own_do_not_flap(tmp_path) -> None:
    """An exporter that stamps its families some ms apart: each is whole at its own time, none is stale at the other's."""
    lines = [f"{s} {t} {t + o}" for t in range(0, 60000, 15000) for s, o in ((A, 0), (B, 3))]
    rows = scrapes(opened(write(tmp_path, x__prom=page(*lines))))
    assert len(rows) == 8
    assert all(None not in row.values() for _, _, row in rows)


def test_a_node_label_must_be_shared_to_name_the_target(tmp_path) -> None:
    """A page that speaks of many nodes is of none of them."""
    found = batches(opened(write(tmp_path, x__prom=page(
        'k{job="ksm",instance="m:1",node="n1"} 1 0', 'k{job="ksm",instance="m:1",node="n2"} 1 0'))))
    assert [one.node for b in found for one in b.layouts] == ["m"]


def test_numa_numbers_beside_a_node_label(tmp_path) -> None:
    """node_exporter's own `node="0"` does not hide the node's name."""
    found = batches(opened(write(tmp_path, x__prom=page(
        'node_load1{job="n",instance="10.1.1.1:1",node="n1"} 1 0', 'node_memory_numa{job="n",instance="10.1.1.1:1",node="0"} 1 0'))))
    assert [one.node for b in found for one in b.layouts] == ["n1"]


def test_a_repeat_counts_as_read_and_the_first_is_kept(tmp_path) -> None:
    """`samples` counts what was read; repeats are told apart from conflicts."""
    recording = opened(write(tmp_path, x__prom=page(f"{A} 1 0", f"{A} 1 0", f"{B} 2 0", f"{B} 3 0")))
    assert scrapes(recording) == [(0, "j/n1:1", {"a": 1, "b{gpu=0}": 2})]
    assert recording.counts.samples == 4
    assert {k: recording.tolerated[k] for k in ("duplicate", "conflict")} == {"duplicate": 1, "conflict": 1}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a 1\n", 1),
        (f"a 1 {T0}\nb 2\n", 2),
        (f"a 1 {T0}\na 2\n", 2),
        (f'a{{x="y z"}} 1 {T0}\na{{x="y z"}} 1\n', 2),
        (f"a 1 {T0}\n\nnot a sample at all\n", 3),
        (f"a 1 {T0}\na one {T0}\n", 2),
        (f"a 1 {T0}\na 1_0 {T0}\n", 2),
        (f"a 1 {T0}\na 1 {T0 / 1000:.3f}\n", 2),
        (f'a{{x="y" 1 {T0}\n', 1),
        (f'a{{x="1\na 7 {T0}\n"}} 5 {T0}\n', 1),
        (f"a 1 {T0}\na 1 {T0}x", 2),
    ],
)
def test_a_bad_line_is_named(tmp_path, text: str, line: int) -> None:
    """File and line, before anything is replayed."""
    with pytest.raises(BadInput, match=rf"x\.prom:{line}: got ") as caught:
        opened(write(tmp_path, x__prom=text))
    assert "\n" not in str(caught.value)


def test_a_time_that_no_calendar_has(tmp_path) -> None:
    """It would make a replay of millions of years."""
    with pytest.raises(BadInput, match=r"x\.prom: timestamp: got 9223372036854775807"):
        opened(write(tmp_path, x__prom="a 1 9223372036854775807\n"))


def test_crlf_and_a_missing_last_newline(tmp_path) -> None:
    """Both are let pass."""
    text = page(f"{A} 1 0", f"{A} 2 15000", f"{A} 3 30000").replace("\n", "\r\n").rstrip()
    assert [row["a"] for _, _, row in scrapes(opened(write(tmp_path, x__prom=text)))] == [1, 2, 3]


def test_a_gzip_file(tmp_path) -> None:
    """Read as it is."""
    rows = scrapes(opened(write(tmp_path, x__prom__gz=gzip.compress(page(f"{A} 1 0").encode()))))
    assert rows == [(0, "j/n1:1", {"a": 1})]


def test_a_broken_gzip_file_is_bad_input(tmp_path) -> None:
    """One sentence."""
    data = gzip.compress(page(f"{A} 1 0").encode())[:-9]
    with pytest.raises(BadInput, match=r"x\.prom\.gz"):
        opened(write(tmp_path, x__prom__gz=data))


def test_empty_files_are_empty_inputs(tmp_path) -> None:
    """No times, no samples, no error."""
    recording = opened(write(tmp_path, x__prom="", y__om="", z__csv="", p__parquet=b"", kernel__n1__log="", trainer__j__log=""))
    assert (recording.first_at, recording.last_at, recording.counts.samples) == (None, None, 0)
    assert [len(b.scrapes) for b in recording.advance(T0)] == [0]


def test_watermarks_and_sequence_numbers(tmp_path) -> None:
    """Each call ends with a batch whose watermark is its end, also where nothing happened."""
    recording = opened(write(tmp_path, x__prom=page(f"{A} 1 0", f"{A} 2 60000")))
    found = [batch for at in range(T0, T0 + 75000, 15000) for batch in recording.advance(at)]
    assert [(b.worker, b.epoch, b.seq, b.watermark - T0, len(b.scrapes)) for b in found] == [
        ("replay", 1, 1, 0, 1), ("replay", 1, 2, 15000, 0), ("replay", 1, 3, 30000, 0), ("replay", 1, 4, 45000, 0),
        ("replay", 1, 5, 60000, 1)]


def test_a_layout_is_told_once(tmp_path) -> None:
    """And again only when it has grown."""
    found = batches(opened(write(tmp_path, x__prom=page(f"{A} 1 0", f"{A} 2 15000", f"{A} 3 30000", f"{B} 3 30000", f"{A} 3 45000"))))
    assert [len(b.layouts) for b in found] == [1, 0, 1, 0]


_SERIES = st.sampled_from([f'm{m}{{job="j{j}",instance="n{i}:1"}}' for m in range(3) for j in range(2) for i in range(2)])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(_SERIES, st.integers(0, 40), st.floats(allow_nan=False, allow_infinity=False)), max_size=60), st.randoms())
def test_the_order_of_lines_does_not_matter(tmp_path_factory, samples, shuffle) -> None:
    """Whatever the order, the scrapes hold the same values at the same times, and twice the same gives the same bits."""
    once = {(series, at): value for series, at, value in samples}
    lines = [f"{series} {value!r} {at * 15000}" for (series, at), value in once.items()]
    root = tmp_path_factory.mktemp("r")
    results = []
    for i in range(2):
        shuffle.shuffle(lines)
        directory = write(root / str(i), x__prom=page(*lines) if lines else "")
        first, second = batches(opened(directory)), batches(opened(directory))
        assert same(first, second)
        rows = scrapes(opened(directory))
        results.append(sorted((at, target.partition("#")[0], name, value) for at, target, row in rows
                              for name, value in row.items() if value is not None))
    assert results[0] == results[1]
    assert len(results[0]) == len(once)
