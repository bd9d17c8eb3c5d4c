"""New lines of a growing log: an HTTP door that answers `?from=<byte>` with the bytes after it, or a file by way of a helper.

A file lies on a file system that may hang for ever, so it is opened, read and looked at in a disposable child process
(`collectors.disposable`); where it stands is known here, so a child that is lost costs nothing but time.
"""

from __future__ import annotations

from collectors.disposable import Helpers
from collectors.fetch import Fetch, Request
from collectors.filetail import FIRST_LOOK_BACK, LONGEST_LINE, MOST_BYTES, FileTail, Lines
from core.errors import SourceError

__all__ = ["FIRST_LOOK_BACK", "LONGEST_LINE", "MOST_BYTES", "FileTail", "HelperTail", "HttpTail", "Lines"]

TIMEOUT_SECONDS = 10.0


class HelperTail:
    """One local file, read by a helper. place: (inode, offset) where an earlier run stopped, None for one not met before."""

    def __init__(self, path: str, helpers: Helpers, place: tuple[int, int] | None = None) -> None:
        self.path = path
        self._helpers = helpers
        self._place = place

    @property
    def place(self) -> tuple[int, int]:
        """(inode, offset) of the first byte that has not been given out."""
        return self._place or (0, 0)

    async def read(self) -> list[str]:
        """New complete lines; an empty list where the file is missing or unreadable. Raises SourceError(`hung`,
        `helper_lost`, `helpers_used_up`) where no answer came; nothing is lost then, the lines come later."""
        answer = await self._helpers.ask(self.path, {"op": "read", "path": self.path, "place": self._place})
        if answer.get("place") is not None:
            inode, offset = answer["place"]
            self._place = int(inode), int(offset)
        return [str(line) for line in answer.get("lines", ())]


class HttpTail:
    """One log behind a door. offset: the byte where an earlier run stopped."""

    def __init__(self, url: str, fetch: Fetch, offset: int = 0) -> None:
        self.url = url
        self._fetch = fetch
        self._lines = Lines(offset)

    @property
    def offset(self) -> int:
        """Offset of the first byte that has not been given out."""
        return self._lines.start

    async def read(self) -> list[str]:
        """New complete lines. Raises SourceError with a named reason where the door did not answer with 200."""
        joiner = "&" if "?" in self.url else "?"
        url = f"{self.url}{joiner}from={self._lines.end}"
        before = self._lines.end
        body = await self._fetch.get(Request(url, TIMEOUT_SECONDS, 4 * MOST_BYTES, "text/plain"))
        if body.next_offset is not None and body.next_offset < before:
            # The log is shorter than what was read of it: it began anew.
            self._lines = Lines(0)
            return await self._again()
        if body.next_offset is not None and body.next_offset != before + len(body.data):
            raise SourceError("truncated", f"the door announced {body.next_offset - before} bytes, {len(body.data)} came")
        return self._lines.feed(body.data)

    async def _again(self) -> list[str]:
        joiner = "&" if "?" in self.url else "?"
        body = await self._fetch.get(Request(f"{self.url}{joiner}from=0", TIMEOUT_SECONDS, 4 * MOST_BYTES, "text/plain"))
        return self._lines.feed(body.data)
