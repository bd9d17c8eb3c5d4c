"""The store on DuckDB: the default implementation of `core.protocols.Store`, with all of its readers."""

from __future__ import annotations

from typing import Any

from pipeline.store.folding import Folding
from pipeline.store.pages import Pages
from pipeline.store.readback import ReadBack
from pipeline.store.records import Records


class DuckStore(Pages, Records, ReadBack, Folding):
    """One DuckDB file with hourly sample tables, and sealed Parquet segments in the folder `segments` beside it.

    DuckStore(path, memory_limit="1GB", threads=2, deadline_seconds=10, retention_ms=15 days). path: the file, or the
    folder for it; None = in memory, never sealed. Writes are for one thread (`StoreWriter`), reads for any; they raise
    Unavailable past the deadline. Raises BadInput where the file cannot be opened.
    """

    def stats(self) -> dict[str, Any]:
        """What the store holds: rows, series, segments, bytes, and what was counted by name since it was opened."""
        size = self.file.stat().st_size if self.file is not None and self.file.exists() else 0
        return {"file": None if self.file is None else str(self.file), "file_bytes": size, **self.sample_stats(),
                **self.record_stats()}
