"""The rows of a target by series, signal and part, against a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ring_known import KnownRows

keys = st.tuples(st.integers(-(2**62), 2**62), st.integers(0, 200), st.integers(0, 2**20))


@given(st.lists(st.dictionaries(keys, st.booleans(), max_size=20), max_size=6))
def test_it_is_a_dict_of_rows(steps):
    """Keys that are added are found with their rows; what is not kept is given back, and is known no more."""
    rows, model, number = KnownRows(), {}, 0
    for step in steps:
        fresh = [key for key in step if key not in model]
        numbers = np.arange(number, number + len(fresh))
        number += len(fresh)
        series, signal, part = np.array(fresh, np.int64).reshape(-1, 3).T
        rows.add(series, signal, part, numbers)
        model.update(zip(fresh, numbers.tolist(), strict=True))
        kept = np.array([row for key, row in model.items() if step.get(key, True)], np.int64)
        gone = rows.keep_only(kept)
        assert sorted(gone.tolist()) == sorted(set(model.values()) - set(kept.tolist()))
        model = {key: row for key, row in model.items() if row in kept}
        assert rows.by_key() == model
        assert sorted(rows.all().tolist()) == sorted(model.values())
        assert len(rows) == len(model)
