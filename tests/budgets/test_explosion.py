"""A cardinality explosion in one target: it is bounded, its health signals stay, and the others do not notice."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.budgets import TargetBudgetKeeper
from collectors.discovery import ScrapeTarget
from collectors.exposition import parse_exposition
from collectors.fetch import Body
from collectors.mapping import Mapper
from collectors.page_budget import PageBudget
from collectors.page_thinning import NEW_AT_ONCE, PageThinner
from collectors.scrape import TargetScraper, known_series
from core.clock import process_cpu_seconds
from core.config import TargetBudget
from core.plugins import load_plugins
from core.protocols import TargetInfo

T0 = 1_800_000_000_000
MAPPER = Mapper(load_plugins("collectors.sources"))
EXPLODING = 300_000
HEALTH = b"# TYPE node_load1 gauge\nnode_load1 1.5\n# TYPE node_memory_MemAvailable_bytes gauge\nnode_memory_MemAvailable_bytes 5e9\n"
TEXT = "text/plain; version=0.0.4"


def explosion(n=EXPLODING):
    """A page with health signals in the midst of n series that no page had before."""
    ids = os.urandom(8 * n).hex()
    lines = [f'requests_total{{id="{ids[16 * i:16 * i + 16]}"}} {i}\n' for i in range(n)]
    return b"# TYPE requests_total counter\n" + "".join(lines[:n // 2]).encode() + HEALTH + "".join(lines[n // 2:]).encode()


def calm(i):
    return b"# TYPE node_load1 gauge\n" + b"".join(b'node_load1{cpu="%d"} %d\n' % (cpu, i) for cpu in range(200))


class Pages:
    """A fetch that gives the next page of each target."""

    def __init__(self, **pages):
        self._pages = {name: iter(of) for name, of in pages.items()}

    async def get(self, request):
        await asyncio.sleep(0)
        return Body(next(self._pages[request.url.split("/")[2].split(":")[0]]), TEXT)


def scraper_of(host, keeper, mapper=MAPPER, known=None):
    labels = {"instance": f"{host}:9100", "job": "node"}
    target = ScrapeTarget(TargetInfo(f"node/{host}:9100", labels, host), f"http://{host}:9100/metrics", 15_000, 10.0)
    return TargetScraper(target, mapper, Counter(), known or known_series(), PageBudget(target, keeper, mapper))


def scrape(fetch, scrapers, slots):
    """All scrapers at each slot together: [slot][scraper] = (rows, CPU seconds)."""

    async def act():
        out = []
        for slot in range(slots):
            rows = await asyncio.gather(*(one.scrape(fetch, T0 + 15_000 * slot) for one in scrapers))
            out.append([(read, one.cpu_seconds) for read, one in zip(rows, scrapers, strict=True)])
        return out

    return asyncio.run(act())


def series_of(rows):
    return [one for layout, _ in rows for one in layout.series]


def test_an_explosion_costs_the_others_nothing():
    """One target brings 300,000 new series at each scrape: it is cut to its budget with its health signals in it, at a
    small part of the cost of reading it; the other's scrapes are the same, cost the same, and none is missed."""
    keeper = TargetBudgetKeeper(TargetBudget(series=2000, new_series_per_hour=3000))
    known = known_series()
    slots = 4
    pages = [explosion() for _ in range(slots)]
    alone = scrape(Pages(calm=(calm(i) for i in range(slots))), [scraper_of("calm", TargetBudgetKeeper())], slots)
    both = scrape(Pages(calm=(calm(i) for i in range(slots)), wild=iter(pages)),
                  [scraper_of("calm", keeper, known=known), scraper_of("wild", keeper, known=known)], slots)
    began = process_cpu_seconds()
    parse_exposition(b"".join(pages[0].splitlines(keepends=True)[:EXPLODING // 20]), TEXT)
    whole = 20 * (process_cpu_seconds() - began)
    for slot in range(slots):
        (mine, mine_cpu), (wild, wild_cpu) = both[slot]
        (one, cpu) = alone[slot][0]
        assert [s.error for _, s in mine + wild] == [None] * len(mine + wild)
        assert [(layout.id, s.at, s.values[0]) for layout, s in mine] == [(layout.id, s.at, s.values[0]) for layout, s in one]
        assert mine_cpu <= 5 * cpu + 0.05
        found = series_of(wild)
        assert len(found) <= 2000 + 3
        assert {"node_load1", "node_memory_MemAvailable_bytes"} <= {s.name for s in found}
        assert wild_cpu < whole / 2, (wild_cpu, whole)
    shed = keeper.shed_of("node/wild:9100")
    assert sum(shed.values()) >= EXPLODING - 2000
    assert set(shed) <= {"shed_series_budget", "shed_churn_budget"}
    assert len(known[0]) < 20_000  # nothing of it stays in memory for good
    assert list(keeper.shedding()) == ["node/wild:9100"]


def test_churn_within_the_series_budget_is_bounded_too():
    """A page that never is too long but has other series each time: when the hour is used up it is thinned before it is
    parsed, and comes back whole when it has calmed down."""
    keeper = TargetBudgetKeeper(TargetBudget(series=5000, new_series_per_hour=1500))
    pages = [explosion(1000) for _ in range(6)]
    steady = [pages[-1].replace(b" 1.5\n", b" %d\n" % i) for i in range(3)]
    read = scrape(Pages(wild=iter([*pages, *steady])), [scraper_of("wild", keeper)], 9)
    counts = [len(series_of(rows)) - 3 for rows, _ in [slot[0] for slot in read]]
    assert counts[:2] == [1002, 1002]
    assert counts[2] == 502
    assert counts[3:] == [2] * 6
    assert all("node_load1" in {s.name for s in series_of(slot[0][0])} for slot in read)


def test_a_body_over_its_budget_fails_by_name():
    """The page is not read at all, whatever the target's own configuration would allow."""
    keeper = TargetBudgetKeeper(TargetBudget(body_bytes=1000))
    one = scraper_of("wild", keeper)
    (rows, _), = scrape(Pages(wild=iter([calm(1)])), [one], 1)[0]
    assert [s.error for _, s in rows] == ["body_too_large"]


def test_a_worker_over_its_budget_keeps_health_signals_and_takes_all_back():
    """Series without a signal go while the process asks for it, also of a page that never changes, and come back."""
    keeper = TargetBudgetKeeper()
    page = HEALTH + b"# TYPE other gauge\n" + b"".join(b'other{i="%d"} 1\n' % i for i in range(50))
    one = scraper_of("n", keeper)
    counts = []
    for on in (False, True, True, False):
        keeper.set_health_only(on, "shed_cpu")
        for _ in range(2):
            ((rows, _),), = scrape(Pages(n=iter([page])), [one], 1)
            counts.append(len(series_of(rows)) - 3)
    assert counts == [52, 52, 2, 2, 2, 2, 52, 52]


# --- the thinner ------------------------------------------------------------------------------------------------------
def thinner(most, health=(b"h",)):
    return PageThinner(most, lambda line: line.startswith(tuple(health)))


@pytest.mark.parametrize(("page", "most", "wanted"), [
    (b"a 1\nb 2\nc 3\n", 2, b"a 1\nb 2\n"),
    (b"a 1\nb 2\nh 3\n", 2, b"a 1\nh 3\n"),
    (b'a{x="1"} 1\na{x="2"} 1\nb 2\nh 3\n', 3, b'a{x="1"} 1\nb 2\nh 3\n'),
    (b"# TYPE a gauge\na 1\n# TYPE h gauge\nh 1", 1, b"# TYPE h gauge\nh 1"),
    (b"# HELP a b\n# a remark\na 1\n\nb 1\n", 1, b"# HELP a b\na 1\n"),
    (b"# TYPE a counter\na_total 1\n# TYPE b counter\nb_total 1\n# EOF\n", 1, b"# TYPE a counter\na_total 1\n# EOF\n"),
    (b"a 1 1000\nb 1 1000\n", 1, b"a 1 1000\n"),
])
def test_lines_that_stay_stay_as_they_came(page, most, wanted):
    """Health first, then small families; comments go with their family; no byte of a kept line changes."""
    thin, shed = thinner(most).thin(page)
    assert thin == wanted
    samples = sum(1 for line in page.splitlines() if line and not line.startswith(b"#"))
    assert shed == ({"shed_series_budget": samples - most} if samples > most else {})


def test_lines_that_were_kept_before_stay():
    """Of a family that changes in part, what was kept last is kept again; new lines come in only where there is room."""
    one = thinner(10)
    one.thin(b"".join(b'a{x="%d"} 1\n' % i for i in range(10)))
    page = b"".join(b'a{x="%d"} 7\n' % i for i in range(100, 5, -1))
    thin, shed = one.thin(page, most_new=2)
    assert [line.split(b'"')[1] for line in thin.splitlines()] == [b"100", b"99", b"9", b"8", b"7", b"6"]
    assert shed == {"shed_churn_budget": 89}


def test_an_explosion_of_names_is_no_explosion_of_questions():
    """Families are asked about once each, and not more than a bound of them at a page."""
    asked = Counter()

    def carries(line):
        asked[line.split()[0]] += 1
        return False

    one = PageThinner(100, carries)
    for turn in range(2):
        one.thin(b"".join(b"m%d_%d 1\n" % (turn, i) for i in range(10_000)))
    assert max(asked.values()) == 1
    assert len(asked) <= 2 * 4096
    assert NEW_AT_ONCE > 100


LINE = st.one_of(
    st.tuples(st.sampled_from([b"a", b"bb", b"h", b"h_x"]), st.integers(0, 9), st.integers(0, 99)).map(
        lambda t: b'%s{i="%d"} %d' % t),
    st.sampled_from([b"", b"# TYPE a gauge", b"# HELP h x", b"# EOF", b"#", b"# x", b"c 1", b"d 1 5", b'e{a="}"} 1', b" f 1", b"{} 1",
                     b"\xff\xfe", b"no_value"]))


@settings(max_examples=60)
@given(st.lists(LINE, max_size=30), st.integers(1, 20), st.booleans(), st.integers(0, 5))
def test_no_page_breaks_it(lines, most, ended, new):
    """Any bytes: what comes out are lines of the page in their order, never more samples than the budget."""
    page = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    one = thinner(most)
    for _ in range(2):
        thin, shed = one.thin(page, new)
        left = iter(page.split(b"\n"))
        assert all(line in left for line in thin.split(b"\n") if line)
        samples = [line for line in thin.split(b"\n") if line and not line.startswith(b"#")]
        whole = [line for line in page.split(b"\n") if line and not line.startswith(b"#")]
        assert len(samples) <= most
        assert len(samples) + sum(shed.values()) == len(whole)
