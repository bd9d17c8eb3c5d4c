"""`greylag train`: the model of what is usual in this fleet, from its own history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.odd import MODEL_FILE
from app.stored import StoreFrames, open_stored
from app.train import TrainParams, train
from core.clock import parse_rfc3339, rfc3339
from core.config import read_config
from core.errors import BadInput
from pipeline.unknown_file import write_model


def train_command(config: Path | None, data_dir: str | None, out: Path | None, start: str | None, end: str | None,
                  say: Callable[[str], None]) -> dict[str, Any]:
    """Trains and writes the file; gives what it is of. Raises BadInput. The store must not be held by a running Greylag."""
    if (config is None) == (data_dir is None):
        raise BadInput("train", "", "both or neither of --config and --data-dir", "one of them is needed")
    folder = data_dir
    if config is not None:
        read = read_config(config)
        folder = str(read.resolve(read.data_dir))
    assert folder is not None
    store = open_stored(folder)
    try:
        frames = StoreFrames(store)
        if frames.first_at is None or frames.last_at is None:
            raise BadInput(folder, "", "an empty store", "a store with history is needed")
        first = _time("--start", start, frames.first_at)
        last = _time("--end", end, frames.last_at)
        model = train(store, first, last, TrainParams(), say)
    finally:
        store.close()
    path = out or (Path(folder) if Path(folder).is_dir() else Path(folder).parent) / MODEL_FILE
    digest = write_model(path, model)
    return {"model": str(path), "hash": digest, "start": rfc3339(model.start), "end": rfc3339(model.end), "windows": model.windows,
            "kinds": {one.kind: {"rows": one.rows, "signals": len({name for name, _ in one.names})} for one in model.kinds}}


def _time(key: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    try:
        return parse_rfc3339(text)
    except ValueError:
        raise BadInput(key, "", text, "a time in RFC 3339 is needed") from None
