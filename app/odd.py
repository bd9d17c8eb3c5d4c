"""The trained model over the live window: every few minutes a look, and what is odd in most of them is listed.

The model is the file `model.json` in data_dir, read again when it changes. Where the fleet is no longer the one of the training
nothing is listed, and one sentence says so. What is listed informs people and adds a word to suspects; nothing acts on it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from core.clock import rfc3339
from core.errors import BadInput
from core.render import plain
from core.signals import unit_of
from core.telemetry import Telemetry
from core.window import Window
from pipeline.unknown import SIGNALS, Look, Model, OddPart, Seen, look, of_window, shifted
from pipeline.unknown_file import read_model

MODEL_FILE = "model.json"
LOOK_MS = 300_000
KEPT_LOOKS = 4
NEEDED_LOOKS = 3  # of the last four: a quarter of an hour in which the part stays odd
SHIFT_LOOKS = 12  # an hour: whether the fleet has changed is not told by a moment


class OddParts:
    """look() is called every few seconds; it works once in five minutes of cluster time."""

    def __init__(self, file: Path, window: Callable[[], Window | None], telemetry: Telemetry) -> None:
        self._file, self._window, self._telemetry = file, window, telemetry
        self._stamp: tuple[int, int] | None = None
        self._next = 0
        self._looks: deque[Look] = deque(maxlen=KEPT_LOOKS)
        self._seen: deque[list[Seen]] = deque(maxlen=SHIFT_LOOKS)
        self._lock = threading.Lock()
        self.model: Model | None = None
        self.refused: str | None = None
        self.at: int | None = None

    def look(self) -> bool:
        """One look where it is time for it; True where there was one."""
        window = self._window()
        if window is None or window.end < self._next:
            return False
        self._next = window.end + LOOK_MS
        with self._lock:
            self._read()
            if self.model is None:
                return False
            seen = of_window(window)
            self._seen.append(seen)
            self.refused = self._changed(self.model)
            if self.refused is not None:
                self._looks.clear()
            else:
                self._looks.append(look(self.model, seen))
            self.at = window.end
        rows: dict[tuple[tuple[str, str], ...], float] = {
            (("node", p.target.node or ""), ("device", p.target.device or ""), ("kind", p.target.kind)): p.score for p in self.odd()}
        self._telemetry.replace("greylag_odd_score", rows)
        return True

    def _read(self) -> None:
        """The file as it is now; one that is gone or wrong is no model."""
        try:
            found = self._file.stat()
        except OSError:
            self.model, self._stamp, self.refused = None, None, None
            return
        stamp = (found.st_mtime_ns, found.st_size)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        self._looks.clear()
        self._seen.clear()
        try:
            self.model = read_model(self._file)
        except BadInput as error:
            self.model, self.refused = None, str(error)

    def _changed(self, model: Model) -> str | None:
        """Why the model says nothing of this fleet any more, None where it does."""
        every = [seen for looks in self._seen for seen in looks]
        for kind in model.kinds:
            found = shifted(kind, every)
            if found:
                words = ", ".join(f"{signal} of {share:.0%}" for signal, share in found[:3])
                return (f"the fleet is not the one that the model was trained on ({rfc3339(model.start)[:10]} to "
                        f"{rfc3339(model.end)[:10]}): {words} of the {kind.kind}s lies outside of it; train again")
        return None

    def odd(self) -> list[OddPart]:
        """Parts that were odd in three of the last four looks, the most odd first, as the newest look shows them."""
        if len(self._looks) < NEEDED_LOOKS:
            return []
        counts: dict[str, int] = {}
        newest: dict[str, OddPart] = {}
        for one in self._looks:
            for part in one.odd:
                counts[part.target.key] = counts.get(part.target.key, 0) + 1
                newest[part.target.key] = part
        held = [newest[key] for key, n in counts.items() if n >= NEEDED_LOOKS]
        return sorted(held, key=lambda p: (-p.score, p.target.key))

    def keys(self) -> Mapping[str, str]:
        """The odd parts' keys with the signals that are odd, for the reasons of suspects."""
        return {p.target.key: ", ".join(s.signal for s in p.signals) for p in self.odd()}

    def document(self) -> dict[str, Any]:
        """The API's answer: what is odd, and why nothing is said where nothing can be."""
        with self._lock:
            model = self.model
            items = [{**plain(p), "text": words(p)} for p in self.odd()]
            last = self._looks[-1] if self._looks else None
        shown = None if model is None else {"hash": model.hash, "start": rfc3339(model.start), "end": rfc3339(model.end)}
        return {"at": None if self.at is None else rfc3339(self.at), "model": shown, "refused": self.refused, "items": items,
                "looked": last.looked if last else 0, "unknown": last.unknown if last else 0, "next": None}


def words(part: OddPart) -> str:
    """`n3 GPU 5 is odd among the others of its node (3.1 times the limit): gpu.power_watts -12 % (usually +0.4 %), ...`."""
    rows = []
    for one in part.signals:
        relative = SIGNALS[part.target.kind][one.signal][1]
        shown, usual = (difference(value, unit_of(one.signal), relative) for value in (one.difference, one.usual))
        rows.append(f"{one.signal}{' restless,' if one.what == 'restless' else ''} {shown} (usually {usual})")
    return f"{part.target} is odd among the others of its node ({part.score:.1f} times the limit): {'; '.join(rows)}"


def difference(value: float, unit: str, relative: bool) -> str:
    """A signed difference: +12 %, -3.2 °C."""
    if relative or unit == "ratio":
        return f"{100 * value:+.3g} %"
    return f"{value:+.3g} {unit}"
