"""What a real Prometheus and a real VictoriaMetrics hold arrives in the store as it is, and is judged as the recording is."""

from __future__ import annotations

import json
import math
import urllib.parse
import urllib.request
from pathlib import Path

from tests.evaluate.judge import incidents_of, judged
from tests.history.conftest import Made, imported, judged_lines, story
from tests.history.servers import Past, differences, stored_past


def test_remote_read_brings_every_sample(made: Made, prometheus_url: str, tmp_path: Path, told: list[str]) -> None:
    """Times, values, labels of a real Prometheus, to the bit; the replay tells the same story, line by line."""
    out = imported(made.options(tmp_path / "store", prometheus_url, format="remote_read"))
    assert differences(made.past, stored_past(out)) == []
    assert story(out) == told


def test_auto_takes_the_exact_way(made: Made, prometheus_url: str, victoria_url: str, tmp_path: Path) -> None:
    """Remote read of Prometheus, export of VictoriaMetrics."""
    ways = []
    for i, url in enumerate((prometheus_url, victoria_url)):
        imported(made.options(tmp_path / str(i), url, match=("odd_gap",)))
        ways.append(json.loads((tmp_path / str(i) / "import.json").read_text())["imports"][0]["way"])
    assert ways == ["remote_read", "export"]


def exported(url: str) -> Past:
    """What VictoriaMetrics itself says it holds: it rounds numbers of many digits."""
    query = urllib.parse.urlencode({"match[]": '{__name__!=""}', "start": 1})
    out: Past = {}
    with urllib.request.urlopen(f"{url}/api/v1/export?{query}", timeout=10) as answer:
        for line in answer:
            head, values = line.decode().split('"values":[')
            numbers, times = values.split('],"timestamps":[')
            labels = json.loads(head.rstrip(",") + "}")["metric"]
            key = labels.pop("__name__"), tuple(sorted(labels.items()))
            out.setdefault(key, {}).update(zip(map(int, times.strip().rstrip("]}").split(",")), map(float, numbers.split(",")), strict=True))
    return out


def close(theirs: float, ours: float) -> bool:
    return math.isclose(theirs, ours, rel_tol=1e-11)


def test_export_brings_every_sample(made: Made, victoria_url: str, tmp_path: Path, told: list[str]) -> None:
    """What VictoriaMetrics holds, to the bit; that is what was sent but for its rounding; the same incidents and findings."""
    out = imported(made.options(tmp_path / "store", victoria_url, format="export"))
    ours = stored_past(out)
    assert differences(exported(victoria_url), ours) == []
    sizes = {key for key in made.past if key[0] == "odd_sizes"}
    assert differences({k: v for k, v in made.past.items() if k not in sizes},
                       {k: v for k, v in ours.items() if k not in sizes}, close) == []
    assert [shape(line) for line in judged_lines(story(out))] == [shape(line) for line in judged_lines(told)]


def shape(line: str) -> tuple[object, ...]:
    """What a line says, without the digits that VictoriaMetrics rounds."""
    record = json.loads(line)
    one = record[record["type"]]
    return record["type"], record["event"], record["at"], one["id"], one.get("culprit") or one.get("target")


LOOK_BACK_MS = 300_000


def test_query_range_brings_the_grid(made: Made, prometheus_url: str, tmp_path: Path) -> None:
    """At each multiple of the step the newest sample of the 5 minutes before, none where there is none."""
    out = imported(made.options(tmp_path / "store", prometheus_url, format="query_range", step="30s"))
    start, end = made.start - 60_000, made.end + 60_000
    grid: Past = {}
    for key, points in made.past.items():
        for at in range(-(-start // 30_000) * 30_000, end + 1, 30_000):
            before = [t for t in points if at - LOOK_BACK_MS < t <= at]
            if before:
                grid.setdefault(key, {})[at] = points[max(before)]
    assert differences(grid, stored_past(out)) == []


def test_the_grid_is_judged_alike(made: Made, victoria_url: str, tmp_path: Path) -> None:
    """Range queries of VictoriaMetrics: the planted fault is the only incident, on the right part."""
    out = imported(made.options(tmp_path / "store", victoria_url, format="query_range", step="30s"))
    assert judged(made.truth, incidents_of(out)).word == "right"


def test_selectors_and_times_narrow(made: Made, prometheus_url: str, tmp_path: Path) -> None:
    """Several selectors may overlap: a sample counts once; both ends are included."""
    middle = sorted(made.past["odd_gap", (("instance", "n1:1"), ("job", "odd"))])[10:20]
    out = imported(made.options(tmp_path / "store", prometheus_url, match=("odd_gap", '{job="odd",__name__=~"odd_gap|odd_resets.*"}'),
                                start=str(middle[0]), end=str(middle[-1])))
    wanted = {key: {at: v for at, v in points.items() if middle[0] <= at <= middle[-1]}
              for key, points in made.past.items() if key[0] in ("odd_gap", "odd_resets_total")}
    assert differences(wanted, stored_past(out)) == []


def test_importing_again_doubles_nothing(made: Made, prometheus_url: str, tmp_path: Path) -> None:
    """The same command, then another way to the same samples: the store stays as it was."""
    out = imported(made.options(tmp_path / "store", prometheus_url, match=("odd_resets_total", "odd_gap")))
    once = stored_past(out)
    imported(made.options(out, prometheus_url, match=("odd_resets_total", "odd_gap")))
    imported(made.options(out, prometheus_url, match=('{job="odd"}',)))
    again = stored_past(out)
    assert differences(once, {key: again[key] for key in once}) == []
    assert len(again) == 4
