"""Loki's past: `/loki/api/v1/query_range` in pages, by time and by the number of lines that the server gives at once.

A page is full when it has as many lines as were asked for; the next one begins at the time of its last line, and lines of that
very moment that came already are left out by what they say. Pages are asked for forward; a server that answers backward (Loki's
own default; some gateways know nothing else) is read from the end. More lines of one nanosecond than the server gives at once
cannot be paged by anybody: that is refused with a sentence, never cut.

Lines come with their stream's labels and with structured metadata: apart where the server can tell them apart
(`categorize-labels`), else among the labels.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from collectors.history.pieces import TooMuch
from collectors.history.web import Server
from collectors.push.parts import LogLine
from core.clock import rfc3339
from core.errors import BadInput, Unavailable

PATH, LABELS = "/loki/api/v1/query_range", "/loki/api/v1/labels"
MOST_LINES = 5000  # Loki's own default of max_entries_limit_per_query
LEAST_LINES = 10
LINES_AT_ONCE = 50_000
OVERRUN = 4
NS = 1_000_000  # of a millisecond
HEADERS = {"X-Loki-Response-Encoding-Flags": "categorize-labels"}
_LIMIT = re.compile(r"max entries limit.*?\(\d+ > (\d+)\)")
_TOO_WIDE = ("time range exceeds", "query range", "max query length", "too many", "would read", "chunks limit", "exceeded")


class Entry(NamedTuple):
    """One line. labels: of its stream and its metadata, sorted."""

    ns: int
    labels: tuple[tuple[str, str], ...]
    line: str


class Loki:
    """Reads lines. direction: the order that is asked for; either reads the same lines."""

    way = "loki"

    def __init__(self, server: Server, direction: str = "forward") -> None:
        self._server = server
        self._direction = direction
        self.limit = MOST_LINES

    def there(self) -> None:
        """Asks for the names of labels. Raises NotThere or BadInput where the server is no Loki."""
        self._server.data(LABELS, params={"start": "0", "end": "1000000000"})

    def label_names(self, start: int, end: int) -> list[str]:
        """The labels that streams have in a time (ms), as far as the server tells."""
        try:
            found = self._server.data(LABELS, params={"start": str(start * NS), "end": str((end + 1) * NS)})
        except (TooMuch, BadInput, Unavailable):
            return []
        return sorted(str(one) for one in found) if isinstance(found, list) else []

    def read(self, selectors: Sequence[str], start: int, end: int) -> list[Entry]:
        """All lines with start <= time <= end (ms) that any selector gives, by time; a line that two of them give comes once.

        Raises TooMuch, BadInput, Unavailable.
        """
        whole: Counter[Entry] = Counter()
        for selector in selectors:
            whole |= Counter(self._lines(selector, start * NS, (end + 1) * NS))
            if sum(whole.values()) > OVERRUN * LINES_AT_ONCE and end - start > 1000:
                raise TooMuch(f"over {OVERRUN * LINES_AT_ONCE} lines")
        return sorted(whole.elements(), key=lambda entry: entry.ns)

    def _lines(self, selector: str, low: int, high: int) -> list[Entry]:
        out: list[Entry] = []
        edge: Counter[Entry] = Counter()
        while low < high:
            page, limit = self._page(selector, low, high)
            full = len(page) >= limit
            backward = full and self._backward(selector, page, low)
            for entry in reversed(page) if backward else page:
                if edge[entry] > 0:
                    edge[entry] -= 1
                else:
                    out.append(entry)
            if not full:
                break
            if len(out) > OVERRUN * LINES_AT_ONCE and high - low > 1000 * NS:
                raise TooMuch(f"over {len(out)} lines")
            last = (min if backward else max)(entry.ns for entry in page)
            if last == (high - 1 if backward else low):  # the whole page is of one moment, and so would the next be
                raise BadInput("--match", "", selector, f"a narrower selector is needed: the server gives {limit} lines at once, and "
                               f"at {rfc3339(last // NS)} as many or more have one and the same time")
            edge = Counter(entry for entry in page if entry.ns == last)
            low, high = (low, last + 1) if backward else (last, high)
        return out

    def _backward(self, selector: str, page: Sequence[Entry], low: int) -> bool:
        """Whether the newest lines come first, as a stream of the page shows. Where none does, it is asked whether anything is
        older than the page."""
        before: dict[tuple[tuple[str, str], ...], int] = {}
        for entry in page:
            known = before.setdefault(entry.labels, entry.ns)
            if known != entry.ns:
                return entry.ns < known
        oldest = min(entry.ns for entry in page)
        return oldest > low and bool(self._page(selector, low, oldest)[0])

    def _page(self, selector: str, low: int, high: int) -> tuple[list[Entry], int]:
        """(lines, how many were asked for) with low <= ns < high."""
        while True:
            params = {"query": selector, "start": str(low), "end": str(high), "limit": str(self.limit), "direction": self._direction}
            try:
                body = self._server.whole("GET", PATH, params=params, headers=HEADERS)
                return self._entries(body, low, high), self.limit
            except BadInput as error:
                said = str(error)
                if (match := _LIMIT.search(said)) is not None and LEAST_LINES <= int(match[1]) < self.limit:
                    self.limit = int(match[1])
                elif "max entries limit" in said and self.limit // 2 >= LEAST_LINES:
                    self.limit //= 2
                elif any(words in said for words in _TOO_WIDE):
                    raise TooMuch(said) from None
                else:
                    raise
            except Unavailable as error:
                if " 504:" in str(error) or "deadline exceeded" in str(error):
                    raise TooMuch(str(error)) from None
                raise

    def _entries(self, body: bytes, low: int, high: int) -> list[Entry]:
        try:
            answer = json.loads(body)
            data = answer["data"]
            if answer["status"] != "success" or data["resultType"] != "streams":
                raise ValueError(f"a result of type {data['resultType']}")
            out = []
            for stream in data["result"] or ():
                labels = {str(name): str(value) for name, value in stream["stream"].items()}
                for row in stream["values"]:
                    out.append(Entry(int(row[0]), _labels(labels, row), str(row[1])))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise BadInput(self._server.url + PATH, "", body[:60].decode(errors="replace"),
                           "log lines were expected: a selector of streams is needed, no query of a metric") from None
        if any(not low <= entry.ns < high for entry in out):
            raise BadInput(self._server.url + PATH, "", "lines of another time than was asked for", "a Loki is needed")
        return out


def _labels(stream: dict[str, str], row: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """The stream's labels with the line's own: structured metadata counts, what a query's parser found does not overwrite them."""
    more = row[2] if len(row) > 2 else None
    if not isinstance(more, dict) or not more:
        return tuple(sorted(stream.items()))
    if any(isinstance(more.get(key), dict) for key in ("structuredMetadata", "parsed")):
        parsed, metadata = more.get("parsed") or {}, more.get("structuredMetadata") or {}
        merged = {**parsed, **metadata, **stream}
    else:
        merged = {**more, **stream}
    return tuple(sorted((str(name), str(value)) for name, value in merged.items()))


def log_line(entry: Entry) -> LogLine:
    """The line as the log sources take it."""
    return LogLine(entry.line, entry.ns // NS, dict(entry.labels))


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as a selector: `{app="kernel",host="n17"}`."""
    return "{" + ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in sorted(labels.items())) + "}"
