"""Small files that are read again when they change: target files, secrets, certificates.

They are read beside the event loop: by helpers that can be left behind (`collectors.disposable`) where there are some, so
that a file on a hung file system blocks nothing, else by a thread.
"""

from __future__ import annotations

import asyncio
import glob
from typing import Any

from collectors.disposable import Helpers
from collectors.disposable_child import Child
from core.errors import SourceError

MOST_BYTES = 32 * 1024 * 1024
Stamp = tuple[int, int]  # modification time in ns, size


class WatchedFiles:
    """Reads files. helpers: None = a thread does it."""

    def __init__(self, helpers: Helpers | None = None) -> None:
        self._helpers = helpers

    async def read(self, path: str, known: Stamp | None = None, most: int = MOST_BYTES) -> tuple[Stamp, str | None]:
        """(stamp, text) of the file; the text is None where the stamp is the known one.

        Raises SourceError(`file_unreadable`), or what `Helpers.ask` raises. The file's content is in no error.
        """
        answer = await self._ask(path, {"op": "file", "path": path, "stamp": known and list(known), "most": most})
        if "stamp" not in answer:
            raise SourceError("file_unreadable", f"{path}: {answer.get('error') or 'no answer'}")
        mtime, size = answer["stamp"]
        return (int(mtime), int(size)), answer.get("text")

    async def find(self, pattern: str) -> list[str]:
        """The paths that match, sorted; the pattern itself where nothing in it is a wildcard."""
        if not glob.has_magic(pattern):
            return [pattern]
        return [str(one) for one in (await self._ask(pattern, {"op": "find", "pattern": pattern})).get("paths") or ()]

    async def _ask(self, what: str, request: dict[str, Any]) -> dict[str, Any]:
        if self._helpers is not None:
            return await self._helpers.ask(what, request)
        return await asyncio.to_thread(Child().answer, request)
