"""`greylag store stats|compact|export|import|verify`: work on the store of a stopped Greylag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app import wiring
from collectors.mapping import Mapper
from collectors.recording import Recording
from core.clock import TICK_MS, parse_rfc3339, tick_at_or_after
from core.errors import BadInput
from core.types import Batch
from pipeline.promql.parse import QueryError, selector
from pipeline.store.duck import DuckStore
from pipeline.store.export import export
from pipeline.store.schema import database_file
from pipeline.store.shrink import shrink
from pipeline.store.sorting import DuckSorter
from pipeline.store.verify import verify

# Nothing is dropped by these commands: retention is the running Greylag's.
FOR_EVER_MS = 2**53
READ_SECONDS = 600.0
BATCHES_PER_COMMIT = 40
WORKER = "store-import"
Say = Callable[[str], None]


def open_store(path: Path, new: bool = False) -> DuckStore:
    """The store at `path` (its file or folder). Raises BadInput where there is none and `new` is False."""
    if not new and not database_file(path).is_file():
        raise BadInput(str(path), "", "no store", "the path of a greylag.duckdb of a stopped Greylag is needed")
    return DuckStore(path, deadline_seconds=READ_SECONDS, retention_ms=FOR_EVER_MS, rollup_1m_ms=FOR_EVER_MS,
                     rollup_1h_ms=FOR_EVER_MS)


def stats(path: Path) -> dict[str, Any]:
    """What a store holds."""
    store = open_store(path)
    try:
        return dict(store.stats())
    finally:
        store.close()


def compact(path: Path) -> dict[str, Any]:
    """Seals hours that are over, puts small files together and writes the database anew where that makes it smaller: files and
    bytes before and after."""
    store = open_store(path)
    try:
        before = store.stats()
        sealed, gone = store.seal(), store.compact()
        store.checkpoint()
        after = store.stats()
    finally:
        store.close()
    won = shrink(database_file(path))
    return {"sealed_tables": sealed, "files_removed": gone, "segments": after["segments"] + after["rollup_segments"],
            "sealed_bytes_before": before["sealed_bytes"], "sealed_bytes": after["sealed_bytes"],
            "file_bytes_before": database_file(path).stat().st_size + won, "file_bytes": database_file(path).stat().st_size}


def export_to(path: Path, out: Path, matches: Sequence[str], start: str | None, end: str | None) -> dict[str, Any]:
    """Writes samples as a tidy Parquet recording. start, end: RFC 3339, both included. Raises BadInput."""
    if out.suffix != ".parquet":
        raise BadInput("--out", "", str(out), "a name that ends in .parquet is needed")
    if len(matches) > 1:
        raise BadInput("--match", "", ", ".join(matches), "one selector is allowed, such as '{job=\"dcgm\"}'")
    try:
        matchers = selector(matches[0]).matchers if matches else ()
    except QueryError as error:
        raise BadInput("--match", "", matches[0], f"a selector such as '{{job=\"dcgm\"}}' is needed ({error})") from None
    low, high = _moment("--start", start, 0), _moment("--end", end, 2**45)
    if low > high:
        raise BadInput("--start", "", start or "", "a time before --end is needed")
    store = open_store(path)
    try:
        newest = store.stats()["newest_ms"]
        found = store.series(matchers, low, high)
        if newest is None or not found:
            raise BadInput(str(path), "", "no samples that match", "another selector or time is needed")
        first = max(low, int(store.first_seen(found)))
        samples = export(store, out, matchers, first, min(high, int(newest)))
    finally:
        store.close()
    return {"file": str(out), "series": len(found), "samples": samples, "bytes": out.stat().st_size}


def import_from(path: Path, files: Sequence[str], inventory: str | None, progress: Say | None = None) -> dict[str, Any]:
    """Reads recordings (what `replay` reads) into a store, a new one where there is none; nothing is judged.

    What is there already is counted as duplicate, so an import that broke off can be run again. Raises BadInput.
    """
    sources = wiring.sources()
    readers = {name: one for name, one in sources.items() if one.parse_line is not None}
    recording = Recording(list(files), Mapper(sources), readers, DuckSorter, inventory)
    store = open_store(path, new=True)
    try:
        epoch, seq, samples = store.epoch(WORKER), 0, 0
        pending: list[Batch] = []
        counts: dict[str, int] = {}

        def commit() -> int:
            result = store.append_counted(pending)
            pending.clear()
            store.seal()
            for reason, n in result.counts.items():
                counts[reason] = counts.get(reason, 0) + n
            return result.samples

        if recording.first_at is not None and recording.last_at is not None:
            last = tick_at_or_after(recording.last_at)
            for at in range(tick_at_or_after(recording.first_at), last + 1, TICK_MS):
                for one in recording.advance(at):
                    seq += 1
                    pending.append(Batch(WORKER, epoch, seq, one.watermark, one.layouts, one.scrapes, one.events))
                if len(pending) >= BATCHES_PER_COMMIT or at == last:
                    samples += commit()
                    if progress is not None and at < last:
                        progress(f"{samples} samples stored")
        return {"samples": samples, "series": store.stats()["series"], "counts": counts}
    finally:
        store.close()


def problems(path: Path) -> list[str]:
    """One line for each problem of a store."""
    return verify(path)


def _moment(key: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    try:
        return parse_rfc3339(text)
    except ValueError:
        raise BadInput(key, "", text, "an RFC 3339 time such as 2026-01-31T12:00:00Z is needed") from None
