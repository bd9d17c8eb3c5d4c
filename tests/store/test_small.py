"""The smaller parts: records as text, retention's spelling, the bench."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ConfigError
from core.types import Action, Event, Evidence, Finding, Incident, Suspect, Target
from pipeline.store.bench import bench_store
from pipeline.store.codec import decode, encode
from pipeline.store.samples import retention_ms
from tests.store.build import GPU, T0, action, finding, incident

EVIDENCE = (Evidence("gpu.temperature_celsius", "celsius", 91.5, None, "peers", "hot"), Evidence("x", "y", math.inf, 1e-9, "z"))


@pytest.mark.parametrize("record", [
    finding(), finding(evidence=EVIDENCE, ended_at=T0, end_reason="cleared"), incident(culprit=None),
    incident(suspects=(Suspect(GPU, 0.7, ("onset", "alone")),), victims=(GPU, Target("job", job="j")), evidence=EVIDENCE),
    action(args={"list": [1, 2], "deep": {"a": None}})[0], action()[1], Event(T0, GPU, "xid", {"xid": 79, "fatal": True}, 'a "b"\n☃'),
])
def test_a_record_comes_back_as_it_was(record: object) -> None:
    """Nested records, None, tuples and infinities survive."""
    assert decode(type(record), encode(record)) == record


@settings(max_examples=50)
@given(st.text(), st.floats(allow_nan=False), st.dictionaries(st.text(), st.one_of(st.none(), st.booleans(), st.integers(), st.text())))
def test_any_text_and_number_survives(text: str, value: float, fields: dict[str, object]) -> None:
    """Whatever a log line or an exporter says."""
    event, seen = Event(T0, Target("gpu", text), "xid", fields, text), finding(severity=value, reason=text)
    assert (decode(Event, encode(event)), decode(Finding, encode(seen))) == (event, seen)


def test_a_key_that_is_not_known_is_ignored() -> None:
    """A newer program may have written more."""
    text = encode(incident()).replace('{"id"', '{"later":1,"id"', 1)
    assert decode(Incident, text) == incident()


@pytest.mark.parametrize("text", ["[]", "{}", "nonsense"])
def test_other_text_is_an_error(text: str) -> None:
    """Nothing is made up."""
    with pytest.raises((ValueError, TypeError, AttributeError)):
        decode(Action, text)


@pytest.mark.parametrize(("text", "hours"), [("1h", 1), ("60m", 1), ("15d", 360), ("2w", 336), ("1y", 8760)])
def test_retention_is_a_duration(text: str, hours: int) -> None:
    """As Prometheus spells it."""
    assert retention_ms(text) == hours * 3_600_000


@pytest.mark.parametrize("text", ["", "15", "d", "1.5d", "-1d", "59m", "0d", "15 d", "1h30m"])
def test_a_bad_retention_is_refused(text: str) -> None:
    """One sentence with the key."""
    with pytest.raises(ConfigError, match=r"retention\.raw"):
        retention_ms(text, "x.yaml:3")


def test_the_bench_gives_its_figures() -> None:
    """A small shape: every figure is there, and none is negative but the difference of memory."""
    figures = bench_store(nodes=1, points=5, scrapes_a_flush=2)
    assert figures["samples"] == figures["series"] * 5
    assert all(value >= 0 for name, value in figures.items() if name != "registered_rss_bytes")
