"""The knobs lie in one block: what is turned, healed and copied is the same for all of a group."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from fleet.knobs import GpuKnobs, HostKnobs, NicKnobs, StorageKnobs, SwitchKnobs

GROUPS = [GpuKnobs(5, 8), NicKnobs(5, 2), SwitchKnobs(5), HostKnobs(5), StorageKnobs(5)]


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: type(g).__name__)
def test_each_knob_that_is_turned_is_told_of_its_part_and_healed(group):
    """Whichever it is, on a copy as well: the copy's knobs are its own."""
    one = copy.deepcopy(group)
    for name, healthy in group.HEALTHY.items():
        getattr(one, name)[3] = healthy + 0.5
        assert np.flatnonzero(one.turned()).tolist() == [3]
        one.reset_rows([3])
        assert (getattr(one, name) == healthy).all()
    assert not one.turned().any()
    assert not group.turned().any()
