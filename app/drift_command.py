"""`greylag drift`: tickets of a running Greylag, or of the store of a stopped one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app.client import Client
from app.drift import drift_report
from app.slow_jobs import drift_document
from app.stored import open_stored
from core.inventory import Inventory, read_inventory
from pipeline.drift import Params

INVENTORIES = ("inventory.yaml", "inventory.json")


def of_running(url: str) -> dict[str, Any]:
    """What the owner found in its last hour. Raises Unavailable."""
    answer: dict[str, Any] = Client(url).get("/api/greylag/v1/drift")
    return answer


def of_store(path: str, inventory: str | None = None) -> dict[str, Any]:
    """A report at the end of what a store holds. inventory: a file; else the one beside the store. Raises BadInput."""
    store = open_stored(path)
    try:
        newest = store.stats()["newest_ms"] or store.last_tick() or 0
        return drift_document(drift_report(store, int(newest) + 1, _inventory(path, inventory)))
    finally:
        store.close()


def _inventory(path: str, inventory: str | None) -> Inventory:
    if inventory is not None:
        return read_inventory(inventory)
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    found = next((folder / name for name in INVENTORIES if (folder / name).is_file()), None)
    return read_inventory(found) if found is not None else Inventory()


def lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """The report for people."""
    if answer["at"] is None:
        yield answer["failed"] or "drift is looked for once an hour; the first look has not been yet"
        return
    if answer["failed"]:
        yield f"the last look failed: {answer['failed']}"
    for one in answer["items"]:
        yield one["text"]
    looked, unknown = sum(answer["looked"].values()), sum(answer["unknown"].values())
    if not answer["items"]:
        yield f"nothing drifts, of {looked} quantities of parts that were looked at"
    if unknown:
        yield (f"of {unknown} quantities of parts nothing is known: fewer than {Params().days_min} days, or none of the last "
               f"{Params().recent}")
