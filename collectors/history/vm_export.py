"""VictoriaMetrics' `/api/v1/export`: raw samples with their own times, as JSON lines, read as a stream.

A line holds a part of one series. Stale markers come as `null`. The numbers `+Inf` and `-Inf`, which are no JSON, are read
as what they mean. VictoriaMetrics keeps no NaN and rounds numbers of more than about 15 digits: that is lost already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np

from collectors.history.pieces import Piece, split_name
from collectors.history.selector import selector_text
from collectors.history.web import Server
from core.derive import STALE_NAN
from core.errors import BadInput
from core.protocols import Matcher
from core.types import Floats

PATH = "/api/v1/export"
ROWS_OF_A_LINE = 10_000
VALUES = b'"values":['


class VmExport:
    """`HistoryReader` over the export API."""

    way = "export"
    samples_at_once = 400_000
    exact = True

    def __init__(self, server: Server) -> None:
        self._server = server

    def there(self) -> None:
        """Asks for nothing. Raises NotThere where the server has no export."""
        self._server.whole("POST", PATH, data={"match[]": "greylag_asks_whether_you_can", "start": "1", "end": "2"})

    def read(self, matchers: Sequence[Matcher], start: int, end: int) -> Iterator[Piece]:
        form = {"match[]": selector_text(matchers), "start": f"{start / 1000:.3f}", "end": f"{end / 1000:.3f}",
                "max_rows_per_line": str(ROWS_OF_A_LINE)}
        with self._server.stream("POST", PATH, data=form) as answer:
            rest = b""
            for block in answer.iter_bytes():
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    if line:
                        yield self._piece(line)
            if rest.strip():
                yield self._piece(rest)

    def _piece(self, line: bytes) -> Piece:
        head, mark, tail = line.partition(VALUES)  # a quote within a label is escaped, so the mark is the key itself
        numbers, _, behind = tail.partition(b"]")
        try:
            if not mark:
                raise ValueError("no values")
            metric = json.loads(head.rstrip(b", ") + b"}")["metric"]
            at = np.array(json.loads(b"{" + behind.lstrip(b", "))["timestamps"], np.int64)
            values = _numbers(numbers)
            if len(at) != len(values):
                raise ValueError("more times than values")
            name, labels = split_name({str(k): str(v) for k, v in metric.items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadInput(self._server.url + PATH, "", line[:60].decode(errors="replace"), "a line of VictoriaMetrics' export was expected") from None
        return Piece(name, labels, at, values)


def _numbers(text: bytes) -> Floats:
    words = [word.strip(b' "') for word in text.split(b",")] if text.strip() else []
    out = np.empty(len(words))
    for i, word in enumerate(words):
        out[i] = STALE_NAN if word == b"null" else float(word)
    return out
