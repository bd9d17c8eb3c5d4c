"""Syslog messages (RFC 5424 and RFC 3164) and their framing on TCP (RFC 6587: octet counting and newlines). Pure.

A message that is neither is taken as a bare line: real devices send what they like, and a line from a known peer is still
worth reading.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from collectors.logtimes import MONTH_NAMES, MONTHS, dated, fraction_ms
from collectors.push.parts import LogLine
from core.clock import parse_rfc3339

LONGEST_MESSAGE = 64 * 1024
FACILITIES = ("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp",
              "audit", "alert", "clock", *(f"local{i}" for i in range(8)))
_PRIORITY = re.compile(r"<(\d{1,3})>")
_RFC5424 = re.compile(r"1 (\S+) (\S{1,255}) (\S{1,48}) (\S{1,128}) (\S{1,32}) (?:-|(?=\[))")
_ELEMENT = re.compile(r'\[([^ =\]"]{1,32})((?: [^ =\]"]{1,32}="(?:[^"\\\]]|\\.)*+")*+)\]')
_PARAM = re.compile(r' ([^ =\]"]{1,32})="((?:[^"\\\]]|\\.)*+)"')
_RFC3164 = re.compile(
    rf"(?:(?P<mo>{MONTH_NAMES}) +(?P<d>\d{{1,2}}) (?:(?P<y>\d{{4}}) )?(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?:\.(?P<f>\d+))?"
    r"|(?P<iso>\d{4}-\d\d-\d\dT\S+)) +(?:(?P<host>[\w.:-]+) +)?(?=\S)")
_HOSTLESS_TAG = re.compile(r"[\w./-]{1,48}(?:\[\d+\])?:(?:\s|$)")
_TAG = re.compile(r"(?P<app>[\w./-]{1,48})(?:\[(?P<pid>\d+)\])?: ?")
_LONG_FRACTION = re.compile(r"(\.\d{6})\d+")


def parse_message(raw: str, peer: str, received_ms: int) -> LogLine:
    """A message as a log line: labels facility, hostname, app_name, procid, msgid and the structured data's parameters.

    peer: the sender's address, the host of messages that name none. A time without a year is of the year in which it is
    nearest to `received_ms`; no zone = UTC.
    """
    text = raw.rstrip("\x00\r\n").removeprefix("\ufeff")
    labels = {"hostname": peer}
    match = _PRIORITY.match(text)
    if match is not None and int(match[1]) < 192:
        labels["facility"] = FACILITIES[int(match[1]) >> 3]
        text = text[match.end():]
        if (found := _new_form(text, labels)) is not None:
            return found
    return _old_form(text, labels, received_ms)


def _new_form(text: str, labels: dict[str, str]) -> LogLine | None:
    match = _RFC5424.match(text)
    if match is None:
        return None
    at: int | None = None
    if match[1] != "-":
        try:
            at = parse_rfc3339(_LONG_FRACTION.sub(r"\1", match[1]))
        except (ValueError, OverflowError):
            return None
    for name, value in zip(("hostname", "app_name", "procid", "msgid"), match.groups()[1:], strict=True):
        if value != "-":
            labels[name] = value
    pos = match.end()
    while (element := _ELEMENT.match(text, pos)) is not None:
        for name, value in _PARAM.findall(element[2]):
            labels.setdefault(re.sub(r"[^a-zA-Z0-9_]", "_", name), re.sub(r"\\([\"\\\]])", r"\1", value))
        pos = element.end()
    return LogLine(text[pos:].removeprefix(" ").removeprefix("\ufeff"), at, labels)


def _old_form(text: str, labels: dict[str, str], received_ms: int) -> LogLine:
    at: int | None = None
    if (match := _RFC3164.match(text)) is not None:
        at = _old_time(match, received_ms)
        host = match["host"]
        pos = match.end()
        if host is not None:
            if _HOSTLESS_TAG.match(text, match.start("host")) and host.endswith(":"):
                pos = match.start("host")  # no host stands there, that is the tag already
            else:
                labels["hostname"] = host
        text = text[pos:]
    if (tag := _TAG.match(text)) is not None and (at is not None or tag["app"] == "kernel"):
        labels["app_name"] = tag["app"]
        if tag["pid"]:
            labels["procid"] = tag["pid"]
        text = text[tag.end():]
    return LogLine(text, at, labels)


def _old_time(match: re.Match[str], received_ms: int) -> int | None:
    if match["iso"] is not None:
        try:
            return parse_rfc3339(_LONG_FRACTION.sub(r"\1", match["iso"]))
        except (ValueError, OverflowError):
            return None
    fields = (MONTHS[match["mo"]], int(match["d"]), int(match["h"]), int(match["mi"]), int(match["s"]), fraction_ms(match["f"]))
    if match["y"] is not None:
        return dated(int(match["y"]), fields)
    year = datetime.fromtimestamp(received_ms / 1000, UTC).year
    near = [at for at in (dated(one, fields) for one in (year - 1, year, year + 1)) if at is not None]
    return min(near, key=lambda at: abs(at - received_ms)) if near else None


class Frames:
    """Cuts a TCP stream into messages, whatever the pieces: `123 <34>…` by octets, else by newline (or NUL). A message
    longer than `LONGEST_MESSAGE` is cut to that length, the rest of it is dropped (`too_long` counts)."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0
        self._skip_line = False
        self.too_long = 0

    def feed(self, data: bytes) -> list[str]:
        """The messages that these bytes complete."""
        self._buffer += data
        out: list[str] = []
        while self._buffer:
            found = self._next()
            if found is None:
                break
            if found:
                out.append(found.decode("utf-8", "replace"))
        return out

    def end(self) -> list[str]:
        """What stands there when the sender closes: a last line without its newline."""
        if self._skip or self._skip_line or _COUNT.match(self._buffer):
            return []
        rest = bytes(self._buffer).strip(b"\r\n\x00")
        self._buffer.clear()
        return [rest.decode("utf-8", "replace")] if rest else []

    def _next(self) -> bytes | None:
        """The next message, b"" where something was skipped, None where more bytes are needed."""
        buffer = self._buffer
        if self._skip:
            gone = min(self._skip, len(buffer))
            del buffer[:gone]
            self._skip -= gone
            return b"" if gone and not self._skip else None
        if not self._skip_line and (count := _COUNT.match(buffer)) is not None:
            size, start = int(count[1]), count.end()
            if size > LONGEST_MESSAGE:
                if len(buffer) < start + LONGEST_MESSAGE:
                    return None
                found = bytes(buffer[start:start + LONGEST_MESSAGE])
                del buffer[:start + LONGEST_MESSAGE]
                self._skip = size - LONGEST_MESSAGE
                self.too_long += 1
                return found
            if len(buffer) < start + size:
                return None
            found = bytes(buffer[start:start + size])
            del buffer[:start + size]
            return found.rstrip(b"\r\n\x00")
        if not self._skip_line and _MAYBE_COUNT.fullmatch(buffer):
            return None
        return self._line()

    def _line(self) -> bytes | None:
        buffer = self._buffer
        end = _LINE_END.search(buffer)
        if end is None:
            if self._skip_line:
                buffer.clear()
                return None
            if len(buffer) < LONGEST_MESSAGE:
                return None
            found = bytes(buffer[:LONGEST_MESSAGE])
            del buffer[:LONGEST_MESSAGE]
            self._skip_line = True
            self.too_long += 1
            return found
        found = bytes(buffer[:end.start()])
        del buffer[:end.end()]
        if self._skip_line:
            self._skip_line = False
            return b""
        return found.rstrip(b"\r")


_COUNT = re.compile(rb"([1-9]\d{0,8}) (?=<)")
_MAYBE_COUNT = re.compile(rb"[1-9]\d{0,8} ?")
_LINE_END = re.compile(rb"[\n\x00]")
