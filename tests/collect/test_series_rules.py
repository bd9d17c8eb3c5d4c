"""metric_relabel_configs and limits on labels, page by page: what is stored, on the fast ways as on the strict one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collectors.config_reader import Reader
from collectors.fetch import Body
from collectors.mapping import Mapper
from collectors.relabel import parse_rules, relabel_in_place
from collectors.scrape import TargetScraper
from collectors.scrape_config import Limits, ScrapeConfig
from collectors.scrape_target import make_target
from core.errors import SourceError

SLOT = 1_790_000_000_000
OWN = {"up", "scrape_duration_seconds", "scrape_samples_scraped"}


def scraper(*rules, **limits):
    """A scraper of a target with these metric_relabel_configs."""
    parsed = parse_rules(Reader({"r": list(rules)}, "here", ""), "r")
    config = ScrapeConfig("j", metric_relabel_configs=parsed, limits=Limits(**limits))
    return TargetScraper(make_target(config, "n1:9100", {}), Mapper({}))


def read(one: TargetScraper, text: str) -> dict[str, float]:
    """Values by name and labels of a page, without the scraper's own series and the target's labels."""
    out = {}
    for layout, scrape in one.page(Body(text.encode(), "text/plain"), SLOT, 0.0):
        for series, value in zip(layout.series, scrape.values, strict=True):
            labels = ",".join(f"{n}={v}" for n, v in series.labels if n not in ("job", "instance"))
            if series.name not in OWN and not np.isnan(value):
                out[f"{series.name}{{{labels}}}"] = float(value)
    return out


DROP_GO = {"source_labels": ["__name__"], "regex": "go_.*", "action": "drop"}
NO_POD = {"regex": "pod", "action": "labeldrop"}
POD_NAME = {"source_labels": ["pod"], "regex": "(.+)", "target_label": "__name__", "replacement": "of_$1"}
DROP_POD_X = {"source_labels": ["pod"], "regex": "x.*", "action": "drop"}

PAGES = [
    ((DROP_GO,), ["go_a 1\nb 2\n", "go_a 3\nb 4\n"], [{"b{}": 2.0}, {"b{}": 4.0}]),
    ((NO_POD,), ['g{pod="p1",i="0"} 1\ng{pod="p1",i="1"} 2\n', 'g{pod="p2",i="0"} 3\ng{pod="p2",i="1"} 4\n'],
     [{"g{i=0}": 1.0, "g{i=1}": 2.0}, {"g{i=0}": 3.0, "g{i=1}": 4.0}]),
    ((NO_POD,), ['g{pod="p1"} 1\ng{pod="p2"} 2\n', 'g{pod="p3"} 3\ng{pod="p4"} 4\n'], [{"g{}": 1.0}, {"g{}": 3.0}]),
    ((POD_NAME, NO_POD), ['g{pod="p1"} 1\nh 2\n', 'g{pod="p2"} 3\nh 4\n', "g 5\nh 6\n"],
     [{"of_p1{}": 1.0, "h{}": 2.0}, {"of_p2{}": 3.0, "h{}": 4.0}, {"g{}": 5.0, "h{}": 6.0}]),
    ((DROP_POD_X,), ['g{pod="x1"} 1\nh 2\n', 'g{pod="x2"} 3\nh 4\n', 'g{pod="y"} 5\nh 6\n', 'g{pod="x3"} 7\nh 8\n'],
     [{"h{}": 2.0}, {"h{}": 4.0}, {"g{pod=y}": 5.0, "h{}": 6.0}, {"h{}": 8.0}]),
]


@pytest.mark.parametrize(("rules", "pages", "expected"), PAGES)
def test_pages_after_each_other(rules, pages, expected):
    """Whichever way a page is read, the result is what the rules say; of series that become equal the first counts."""
    one = scraper(*rules)
    assert [read(one, text) for text in pages] == expected
    assert [read(scraper(*rules), text) for text in pages] == expected


def test_the_same_series_keep_their_layout():
    """Rules that take a changing label away leave one layout: a job's start makes nothing new."""
    one = scraper(NO_POD)
    before, after = (one.page(Body(f'g{{pod="p{i}"}} {i}\nh 2\n'.encode(), "text/plain"), SLOT, 0.0)[0][0] for i in (1, 2))
    assert before is after


def test_rules_cost_nothing_while_only_values_change(monkeypatch):
    """They are applied when a layout is made: once for five pages that are alike, and for the lines that are new on the sixth."""
    sizes = []
    monkeypatch.setattr("collectors.series_rules.relabel_in_place", lambda rows, rules: sizes.append(len(rows)) or relabel_in_place(rows, rules))
    one = scraper(DROP_GO, NO_POD)
    found = [read(one, f'go_a {n}\ng{{pod="p1"}} {n}\nh 1{n}\n') for n in range(5)]
    found.append(read(one, 'go_a 5\ng{pod="p2"} 5\nh 15\n'))
    assert found == [{"g{}": float(n), "h{}": float(10 + n)} for n in range(6)]
    assert sizes == [3, 1]


def test_series_that_become_equal_are_counted():
    """As a duplicate, under the name that the page's own duplicates have."""
    one = scraper(NO_POD)
    read(one, 'g{pod="1"} 1\ng{pod="2"} 2\n')
    assert one.tolerated["duplicate_series"] == 1


def test_a_page_cannot_become_the_scrapers_own_series():
    """Not by a rule either; and its own series are not relabelled."""
    one = scraper({"target_label": "__name__", "replacement": "up"}, {"regex": "job|instance|__name__", "action": "labelkeep"})
    ((layout, scrape),) = one.page(Body(b"a 0\nb 0\n", "text/plain"), SLOT, 0.0)
    assert {series.name for series in layout.series} == OWN
    assert scrape.values[[series.name for series in layout.series].index("up")] == 1.0


@pytest.mark.parametrize(("rules", "limits", "reason"), [
    ((), {"label_limit": 3}, "label_limits"), ((), {"label_limit": 4}, None),
    ((), {"label_name_length_limit": 7}, "label_limits"), ((), {"label_name_length_limit": 8}, None),
    ((), {"label_value_length_limit": 6}, "label_limits"), ((), {"label_value_length_limit": 7}, None),
    ((NO_POD,), {"label_limit": 3}, None), ((), {"sample_limit": 1}, "too_many_samples"), ((DROP_GO,), {"sample_limit": 1}, None),
    ((NO_POD,), {"sample_limit": 1}, "too_many_samples"),
    (({"target_label": "__name__", "replacement": "a-b"},), {}, "bad_relabelling"),
    (({"regex": "__name__", "action": "labeldrop"},), {}, "bad_relabelling"),
    (({"regex": "pod", "replacement": "${9}", "action": "labelmap"},), {}, None),
    (({"source_labels": ["pod"], "regex": "(.).*", "target_label": "l_$1", "replacement": "x" * 9},), {"label_value_length_limit": 8},
     "label_limits"),
])
def test_limits(rules, limits, reason):
    """A limit that is broken after relabelling fails the scrape as a whole, by name."""
    one, found = scraper(*rules, **limits), None
    try:
        read(one, 'go_x{pod="p"} 1\nb 2\n')
    except SourceError as error:
        found = error.reason
    assert found == reason


lines = st.lists(st.tuples(st.sampled_from(["go_a", "g", "h"]), st.sampled_from(["", "x1", "x2", "y"]), st.integers(0, 2)), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@example([[("g", "", 0), ("go_a", "", 0), ("go_a", "x2", 0), ("g", "x2", 0), ("g", "", 1)],
          [("g", "", 0), ("go_a", "", 0), ("go_a", "", 1), ("g", "x2", 0), ("g", "", 1)]], [POD_NAME])
@given(st.lists(lines, min_size=2, max_size=5), st.lists(st.sampled_from([DROP_GO, NO_POD, POD_NAME, DROP_POD_X]), min_size=1, max_size=3))
def test_a_scraper_with_a_past_reads_as_one_without(pages, rules):
    """What was on the pages before changes nothing of what the next one gives."""
    one = scraper(*rules)
    for page in pages:
        text = "".join(f'{name}{{pod="{pod}",i="{i}"}} {n}\n' for n, (name, pod, i) in enumerate(page))
        assert read(one, text) == read(scraper(*rules), text)
