"""The ledger of parts as the store has it."""

from __future__ import annotations

from collections.abc import Sequence

from core.types import PartPast
from pipeline.parts import PartsBook
from pipeline.store.duck import DuckStore

MOST = 100_000


def parts_of(store: DuckStore) -> Sequence[PartPast]:
    """The entries; those of a store that was written before there was a ledger are made from its incidents and its actions,
    and committed, so that they are made once."""
    found = store.part_records()
    if found:
        return found
    incidents = store.incident_records(limit=MOST)
    if not incidents:
        return ()
    made = PartsBook().rebuild(incidents, store.ledger(limit=MOST))
    if made:
        store.write_parts(made)
    return made
