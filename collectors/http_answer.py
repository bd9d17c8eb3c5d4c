"""The bytes of one HTTP/1.1 answer into its body: pure, fed in pieces as they come from the wire.

Read are a status line with headers, a body by Content-Length, in chunks or up to the end of the connection, plain or
gzip. Whatever the pieces, the result is the same. Everything that a hostile server can choose is bounded: the head and
the trailers by `MOST_HEAD_BYTES`, a chunk's size line by `MOST_LINE_BYTES`, the body (after decompression) by the
caller's limit. What breaks the protocol raises SourceError at the first byte from which it is certain.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping

from core.errors import SourceError, quote

MOST_HEAD_BYTES = 64 * 1024  # what h11 allows is 100 KiB, Go's client 10 MiB; real exporters send under 1 KiB
MOST_LINE_BYTES = 4 * 1024  # a chunk's size with its extensions
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?")


class AnswerReader:
    """One answer to a GET. limit: bytes of the body after decompression.

    done: the body is whole. reusable: the connection stands right behind it and may carry the next exchange. began:
    any byte has come. Raises SourceError: `redirect_refused`, `http_status`, `body_too_large`, `bad_encoding`,
    `truncated` (the answer ends early or is no HTTP). After an error the connection is of no more use.
    """

    def __init__(self, limit: int) -> None:
        self.done = self.reusable = self.began = False
        self.headers: Mapping[str, str] = {}
        self._limit = limit
        self._pieces: list[bytes] = []  # of the body
        self._size = 0
        self._unpack: Gunzip | None = None
        self._head = bytearray()  # of a head, a size line or trailers: what has come of it
        self._head_bytes = 0  # of all heads and trailers
        self._left = 0  # of the body or chunk
        self._to_close = False
        # A function, no bound method: an answer that holds itself would hold its body until cycles are looked for.
        self._state: Callable[[AnswerReader, bytes], bytes] = AnswerReader._read_head

    @property
    def body(self) -> bytes:
        """The body, decompressed."""
        return b"".join(self._pieces)

    def feed(self, data: bytes) -> bool:
        """Takes the next bytes; True once the answer is whole. Bytes behind it make the connection useless."""
        self.began = self.began or bool(data)
        while data and not self.done:
            data = self._state(self, data)
        if data:
            self.reusable = False
        return self.done

    def end(self) -> None:
        """The server has closed its side: the end of a body without a length, else an error."""
        if self.done:
            return
        if not self._to_close:
            raise SourceError("truncated", "the connection was closed in the middle of the answer" if self.began
                              else "the connection was closed without an answer")
        self._finish()

    # --- the head -----------------------------------------------------------------------------------------------------
    def _read_head(self, data: bytes) -> bytes:
        start = max(0, len(self._head) - 3)
        whole: bytes | bytearray = data
        if self._head:  # the head came in pieces; else most of the body stands in `data` too, and is not copied here
            self._head += data
            whole = self._head
        found = _HEAD_END.search(whole, start)
        if found is None or self._head_bytes + found.end() > MOST_HEAD_BYTES:
            self._bound(len(whole))
            if whole is data:
                self._head += data
            return b""
        text = whole[:found.start()].decode("latin-1")
        rest = bytes(whole[found.end():])
        self._head_bytes += found.end()
        self._head.clear()
        self._begin(text.replace("\r\n", "\n").split("\n"))
        return rest

    def _bound(self, more: int) -> None:
        if self._head_bytes + more > MOST_HEAD_BYTES:
            raise SourceError("truncated", f"no end of the headers within {MOST_HEAD_BYTES} bytes")

    def _begin(self, lines: list[str]) -> None:
        status = _STATUS.fullmatch(lines[0])
        if status is None:
            raise SourceError("truncated", f"not an HTTP/1.1 answer: {quote(lines[0])}")
        code = int(status[2])
        if 100 <= code < 200 and code != 101:
            return  # an interim answer: the real one follows
        if 300 <= code < 400:
            raise SourceError("redirect_refused", f"status {code}")
        if code != 200:
            raise SourceError("http_status", f"status {code}")
        self.headers = _headers(lines[1:])
        options = self.headers.get("connection", "").lower()
        self.reusable = "keep-alive" in options if status[1] == "0" else "close" not in options
        self._frame()

    def _frame(self) -> None:
        length, coding = self.headers.get("content-length"), self.headers.get("transfer-encoding")
        packed = self.headers.get("content-encoding", "identity").lower()
        if packed in ("gzip", "x-gzip"):
            self._unpack = Gunzip(self._limit)
        elif packed not in ("", "identity"):
            raise SourceError("bad_encoding", f"content encoding {quote(packed)}")
        if coding is not None:
            if coding.lower() != "chunked":
                raise SourceError("bad_encoding", f"transfer encoding {quote(coding)}")
            self.reusable = self.reusable and length is None  # two lengths: whoever wrote that is not to be trusted
            self._state = AnswerReader._read_chunk_size
        elif length is not None:
            if _LENGTH.fullmatch(length) is None:
                raise SourceError("truncated", f"not a content length: {quote(length)}")
            self._left = int(length)
            if self._unpack is None and self._left > self._limit:
                raise SourceError("body_too_large", f"{length} bytes are announced, {self._limit} are allowed")
            self._state = AnswerReader._read_counted
            if not self._left:
                self._finish()
        else:
            self.reusable, self._to_close = False, True
            self._state = AnswerReader._read_to_close

    # --- the body -----------------------------------------------------------------------------------------------------
    def _take(self, data: bytes) -> None:
        piece = self._unpack.feed(data) if self._unpack is not None else data
        self._size += len(piece)
        if self._size > self._limit:
            raise SourceError("body_too_large", f"more than {self._limit} bytes")
        self._pieces.append(piece)

    def _finish(self) -> None:
        if self._unpack is not None:
            self._unpack.finish()
        self.done = True

    def _read_to_close(self, data: bytes) -> bytes:
        self._take(data)
        return b""

    def _read_counted(self, data: bytes) -> bytes:
        piece = data[:self._left]
        self._left -= len(piece)
        self._take(piece)
        if not self._left:
            self._finish()
        return data[len(piece):]

    def _line(self, data: bytes) -> tuple[bytes, bytes] | None:
        """(the line without its LF, what stands behind it), None where its end has not come yet."""
        cut = data.find(b"\n")
        self._head += data if cut < 0 else data[:cut]
        if len(self._head) > MOST_LINE_BYTES:
            raise SourceError("truncated", f"a line between chunks has more than {MOST_LINE_BYTES} bytes")
        if cut < 0:
            return None
        line = bytes(self._head)
        self._head.clear()
        return line, data[cut + 1:]

    def _read_chunk_size(self, data: bytes) -> bytes:
        found = self._line(data)
        if found is None:
            return b""
        line, rest = found
        size = _CHUNK.fullmatch(line)
        if size is None:
            raise SourceError("truncated", f"not the size of a chunk: {quote(line)}")
        self._left = int(size[1], 16)
        self._state = AnswerReader._read_chunk if self._left else AnswerReader._read_trailer
        return rest

    def _read_chunk(self, data: bytes) -> bytes:
        piece = data[:self._left]
        self._left -= len(piece)
        self._take(piece)
        if not self._left:
            self._state = AnswerReader._read_chunk_end
        return data[len(piece):]

    def _read_chunk_end(self, data: bytes) -> bytes:
        found = self._line(data)
        if found is None:
            return b""
        line, rest = found
        if line not in (b"", b"\r"):
            raise SourceError("truncated", f"a chunk is longer than its size: {quote(line)}")
        self._state = AnswerReader._read_chunk_size
        return rest

    def _read_trailer(self, data: bytes) -> bytes:
        found = self._line(data)
        if found is None:
            return b""
        line, rest = found
        self._head_bytes += len(line) + 1
        self._bound(0)
        if line in (b"", b"\r"):
            self._finish()
        return rest


def _headers(lines: list[str]) -> dict[str, str]:
    """By lower-case name; what stands more than once is joined by commas, equal content lengths are one."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or _NAME.fullmatch(name) is None:
            raise SourceError("truncated", f"not a header: {quote(line)}")
        key, value = name.lower(), value.strip(" \t")
        if key in found and not (key == "content-length" and found[key] == value):
            value = f"{found[key]}, {value}"
        found[key] = value
    return found


class Gunzip:
    """Bounded gzip: never holds more than the limit and one piece. Several members in a row are read as one body."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._z = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._any = False

    def feed(self, raw: bytes) -> bytes:
        """The bytes that `raw` unpacks to. Raises SourceError(`bad_encoding` | `body_too_large`)."""
        out = []
        self._any = self._any or bool(raw)
        try:
            while raw:
                if self._z.eof:
                    self._z = zlib.decompressobj(16 + zlib.MAX_WBITS)
                piece = self._z.decompress(raw, self._left + 1)
                self._left -= len(piece)
                if self._left < 0:
                    raise SourceError("body_too_large", "the body unpacks to more than is allowed")
                out.append(piece)
                raw = self._z.unconsumed_tail or (self._z.unused_data if self._z.eof else b"")
        except zlib.error as error:
            raise SourceError("bad_encoding", f"broken gzip ({error})") from None
        return b"".join(out)

    def finish(self) -> None:
        """Raises SourceError(`truncated`) where the stream ended early."""
        if self._any and not self._z.eof:
            raise SourceError("truncated", "the gzip stream ends early")
