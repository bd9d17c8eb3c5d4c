"""What detectors share of whole columns, and the statistics that are worked out for all groups at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.types import Target
from detectors import shared, stats

PARTS = tuple(Target("gpu", f"n{i // 2}", str(i % 2), f"GPU-{i}") for i in range(6))


def test_clear_words_are_of_the_chosen_parts():
    """Flags and positions pick the same words, each on its own part with fault and reason."""
    flags = np.array([True, False, False, True, False, True])
    found = shared.clears(PARTS, flags, "gpu_slow", "why")
    assert [(v.target, v.fault, v.state, v.reason) for v in found] == [(PARTS[e], "gpu_slow", "clear", "why") for e in (0, 3, 5)]
    assert shared.clears(PARTS, np.flatnonzero(flags), "gpu_slow", "why") == found


def test_other_parts_get_other_words():
    """Equal positions among other parts are other words, and nothing is kept of the former."""
    others = tuple(Target("gpu", "m", str(i)) for i in range(6))
    words = [shared.clears(parts, np.array([1]), "gpu_slow")[0].target for parts in (PARTS, others, PARTS)]
    assert words == [PARTS[1], others[1], PARTS[1]]


def test_what_arrays_decide_is_made_anew_when_they_change():
    """A kept answer is given while the arrays are equal, missing values included, and never after."""
    made = []

    def ask(*values: float) -> int:
        return shared.standing("test", (PARTS,), [np.array(values)], lambda: made.append(values) or len(made))

    assert [ask(1.0, np.nan), ask(1.0, np.nan), ask(2.0, np.nan), ask(1.0, np.nan)] == [1, 1, 2, 3]


@pytest.mark.parametrize(("nodes", "expected"), [(set(), []), ({"n1"}, [2, 3]), ({"n9"}, []), ({"n0", "n2"}, [0, 1, 4, 5])])
def test_parts_of_nodes(nodes, expected):
    """The parts on some nodes are found by the nodes' names."""
    assert np.flatnonzero(shared.of_nodes(PARTS, nodes)).tolist() == expected
    assert {node: columns.tolist() for node, columns in shared.columns_by_node(PARTS).items()} == {
        "n0": [0, 1], "n1": [2, 3], "n2": [4, 5]}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 1.0, 2.5, 7.0, float("nan")]), st.integers(-1, 3)), max_size=14))
def test_peers_are_the_median_of_the_others(rows):
    """Each is compared with the median of the others of its group; the spread is of the whole group; without a group nothing is."""
    values, groups = np.array([v for v, _ in rows], np.float64), np.array([g for _, g in rows], np.int64)
    found = stats.peers(values, groups)
    for e, (own, group) in enumerate(rows):
        mine = [v for i, (v, g) in enumerate(rows) if g == group and i != e and not np.isnan(v)]
        known = [v for v, g in rows if g == group and not np.isnan(v)]
        if group < 0:
            mine = known = []
        assert found.n[e] == len(mine)
        np.testing.assert_equal(found.middle[e], np.median(mine) if mine and (len(known) > 1 or np.isnan(own)) else np.nan)
        spread = stats.MAD_TO_SIGMA * np.median(np.abs(np.array(known) - np.median(known))) if known else np.nan
        np.testing.assert_equal(found.spread[e], spread)
