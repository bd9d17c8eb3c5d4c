"""What owner and collectors do to stay small."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from app.owner import Ticker
from core.types import Batch

LOOK = """
import sys
from app.lean import lean
lean()
import numpy as np
import pyarrow as pa
import pipeline.store.duck
assert pa.array(np.arange(3.0), mask=np.array([True, False, False])).to_pylist() == [None, 1.0, 2.0]
print('pandas' in sys.modules)
try:
    import pandas
    print(len(pandas.DataFrame({'a': [1, 2]})))
except ModuleNotFoundError:
    print('absent')
"""


def test_pandas_is_loaded_only_for_those_who_ask_for_it():
    """Arrow arrays of the owner and the collectors do without pandas; a plug-in that imports it gets it where it is."""
    said = subprocess.run([sys.executable, "-c", LOOK], check=False, capture_output=True, text=True, timeout=60)
    first, second = said.stdout.split()
    assert (first, second) in (("False", "2"), ("False", "absent")), said.stderr


class Owner:
    """An owner whose gate never has a tick, and which notes what its brain is given."""

    def __init__(self, fails: bool = False) -> None:
        self.gate = self.clock = self.brain = self
        self.fed: list[Batch] = []
        self.came = threading.Event()

    def now_ms(self):
        return 0

    def wait(self, now_ms, wall, seconds):
        self.came.wait(seconds)

    def feed(self, batch):
        self.fed.append(batch)
        self.came.set()


@pytest.mark.parametrize("batches", [1, 5])
def test_batches_are_taken_in_between_ticks(batches):
    """Without a tick to judge, what was committed is fed in order, so that a start's layouts do not wait for a tick."""
    owner = Owner()
    ticker = Ticker(owner)
    for i in range(batches):
        ticker.inbox.put(Batch("w", 1, i, i))
    ticker.take_in()
    assert [one.seq for one in owner.fed] == list(range(batches))
    assert ticker.inbox.empty()
