"""What a request says of who asks: the Authorization header, with secrets from files that are read when they change."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass

from collectors.access import Access
from collectors.watched_files import Stamp, WatchedFiles
from core.clock import monotonic_seconds
from core.errors import SourceError

LOOK_SECONDS = 1.0  # how long a file is taken to be as it was
MOST_SECRET_BYTES = 64 * 1024


@dataclass(slots=True)
class _Kept:
    stamp: Stamp
    text: str
    looked_at: float


class Credentials:
    """Gives headers, for one event loop. No secret is in an error."""

    def __init__(self, files: WatchedFiles) -> None:
        self._files = files
        self._kept: dict[str, _Kept] = {}
        self._gates: dict[str, asyncio.Lock] = {}  # one look for all the targets of a job that are due together

    async def header(self, access: Access) -> str:
        """The value of the Authorization header, empty where there is none. Raises SourceError(`secret_unreadable`)."""
        if not access.scheme:
            return ""
        secret = await self._text(access.secret_file) if access.secret_file else access.secret.text
        if access.scheme == "Basic":
            return "Basic " + base64.b64encode(f"{access.user}:{secret}".encode()).decode("ascii")
        if not secret.isascii() or not secret.isprintable():
            raise SourceError("secret_unreadable", f"{access.secret_file or 'the credentials'}: no header may hold what is in it")
        return f"{access.scheme} {secret}"

    async def _text(self, path: str) -> str:
        async with self._gates.setdefault(path, asyncio.Lock()):
            return await self._file(path)

    async def _file(self, path: str) -> str:
        kept, now = self._kept.get(path), monotonic_seconds()
        if kept is not None and now < kept.looked_at + LOOK_SECONDS:
            return kept.text
        try:
            stamp, text = await self._files.read(path, kept.stamp if kept else None, MOST_SECRET_BYTES)
        except SourceError as error:
            if error.reason != "file_unreadable" and kept is not None:
                return kept.text  # the helper did not answer, which says nothing of the file
            raise SourceError("secret_unreadable", error.detail) from None
        text = kept.text if text is None and kept is not None else (text or "").strip()
        self._kept[path] = _Kept(stamp, text, now)
        return text
