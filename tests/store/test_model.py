"""The store against a few lines of plain Python: any readings, in any order, with restarts and sealing between them."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.types import Scrape
from pipeline.store.duck import DuckStore
from tests.store.build import T0, batch, layout, scrape

SLOT = 1_200_000  # 20 minutes: a few readings cross hours
# t1 shows wide tables (three of a key set), t2 long rows, t3 both, with layouts that share and lack entities.
SHAPES = [layout("t1", ("a", "b", "c")), layout("t1", ("b", "c", "d")), layout("t1", ("b",)), layout("t2", ("e", "f"), x="1"),
          layout("t2", ("e",), x="1"), layout("t3", ("a", "b", "c")), layout("t3", ("g",), y="1", z="2")]
EXAMPLES = int(os.environ.get("GREYLAG_EXAMPLES", "25"))
VALUES = st.sampled_from([None, 0.0, 1.0, 2.5, math.nan])

Rows = dict[tuple[str, str], dict[int, float | None]]


class Model:
    """What the store promises, said plainly."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.target_at: dict[str, int] = {}
        self.present: dict[str, set[str]] = {}

    def reading(self, target: str, at: int, values: dict[str, float]) -> None:
        now = set()
        for name, value in values.items():
            now.add(name)
            rows = self.rows.setdefault((name, target), {})
            if rows.get(at) is None:  # a stale marker is no sample: a value of its time takes its place
                rows[at] = value
        last = self.target_at.get(target)
        if last is None or at > last:
            for name in self.present.get(target, set()) - now:
                rows = self.rows[(name, target)]
                newest = max(rows)
                if newest < at and rows[newest] is not None:
                    rows[at] = None
            self.target_at[target], self.present[target] = at, now
        elif at == last:
            self.present[target] |= now


def stored(store: DuckStore) -> Rows:
    found = store.select([], 0, 2**50)
    return {(s.series.name, s.series.label("instance")): dict(zip(s.at, s.values, strict=True)) for s in found}


def same(left: Rows, right: Rows) -> bool:
    return repr({k: sorted(v.items()) for k, v in sorted(left.items()) if v}) == repr(
        {k: sorted(v.items()) for k, v in sorted(right.items()) if v})


READING = st.tuples(st.integers(0, len(SHAPES) - 1), st.integers(0, 9), st.lists(VALUES, min_size=3, max_size=3),
                    st.sampled_from([False, False, False, True]))
STEPS = st.lists(st.one_of(st.lists(READING, min_size=1, max_size=4), st.sampled_from(["seal", "restart", "compact"])), max_size=10)


def scrapes_of(rows: Sequence[tuple[int, int, list[float | None], bool]]) -> list[Scrape]:
    out = []
    for which, slot, values, failed in rows:
        shape, at = SHAPES[which], T0 + slot * SLOT
        if failed:
            out.append(Scrape("", shape.target_id, at, np.empty(0), 0.0, "timeout"))
        else:
            out.append(scrape(shape, at, values[: len(shape.series)]))
    return out


@settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_the_store_agrees_with_the_model(steps: list[object]) -> None:
    """First sample wins, one stale marker for what vanishes, late samples in place, whatever happens between."""
    model, restarted = Model(), False
    with tempfile.TemporaryDirectory() as folder:
        store = DuckStore(Path(folder))
        for seq, step in enumerate(steps):
            if step == "seal":
                store.seal()
            elif step == "compact":
                store.compact()
            elif step == "restart":
                store.close()
                store, restarted = DuckStore(Path(folder)), True
            else:
                scrapes = scrapes_of(step)  # type: ignore[arg-type]
                store.append([batch(seq, *scrapes, layouts=SHAPES)])
                merged: dict[tuple[str, int], dict[str, float]] = {}
                for one in scrapes:
                    values = merged.setdefault((one.target_id, one.at), {})
                    names = [s.name for s in next((s.series for s in SHAPES if s.id == one.layout_id), ())]
                    shown = scrape_values(one)
                    for name, value in zip(names, shown, strict=True):
                        if value is not None:
                            values.setdefault(name, value)
                for (target, at), values in merged.items():
                    model.reading(target, at, values)
            assert same(stored(store), model.rows), (steps, restarted)
        store.close()


def scrape_values(one: Scrape) -> list[float | None]:
    from core.derive import absent

    return [None if gone else v for v, gone in zip(one.values.tolist(), absent(one.values).tolist(), strict=True)]
