"""Reads Prometheus text 0.0.4 and OpenMetrics 1.0, as strictly and as leniently as Prometheus 2.42 does.

A page that a real Prometheus scrapes is read, a page that it refuses raises `SourceError` with a named reason; what it
tolerates against the standard is read and counted by name (`core.reasons.TOLERATED`). Two things differ on purpose: a
body of zero bytes is an error here (`empty_body`), in either format; and a label that stands twice is refused whatever
its name (Prometheus lets `job` or `instance` stand twice where its own label of that name replaces both).

`parse_exposition` reads a whole page. `LineParser` reads line by line, with memory that does not grow with the input
(families and known prefixes are bounded); recordings of any size are read with it. Exemplars are checked and dropped.
Blank sentinels are values here: `is_blank` tells the mapping of DCGM what to drop.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from collectors.exposition_grammar import (
    NOTHING,
    OM_SAMPLE,
    OPENMETRICS_SUFFIXES,
    TEXT_OPEN,
    TEXT_SAMPLE,
    TEXT_SUFFIXES,
    WITH_EXEMPLARS,
    Labels,
    Meta,
    openmetrics_comment,
    text_comment,
)
from collectors.exposition_known import Known, Series
from collectors.exposition_values import as_milliseconds, is_blank, milliseconds, number, seconds
from core.errors import SourceError, quote

__all__ = [
    "Family",
    "Known",
    "Limits",
    "LineParser",
    "Page",
    "Sample",
    "is_blank",
    "is_openmetrics",
    "parse_exposition",
]

_OPENMETRICS = "application/openmetrics-text"
_PROTOBUF = "application/vnd.google.protobuf"
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETERS = re.compile(rf'(?:\s*;\s*({_TOKEN})\s*=\s*(?:{_TOKEN}|"(?:[^"\\]|\\.)*")\s*)*\s*;?\s*')


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one target may make us do; beyond them the page is refused with a named reason.

    body_bytes, samples and lines of one page; line_bytes, labels and label_value_bytes of one sample; families whose
    type a parser remembers and series whose labels it remembers (beyond it all are forgotten, and read anew).
    Prometheus sets no such bounds by default; the sizes leave 20 times the room of the largest exporter we know of.
    """

    body_bytes: int = 64 << 20
    samples: int = 500_000
    lines: int = 2_000_000
    line_bytes: int = 1 << 20
    labels: int = 128
    label_value_bytes: int = 64 << 10
    families: int = 50_000
    known: int = 200_000


@dataclass(slots=True)
class Sample:
    """One line. labels: sorted (name, value) pairs without `__name__`. at: ms, None where the line has no time.

    type: that of its family (so `x_bucket` of a histogram x is a histogram): counter, gauge, histogram, summary,
    untyped, and from OpenMetrics gaugehistogram, info, stateset.
    """

    name: str
    labels: Labels
    type: str
    value: float
    at: int | None


@dataclass(slots=True)
class Family:
    """What the comments said of a family."""

    type: str | None = None
    help: str | None = None
    unit: str | None = None


@dataclass(slots=True)
class Page:
    """A whole page. tolerated: how often it broke a standard in a way that Prometheus lets pass, by name.

    plain: each sample is one line that ends in its value or its time (no exemplar, no label value over several lines).
    """

    samples: list[Sample]
    tolerated: dict[str, int]
    families: dict[str, Family] = field(default_factory=dict)
    plain: bool = True


def is_openmetrics(content_type: str | None) -> bool:
    """True where Prometheus takes the body for OpenMetrics; a content type that it cannot parse means text."""
    media, _, _ = (content_type or "").partition(";")
    if media.strip().lower() != _OPENMETRICS:
        return False
    rest = (content_type or "")[len(media) :]
    if _PARAMETERS.fullmatch(rest) is None:
        return False
    names = [name.lower() for name in re.findall(rf";\s*({_TOKEN})\s*=", rest)]
    return len(set(names)) == len(names)


class LineParser:
    """Reads one line after the other, of a page or of a recording.

    recording: the input may join many pages: CR LF, blank lines, free comments, a missing `# EOF` and lines after one
    are let pass, and the order of families is not judged; a raw line end inside a label value is not. After a
    SourceError the next line of a recording is read as if the broken one were not there.
    """

    def __init__(
        self,
        openmetrics: bool,
        limits: Limits | None = None,
        *,
        recording: bool = False,
        known: Known | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.tolerated: dict[str, int] = {}
        self.families: dict[str, Family] = {}
        self.lines = 0
        self.last: Series | None = None
        self.plain = True
        self._openmetrics, self._recording = openmetrics, recording
        self._longest = self.limits.line_bytes
        self._known = known if known is not None else Known(self.limits.known)
        self._known.use_for(openmetrics)
        self._blocks = self._known.blocks
        self._types: dict[str, str] = {}  # by sample name, found through the families
        self._suffixes = OPENMETRICS_SUFFIXES if openmetrics else TEXT_SUFFIXES
        self._comment: Callable[[bytes], Meta] = openmetrics_comment if openmetrics else text_comment
        self._name = ""  # of the last sample
        self._family = ""
        self._seen: set[str] = set()  # families that had samples in this page
        self._open: list[bytes] = []  # a sample whose label value goes on in the next line
        self._open_bytes = self._open_tries = 0
        self._ended = False

    def line(self, raw: bytes) -> Sample | None:
        """The sample of a line (its newline may be there or not), or None where it holds none. SourceError."""
        self.lines += 1
        if self._ended:
            self._after_end(raw)
            return None
        if not self._open and len(raw) <= self._longest:
            cut = raw.rfind(b"}") + 1
            brace = raw.find(b"{") if cut else raw.find(b" ")
            block = self._blocks.get(raw[brace:cut])
            if block is not None:
                series = block.series.get(raw[:brace]) or self._known.series(block, raw[:brace])
                if series is not None:
                    sample = self._fast(series, raw[cut or brace :])
                    if sample is not None:
                        return sample
        try:
            return self._slow(raw[:-1] if raw.endswith(b"\n") else raw)
        except SourceError as error:
            self._open.clear()
            raise SourceError(error.reason, f"line {self.lines}: {error.detail}") from None

    def finish(self) -> None:
        """The input is over. SourceError where it may not end here: inside a label value, or without `# EOF`."""
        if self._open:
            self._open.clear()
            raise SourceError("truncated", f"line {self.lines}: the page ends inside a label value")
        if self._openmetrics and not self._ended and not self._recording:
            raise SourceError("bad_openmetrics", "the page does not end with # EOF")

    def count(self, breach: str) -> None:
        """Notes a breach that is let pass."""
        self.tolerated[breach] = self.tolerated.get(breach, 0) + 1

    # -- samples ---------------------------------------------------------------------------------------------------

    def _fast(self, series: Series, rest: bytes) -> Sample | None:
        """What follows a known prefix, in its usual form: ` value` or ` value time`; None: read the line slowly."""
        blank, _, rest = rest.partition(b" ")
        first, more, last = rest.partition(b" ")
        if not more:
            value = number(first[:-1] if first.endswith(b"\n") else first)
            return None if blank or value is None else self._sample(series, value, None)
        value = number(first)
        if blank or value is None:
            return None
        if last.endswith(b"\n"):
            last = last[:-1]
        if not self._openmetrics:
            at = milliseconds(last)
            return None if at is None else self._sample(series, value, at)
        time = seconds(last)
        if time is None or not -9e15 < time < 9e15:
            return None
        return self._sample(series, value, as_milliseconds(time))

    def _sample(self, series: Series, value: float, at: int | None) -> Sample:
        name = series.name
        if name != self._name:
            self._name = name
            if not self._recording:
                self._change(name)
        self.last = series
        kind = self._types.get(name)
        if kind is None:
            kind = self._resolve(name)[1]
        return Sample(name, series.labels, kind, value, at)

    def _slow(self, raw: bytes) -> Sample | None:
        if len(raw) > self._longest:
            raise SourceError("line_too_long", f"more than {self._longest} bytes")
        if self._open:
            return self._go_on(raw)
        if self._recording and raw.endswith(b"\r"):
            raw = raw[:-1]
            self.count("crlf")
        bare = raw if self._openmetrics and not self._recording else raw.lstrip(b" \t")
        if not bare:
            if self._openmetrics and not self._recording:
                raise SourceError("bad_openmetrics", "a blank line")
            return None
        if bare.startswith(b"#"):
            self._meta(bare)
            return None
        if bare.startswith(b"\x00") and not self._openmetrics and not self._recording:
            self._end("other")
            return None
        return self._om_sample(bare) if self._openmetrics else self._text_sample(raw)

    def _after_end(self, raw: bytes) -> None:
        """The text format ends at a NUL, and what follows is not read; after `# EOF` only NULs may follow."""
        if self._openmetrics and (not raw or raw.strip(b"\x00")):
            raise SourceError("bad_openmetrics", f"line {self.lines}: data after # EOF: {quote(raw[:60])}")

    def _text_sample(self, raw: bytes) -> Sample | None:
        match = TEXT_SAMPLE.fullmatch(raw)
        if match is None:
            if TEXT_OPEN.fullmatch(raw):
                if self._recording:  # a line cut short must not swallow those that follow
                    raise SourceError("truncated", f"the line ends inside a label value: {quote(raw[:60])}")
                self._open.append(raw)
                self._open_bytes, self._open_tries = len(raw), 0
                self.plain = False
                return None
            raise SourceError("bad_syntax", f"not a sample: {quote(raw[:60])}")
        value = number(match["value"])
        if value is None:
            raise SourceError("bad_syntax", f"not a number: {quote(match['value'][:40])}")
        at = match["at"]
        time = None if at is None else milliseconds(at)
        if at is not None and time is None:
            raise SourceError("bad_syntax", f"the timestamp is out of range: {quote(at[:40])}")
        return self._sample(self._series(match), value, time)

    def _om_sample(self, raw: bytes) -> Sample | None:
        match = OM_SAMPLE.fullmatch(raw)
        if match is None:
            raise SourceError("bad_syntax", f"not an OpenMetrics sample: {quote(raw[:60])}")
        value = number(match["value"])
        if value is None:
            raise SourceError("bad_syntax", f"not a number: {quote(match['value'][:40])}")
        time: float | None = None
        if match["at"] is not None:
            time = seconds(match["at"])
            if time is None:
                raise SourceError("bad_openmetrics", f"not a timestamp: {quote(match['at'][:40])}")
        if match["exemplar"] is not None:
            self._check_exemplar(match)
            self.plain = False
        series = self._series(match)
        if time is not None and not -9e15 < time < 9e15:
            self.count("other")  # Prometheus takes the line and drops the sample: its time is out of bounds
            return None
        return self._sample(series, value, None if time is None else as_milliseconds(time))

    def _check_exemplar(self, match: re.Match[bytes]) -> None:
        if not match["name"].endswith(WITH_EXEMPLARS):
            raise SourceError("bad_openmetrics", f"{quote(match['name'][:40].decode())} may have no exemplar")
        try:
            match["exemplar"].decode()
        except UnicodeDecodeError:
            raise SourceError("bad_encoding", "an exemplar is not valid UTF-8") from None
        at = match["exemplar_at"]
        if number(match["exemplar_value"]) is None or (at is not None and seconds(at) is None):
            raise SourceError("bad_openmetrics", f"not an exemplar: {quote(match['exemplar'][:60])}")

    def _series(self, match: re.Match[bytes]) -> Series:
        """The series of a matched line; its name and block are known from now on."""
        block = self._known.block(match["block"] or b"", self.limits.labels, self.limits.label_value_bytes)
        series = self._known.series(block, match["name"])
        if series is None:  # the grammar has matched the name
            raise SourceError("bad_syntax", f"not a name: {quote(match['name'][:60])}")
        return series

    def _go_on(self, raw: bytes) -> Sample | None:
        """One more line of a sample whose label value holds a raw line end (the text format lets it)."""
        self._open_bytes += len(raw) + 1
        if self._open_bytes > self._longest:
            raise SourceError("line_too_long", f"a label value goes on for {self._longest} bytes")
        self._open.append(raw)
        if b'"' not in raw:
            return None
        self._open_tries += 1
        if self._open_tries > self.limits.labels:  # each try reads all of it again: bounded
            raise SourceError("line_too_long", "a label value goes on over too many lines")
        whole = b"\n".join(self._open)
        if TEXT_OPEN.fullmatch(whole):
            self._open = [whole]
            return None
        self._open.clear()
        return self._text_sample(whole)

    # -- comments and families -------------------------------------------------------------------------------------

    def _meta(self, raw: bytes) -> None:
        try:
            meta = self._comment(raw)
        except SourceError as error:
            if not (self._recording and error.reason == "bad_openmetrics"):
                raise
            self.count("other")
            return
        if meta is NOTHING or meta.kind == "":
            return
        if meta.kind == "EOF":
            if self._openmetrics or not self._recording:
                self._end("" if self._openmetrics else "other")
            return
        if raw.endswith(b"\r"):
            self.count("crlf")
        self._keep(meta)

    def _end(self, breach: str) -> None:
        self._ended = not self._recording
        if breach:
            self.count(breach)

    def _keep(self, meta: Meta) -> None:
        family = self.families.get(meta.name)
        if family is None:
            if len(self.families) >= self.limits.families:
                self.families.clear()
                self._types.clear()
            family = self.families[meta.name] = Family()
        slot = meta.kind.lower()
        if not self._recording:
            if getattr(family, slot) is not None:
                self.count("repeated_family")
            elif meta.name in self._seen:
                self.count("type_after_sample")
        elif slot == "help":
            return  # of no use in a replay, and long
        if slot == "type" and family.type != meta.text:
            self._types.clear()
        setattr(family, slot, meta.text)

    def _resolve(self, name: str) -> tuple[str, str]:
        """(family, type) of a sample's name: the family of that name, else the one whose type has this suffix."""
        found = name, "untyped"
        family = self.families.get(name)
        if family is not None and family.type is not None:
            found = name, family.type
        else:
            stem, _, tail = name.rpartition("_")
            kinds = self._suffixes.get("_" + tail)
            family = self.families.get(stem) if kinds else None
            if family is not None and family.type is not None and kinds and family.type in kinds:
                found = stem, family.type
        if len(self._types) >= self.limits.families:
            self._types.clear()
        self._types[name] = found[1]
        return found

    def _change(self, name: str) -> None:
        """A sample of another name than the last: is its family in one piece, has it a type, is its suffix there?"""
        family, kind = self._resolve(name)
        if family == self._family:
            return
        self._family = family
        if family in self._seen:
            self.count("interleaved")
            return
        self._seen.add(family)
        declared = self.families.get(family)
        if declared is None or declared.type is None:
            self.count("no_type")
        elif (
            self._openmetrics
            and name == family
            and kind in ("counter", "info", "histogram", "gaugehistogram")
        ):
            self.count("name_without_suffix")


def parse_exposition(
    body: bytes, content_type: str | None = None, limits: Limits | None = None, *, known: Known | None = None
) -> Page:
    """All samples of a page, in its order. A series that stands twice at one time counts once: the first is kept.

    content_type: the answer's header; OpenMetrics where it says so, else text. known: may be kept between the pages of
    a target. SourceError with a reason of `core.reasons.SCRAPE_REASONS`: empty_body, body_too_large, too_many_samples,
    line_too_long, bad_encoding, bad_syntax, bad_openmetrics, truncated (it ends in the middle of a line).
    """
    limits = limits or Limits()
    if not body:
        raise SourceError("empty_body", "the body has no bytes")
    if len(body) > limits.body_bytes:
        raise SourceError("body_too_large", f"{len(body)} bytes, at most {limits.body_bytes} are allowed")
    if (content_type or "").partition(";")[0].strip().lower() == _PROTOBUF:
        raise SourceError("bad_syntax", "the body is protobuf, which is not read (and was not asked for)")
    if known is None:  # each line can add a name and a block: none is forgotten within the page
        known = Known(2 * limits.samples + 2)
    parser = LineParser(is_openmetrics(content_type), limits, known=known)
    samples: list[Sample] = []
    try:
        _read(parser, body, limits, samples)
        parser.finish()
    except SourceError as error:
        if error.reason in ("bad_syntax", "bad_openmetrics") and _at_cut(parser, body):
            raise SourceError("truncated", f"the body ends in the middle of a line; {error.detail}") from None
        raise
    if not body.endswith(b"\n"):
        parser.count("missing_newline")
    return Page(samples, parser.tolerated, parser.families, parser.plain)


def _at_cut(parser: LineParser, body: bytes) -> bool:
    """True when the last line, which has no newline, is the one that could not be read."""
    return not body.endswith(b"\n") and parser.lines == body.count(b"\n") + 1


def _read(parser: LineParser, body: bytes, limits: Limits, samples: list[Sample]) -> None:
    times: dict[Series, int | None] = {}
    read, keep, room = parser.line, samples.append, limits.samples
    for raw in io.BytesIO(body):
        sample = read(raw)
        if sample is None:
            if parser.lines > limits.lines:
                raise SourceError("body_too_large", f"more than {limits.lines} lines")
            continue
        series = parser.last
        if series is not None and series.identity is not None:
            series = series.identity
        if series is not None and series in times:
            last, at = times[series], sample.at
            if at == last:
                parser.count("duplicate_series")
                continue
            if at is not None and last is not None and at < last:
                parser.count("unsorted_timestamps")
        if series is not None:
            times[series] = sample.at
        room -= 1
        if room < 0:
            raise SourceError("too_many_samples", f"more than {limits.samples} samples")
        keep(sample)
