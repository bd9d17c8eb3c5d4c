"""The two line grammars, exactly as Prometheus 2.42 reads them: text 0.0.4 and OpenMetrics 1.0.

Text is loose: blanks and tabs between tokens, commas between labels optional, a value glued to its name, free
comments, and a raw line end inside a label value. OpenMetrics is tight: one blank, no free comments, `# EOF`.
NUL bytes need care: Prometheus' lexers skip them inside label values, help texts and the word after `# `, and the
text lexer takes a NUL at the start of a line for the end of the page. All loops are possessive: time is linear.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from core.errors import SourceError, quote

TEXT_TYPES = {name.encode(): name for name in ("counter", "gauge", "histogram", "summary", "untyped")}
OPENMETRICS_TYPES = {
    name.encode(): name
    for name in ("counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset")
} | {b"unknown": "untyped"}
TEXT_SUFFIXES: dict[str, tuple[str, ...]] = {
    "_bucket": ("histogram",),
    "_sum": ("histogram", "summary"),
    "_count": ("histogram", "summary"),
}
OPENMETRICS_SUFFIXES: dict[str, tuple[str, ...]] = {
    "_total": ("counter",),
    "_created": ("counter", "histogram", "summary"),
    "_bucket": ("histogram", "gaugehistogram"),
    "_sum": ("histogram", "summary"),
    "_count": ("histogram", "summary"),
    "_gsum": ("gaugehistogram",),
    "_gcount": ("gaugehistogram",),
    "_info": ("info",),
}
WITH_EXEMPLARS = (b"_total", b"_bucket")  # the only names on which Prometheus 2.42 lets exemplars stand

_NAME = rb"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_LABEL = rb"[a-zA-Z_][a-zA-Z0-9_]*+"
_QUOTED_TEXT = rb'"[^"\\]*+(?:\\\x00*+[^\n\x00][^"\\]*+)*+"\x00*+'
_QUOTED_OM = rb'"[^"\\\n]*+(?:\\\x00*+[^\n\x00][^"\\\n]*+)*+"\x00*+'
_QUOTED_EXEMPLAR = rb'"[^"\\\n\x00]*+(?:\\[^\n\x00][^"\\\n\x00]*+)*+"'


def _rule(template: bytes, **parts: bytes) -> bytes:
    """The template with each `<NAME>` replaced by the pattern of that name."""
    for name, pattern in parts.items():
        template = template.replace(f"<{name}>".encode(), pattern)
    return template


def _spread(word: bytes) -> bytes:
    """The word with any number of NULs after each letter (the lexers skip them there)."""
    return b"".join(bytes((letter,)) + rb"\x00*+" for letter in word)


_PAIR_TEXT = _rule(rb"<LABEL>[ \t]*+=[ \t]*+<QUOTED>[ \t]*+,?+[ \t]*+", LABEL=_LABEL, QUOTED=_QUOTED_TEXT)
_PAIR_OM = _rule(rb"<LABEL>=<QUOTED>", LABEL=_LABEL, QUOTED=_QUOTED_OM)
_PAIR_EXEMPLAR = _rule(rb"<LABEL>=<QUOTED>", LABEL=_LABEL, QUOTED=_QUOTED_EXEMPLAR)

TEXT_SAMPLE = re.compile(
    _rule(
        rb"(?P<name><NAME>)(?:[ \t]*+(?P<block>\{[ \t]*+(?:<PAIR>)*+\}))?+"
        rb"[ \t]*+(?P<value>[^{ \t\n]++)[ \t]*+(?P<at>[0-9]++)?+[ \t]*+",
        NAME=_NAME,
        PAIR=_PAIR_TEXT,
    )
)
# A sample line that ends inside a label value: the value goes on in the next line.
TEXT_OPEN = re.compile(
    _rule(
        rb'<NAME>[ \t]*+\{[ \t]*+(?:<PAIR>)*+<LABEL>[ \t]*+=[ \t]*+"[^"\\]*+(?:\\\x00*+[^\n\x00][^"\\]*+)*+',
        NAME=_NAME,
        PAIR=_PAIR_TEXT,
        LABEL=_LABEL,
    )
)
OM_SAMPLE = re.compile(
    _rule(
        rb"(?P<name><NAME>)(?P<block>\{(?:<PAIR>(?:,<PAIR>)*+)?+\})?+ (?P<value>[^ \n]++)(?: (?P<at>[^ \n]++))?"
        rb"(?: # (?P<exemplar>\{(?:<EXEMPLAR>(?:,<EXEMPLAR>)*+)?+\})"
        rb" (?P<exemplar_value>[^ \n]++)(?: (?P<exemplar_at>[^ \n]++))?+)?",
        NAME=_NAME,
        PAIR=_PAIR_OM,
        EXEMPLAR=_PAIR_EXEMPLAR,
    )
)
_TEXT_META = re.compile(
    _rule(
        rb"(?P<kind><HELP>|<TYPE>)(?:[ \t]\x00*+)++(?:(?P<name><NAME>)(?P<text>(?:[^\x00\n][^\n]*+)?+)\Z)?+",
        HELP=_spread(b"HELP"),
        TYPE=_spread(b"TYPE"),
        NAME=_NAME,
    )
)
_OM_META = re.compile(
    _rule(
        rb"# (?P<kind><HELP>|<TYPE>|<UNIT>) \x00*+(?:(?P<name><NAME>) (?P<text>[^\n]*+)\Z)?+",
        HELP=_spread(b"HELP"),
        TYPE=_spread(b"TYPE"),
        UNIT=_spread(b"UNIT"),
        NAME=_NAME,
    )
)
_OM_EOF = re.compile(_rule(rb"# <EOF>\Z", EOF=_spread(b"EOF")))
_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_PAIR_NUL = re.compile(
    r'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*("[^"\\]*(?:\\\x00*[^\x00][^"\\]*)*"\x00*)', re.DOTALL
)
_ESCAPE = re.compile(r'\\([\\"n])')
_HELP_ESCAPE = re.compile(r"\\([\\n])")

Labels = tuple[tuple[str, str], ...]


class Meta(NamedTuple):
    """A line that is no sample. kind: HELP, TYPE, UNIT, EOF (the page ends), or an empty string: nothing to keep."""

    kind: str
    name: str = ""
    text: str = ""


NOTHING, END = Meta(""), Meta("EOF")


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _utf8(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise SourceError("bad_encoding", f"{what} is not valid UTF-8: {quote(raw[:60])}") from None


def read_labels(block: bytes, most: int, longest: int) -> Labels:
    """The sorted (name, value) pairs of a `{...}` block that matched the grammar; values unescaped.

    Empty values are kept, as prometheus-client keeps them; Prometheus treats them as absent. SourceError: bad_encoding;
    bad_syntax for a name that stands twice or is `__name__`; line_too_long for over `most` pairs or `longest` bytes.
    """
    text = _utf8(block, "a label value")
    if "\x00" in text:
        # Prometheus cuts the first and the last byte off; NULs after the closing quote belong to what it cuts.
        pairs = [(name, quoted[1:-1]) for name, quoted in _PAIR_NUL.findall(text)]
    else:
        pairs = _PAIR.findall(text)
    if len(pairs) > most:
        raise SourceError("line_too_long", f"{len(pairs)} labels, at most {most} are allowed")
    if "\\" in text:
        pairs = [(name, _ESCAPE.sub(_unescape, value)) for name, value in pairs]
    found = dict(pairs)
    if "__name__" in found:
        raise SourceError("bad_syntax", "the label __name__ stands beside the metric's name")
    if len(found) != len(pairs):
        pairs = _without_repeats(pairs)
    if len(block) > longest and any(len(value.encode()) > longest for _, value in pairs):
        raise SourceError("line_too_long", f"a label value has more than {longest} bytes")
    return tuple(sorted(pairs))


def _without_repeats(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """An empty value takes all labels of its name away, as in Prometheus; what then stands twice is refused."""
    empty = {name for name, value in pairs if not value}
    kept = [pair for pair in pairs if pair[0] not in empty]
    names = [name for name, _ in kept]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SourceError("bad_syntax", f"the label {quote(twice)} stands twice")
    return kept


def text_comment(line: bytes) -> Meta:
    """A `#` line of the text format (leading blanks and tabs cut off): HELP, TYPE, the end, or nothing to keep."""
    words = line[1:].lstrip(b" \t")
    if len(words) == len(line) - 1:
        return END if b"\x00" in words else NOTHING  # `#x`: here a NUL ends the page
    if words.startswith(b"\x00"):
        return END
    match = _TEXT_META.match(words)
    if match is None:
        return NOTHING
    kind = match["kind"].replace(b"\x00", b"").decode()
    if match["name"] is None:
        raise SourceError("bad_syntax", f"{kind} needs a metric name: {quote(line[:60])}")
    name, text = match["name"].decode(), match["text"][1:]
    if kind == "HELP":
        return Meta(kind, name, _HELP_ESCAPE.sub(_unescape, _utf8(text, "a help text")))
    return Meta(kind, name, _type(text, TEXT_TYPES))


def openmetrics_comment(line: bytes) -> Meta:
    """A `#` line of OpenMetrics: HELP, TYPE, UNIT or EOF; anything else is refused."""
    match = _OM_META.match(line)
    if match is None:
        if _OM_EOF.match(line):
            return END
        raise SourceError("bad_openmetrics", f"a comment must be HELP, TYPE, UNIT or EOF: {quote(line[:60])}")
    kind = match["kind"].replace(b"\x00", b"").decode()
    if match["name"] is None:
        raise SourceError(
            "bad_openmetrics", f"{kind} needs a metric name, one blank and a text: {quote(line[:60])}"
        )
    name, text = match["name"].decode(), match["text"]
    if kind == "TYPE":
        return Meta(kind, name, _type(text, OPENMETRICS_TYPES))
    if kind == "UNIT":
        if text and not match["name"].endswith(b"_" + text):
            raise SourceError("bad_openmetrics", f"the unit {quote(text[:40])} is no suffix of {quote(name)}")
        return Meta(kind, name, text.decode())
    return Meta(kind, name, _ESCAPE.sub(_unescape, _utf8(text, "a help text")))


def _type(raw: bytes, allowed: dict[bytes, str]) -> str:
    found = allowed.get(raw)
    if found is None:
        listed = ", ".join(name.decode() for name in allowed)
        raise SourceError("bad_syntax", f"the type {quote(raw[:40])} is none of {listed}")
    return found
