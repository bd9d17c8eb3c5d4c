"""`/api/v1/query_range` in pages: works with Prometheus, Thanos, Mimir and VictoriaMetrics alike, on a grid of times.

The server looks back from each point of the grid (5 minutes by default), so a value may be shown again, or some seconds
late, and a series that ended without a stale marker goes on for as long. Where there is no value there is no point: gaps
stay absent. The API knows no stale markers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np

from collectors.history.pieces import Piece, split_name
from collectors.history.selector import selector_text
from collectors.history.web import Server
from core.errors import BadInput
from core.protocols import Matcher

PATH = "/api/v1/query_range"
MOST_POINTS = 10_000  # a series and page; Prometheus refuses more than 11,000


class QueryRange:
    """`HistoryReader` over range queries. step_ms: of the grid, whose points are its multiples."""

    way = "query_range"
    samples_at_once = 200_000  # numbers come as text in JSON: an answer takes about 200 bytes of memory for each
    exact = False

    def __init__(self, server: Server, step_ms: int) -> None:
        self._server = server
        self.step_ms = step_ms

    def there(self) -> None:
        """Asks for nothing. Raises NotThere where the server has no range queries."""
        self._server.data(PATH, form={"query": "greylag_asks_whether_you_can", "start": "0", "end": "0", "step": "15"})

    def read(self, matchers: Sequence[Matcher], start: int, end: int) -> Iterator[Piece]:
        step = self.step_ms
        first, last = -(-start // step) * step, end // step * step
        for page in range(first, last + 1, MOST_POINTS * step):
            stop = min(last, page + (MOST_POINTS - 1) * step)
            form = {"query": selector_text(matchers), "start": f"{page / 1000:.3f}", "end": f"{stop / 1000:.3f}",
                    "step": f"{step / 1000:.3f}"}
            form["nocache"] = "1"  # VictoriaMetrics' cache of answers moves the points of the grid; others do not mind
            found = self._server.data(PATH, form=form)
            yield from self._pieces(found)

    def _pieces(self, data: object) -> Iterator[Piece]:
        try:
            assert isinstance(data, dict)
            assert data["resultType"] == "matrix"
            for row in data["result"]:
                points = row.get("values") or []
                if not points:
                    continue
                name, labels = split_name({str(k): str(v) for k, v in row["metric"].items()})
                at = np.array([round(float(when) * 1000) for when, _ in points], np.int64)
                yield Piece(name, labels, at, np.array([float(value) for _, value in points], np.float64))
        except (AssertionError, KeyError, TypeError, ValueError, AttributeError):
            shown = json.dumps(data)[:60]
            raise BadInput(self._server.url + PATH, "", shown, "a matrix was expected") from None

