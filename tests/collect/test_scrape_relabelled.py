"""Pages on which some series have other labels than before (a job has started): read line by line where they differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.discovery import make_target
from collectors.exposition import parse_exposition
from collectors.exposition_template import PageTemplate
from collectors.fetch import Body
from collectors.mapping import Mapper
from collectors.scrape import TargetScraper
from collectors.scrape_config import ScrapeConfig
from core.errors import SourceError
from core.plugins import load_plugins

MAPPER = Mapper(load_plugins("collectors.sources"))
T0 = 1_800_000_000_000
PAGE = """# HELP DCGM_FI_DEV_GPU_TEMP t
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 60
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-b"} 61
# TYPE node_load1 gauge
node_load1 1.5
# TYPE node_network_up gauge
node_network_up{device="eth0"} 1
"""
JOB = PAGE.replace('UUID="GPU-a"', 'UUID="GPU-a",hpc_job="7"').replace('UUID="GPU-b"', 'UUID="GPU-b",hpc_job="7"')


def scraper():
    """A scraper of one target."""
    return TargetScraper(make_target(ScrapeConfig("j"), "n1:9100", {"node": "n1"}), MAPPER)


def rows(read):
    """{(name, labels, type): value} of all sections, without the scraper's own series."""
    return {(s.name, s.labels, s.type): v for layout, scrape in read
            for s, v in zip(layout.series, scrape.values.tolist(), strict=True) if not s.name.startswith(("up", "scrape_"))}


def read(one, text, at=T0):
    """What a page gives."""
    return one.page(Body(text.encode(), "text/plain"), at, 0.0)


def test_gpu_series_are_a_section_of_their_own():
    """The main section has the target's id, that of the GPUs has it with a mark; `up` stands in the main one alone."""
    found = {layout.target_id: [s.name for s in layout.series] for layout, _ in read(scraper(), PAGE)}
    assert found == {"j/n1:9100": ["node_load1", "node_network_up", "up", "scrape_duration_seconds", "scrape_samples_scraped"],
                     "j/n1:9100#gpu": ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP"]}


def test_a_job_start_costs_the_gpu_section_alone():
    """Other labels on the GPU series: the host's layout stays the same object, values and labels are the strict parser's."""
    one, anew = scraper(), scraper()
    before = {layout.target_id: layout for layout, _ in read(one, PAGE)}
    host, parsed = one.sections[""], one._parsed
    one._parsed = lambda *_: pytest.fail("the strict parser was asked for the whole page")
    after = read(one, JOB.replace(" 60", " 70"))
    one._parsed = parsed
    assert after[0][0] is before["j/n1:9100"]
    assert rows(after) == rows(read(anew, JOB.replace(" 60", " 70")))
    assert one.sections[""] is host  # not even looked at
    assert read(one, PAGE)[1][0] is before["j/n1:9100#gpu"]


def test_a_section_that_is_gone_is_said_to_be_empty():
    """No GPU series any more: the section is handed over once without series, then not at all."""
    one = scraper()
    read(one, PAGE)
    host = PAGE[PAGE.index("# TYPE node_load1"):]
    assert [(layout.target_id, len(layout.series)) for layout, _ in read(one, host)] == [("j/n1:9100", 5), ("j/n1:9100#gpu", 0)]
    assert [layout.target_id for layout, _ in read(one, host)] == ["j/n1:9100"]


def test_a_failed_scrape_speaks_for_all_sections():
    """Each section of the last page gets the failure."""
    one = scraper()
    read(one, PAGE)
    assert [(layout.target_id, scrape.error) for layout, scrape in one.failure("timeout", T0, 1.0)] == [
        ("j/n1:9100", "timeout"), ("j/n1:9100#gpu", "timeout")]


ELSE = [
    ("a series twice", PAGE.replace('gpu="1",UUID="GPU-b"', 'gpu="0",UUID="GPU-a"')),
    ("another name", PAGE.replace("node_load1 1.5", "node_load5 1.5")),
    ("another help text", PAGE.replace("HELP DCGM_FI_DEV_GPU_TEMP t", "HELP DCGM_FI_DEV_GPU_TEMP u")),
    ("another type", PAGE.replace("node_load1 gauge", "node_load1 counter")),
    ("a timestamp", PAGE.replace("node_load1 1.5", f"node_load1 1.5 {T0}")),
    ("a line more", PAGE + "b 1\n"), ("no labels", PAGE.replace('{gpu="0",UUID="GPU-a"}', "")),
    ("blanks", PAGE.replace('"GPU-a"} 60', '"GPU-a" }  60')), ("a family less", PAGE[PAGE.index("# TYPE node_load1"):]),
]


@pytest.mark.parametrize("text", [row[1] for row in ELSE], ids=[row[0] for row in ELSE])
def test_whatever_else_changes_is_read_as_a_fresh_scraper_reads_it(text):
    """After any page the next one means what it means by itself."""
    one = scraper()
    read(one, PAGE)
    assert rows(read(one, text)) == rows(read(scraper(), text))


LABELS = st.sampled_from(['{gpu="0"}', '{gpu="1"}', '{gpu="1",job="x"}', '{a="}"}', "", '{gpu="1" }', '{gpu="\\"1"}', '{gpu=1}'])
NAMES = st.sampled_from(["DCGM_A", "node_b"])
COMMENTS = st.sampled_from(["", "# TYPE node_b gauge\n", "# x\n"])
NUMBERS = st.sampled_from(["1", "2.5", "NaN", "+Inf", "1 5", "1e", "0x1"])
LINES = st.lists(st.tuples(COMMENTS, NAMES, LABELS, NUMBERS), min_size=1, max_size=5)


@settings(max_examples=300, deadline=None)
@given(LINES, st.lists(st.tuples(LABELS, NUMBERS), min_size=5, max_size=5))
def test_never_another_answer_than_that_of_a_fresh_scraper(lines, others):
    """Two pages of the same lines with other labels: the second is read, or refused, as if it were the first."""
    def answer(one, text):
        try:
            return {key: str(value) for key, value in rows(read(one, text)).items()}
        except SourceError as error:
            return error.reason

    first = "".join(f"{c}{n}{labels} {v}\n" for c, n, labels, v in lines)
    second = "".join(f"{c}{n}{labels} {v}\n" for (c, n, _, _), (labels, v) in zip(lines, others, strict=False))
    one = scraper()
    answer(one, first)
    assert answer(one, second) == answer(scraper(), second)


def test_a_relabelled_page_has_a_template_of_its_own():
    """The template of the new labels reads the page after it."""
    body, job = PAGE.encode(), JOB.encode()
    made = PageTemplate.of(parse_exposition(body), body, None)
    template, lines = made.relabelled(job, None)
    assert sorted(lines) == [0, 1]
    assert np.array_equal(template.values(job.replace(b" 61", b" 71"), None), [60.0, 71.0, 1.5, 1.0])
