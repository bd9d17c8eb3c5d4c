"""What can block for ever is done in a child process that can be thrown away: files on a file system that may hang, names.

A thread that waits for a dead NFS server cannot be ended, and neither can a process; but a process can be left behind. A
small pool of helpers answers requests. One that does not answer in time is killed as far as the kernel lets it, never waited
for, and replaced. What it hung on is marked: it is not asked again for a while, longer each time. All paths below a mount
of a network file system hang together; a path on a local one (a pipe without a writer) only by itself.

At most `most_stuck` helpers are left behind; beyond it no new one is started until one of them ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.disposable_child import LENGTH, message
from core.clock import monotonic_seconds
from core.errors import SourceError

DEADLINE_SECONDS = 2.0
NAME_SECONDS = 5.0  # a resolver asks its second name server after five
MOST_HELPERS, MOST_STUCK = 3, 4
LONGEST_ANSWER = 64 * 1024 * 1024
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 30.0, 600.0
MOST_HUNG = 10_000
LOCAL = frozenset({
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "devtmpfs", "overlay", "vfat", "squashfs",
    "proc", "sysfs", "devpts", "rootfs",
})


class Helper:
    """One child process. Requests are small, so that writing them never blocks; one at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "collectors.disposable_child", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._buffer = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self.paths: set[str] = set()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """True once the process is gone; never waits."""
        return self._process.poll() is not None

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. Raises SourceError(`helper_lost`) where the process ended instead."""
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        loop.add_reader(self._out, self._readable)
        try:
            os.write(self._in, message(dict(request)))
            return dict(json.loads(await self._answer))
        except (OSError, ValueError) as error:
            raise SourceError("helper_lost", str(error)) from None
        finally:
            loop.remove_reader(self._out)
            self._answer = None

    def _readable(self) -> None:
        try:
            data = os.read(self._out, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if self._answer is None or self._answer.done():
            return
        if not data:
            self._answer.set_exception(SourceError("helper_lost", "the helper ended"))
            return
        self._buffer += data
        if len(self._buffer) < LENGTH.size:
            return
        size = LENGTH.unpack_from(self._buffer)[0]
        if size > LONGEST_ANSWER:
            self._answer.set_exception(SourceError("helper_lost", "the helper gave an answer that is too long"))
        elif len(self._buffer) >= LENGTH.size + size:
            self._answer.set_result(bytes(self._buffer[LENGTH.size:LENGTH.size + size]))
            self._buffer = bytearray()

    def abandon(self) -> None:
        """Kills it as far as the kernel does, closes the pipes, waits for nothing."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


def _mounts_text() -> str:
    """What is mounted, as the kernel says it: reading it never asks a file system."""
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclass(slots=True)
class _Hung:
    until: float
    pause: float


@dataclass
class Helpers:
    """The pool, for one event loop. counts: requests that were not answered, by named reason. See the module."""

    deadline_seconds: float = DEADLINE_SECONDS
    most: int = MOST_HELPERS
    most_stuck: int = MOST_STUCK
    retry_seconds: float = RETRY_SECONDS
    start: Callable[[], Helper] = Helper
    mounts: Callable[[], str] = _mounts_text
    counts: Counter[str] = field(default_factory=Counter)
    _free: list[Helper] = field(default_factory=list)
    _left: list[Helper] = field(default_factory=list)
    _hung: dict[str, _Hung] = field(default_factory=dict)
    _gate: asyncio.Semaphore | None = None
    _closed: bool = False

    @property
    def stuck(self) -> int:
        """How many helpers were left behind and have not ended yet."""
        self._left = [one for one in self._left if not one.ended]
        return len(self._left)

    def hung(self) -> list[str]:
        """What did not answer and waits for its next try."""
        now = monotonic_seconds()
        return sorted(key for key, one in self._hung.items() if one.until > now)

    async def ask(self, what: str, request: Mapping[str, Any], deadline_seconds: float | None = None) -> dict[str, Any]:
        """The answer of a helper. what: the path or name that it is about.

        Raises SourceError: `hung` (no answer in time now or a moment ago), `helper_lost`, `helpers_used_up`.
        """
        key = self._key(what)
        self._refuse_hung(key)
        if self._gate is None:
            self._gate = asyncio.Semaphore(self.most)
        async with self._gate:
            self._refuse_hung(key)  # another path below the same mount may have hung meanwhile
            helper = self._take(what)
            try:
                async with asyncio.timeout(deadline_seconds or self.deadline_seconds):
                    answer = await helper.ask(request)
            except TimeoutError:
                self._abandon(helper)
                self._mark(key)
                self.counts["hung"] += 1
                raise SourceError("hung", f"{what} did not answer in time") from None
            except SourceError as error:
                self._abandon(helper)
                self.counts[error.reason] += 1
                raise
            except BaseException:
                self._abandon(helper)
                raise
            self._hung.pop(key, None)
            if self._closed:
                self._abandon(helper)
            else:
                self._free.append(helper)
            return answer

    def close(self) -> None:
        """Ends all helpers, and waits for none."""
        self._closed = True
        for one in self._free:
            one.abandon()
        self._free.clear()

    # --- helpers ------------------------------------------------------------------------------------------------------
    def _take(self, what: str) -> Helper:
        """A free helper, the one that has the file open where there is one; else a new one."""
        self._free = [one for one in self._free if not one.ended]
        found = next((one for one in self._free if what in one.paths), None)
        if found is None and self._free:
            found = min(self._free, key=lambda one: len(one.paths))
        if found is not None:
            self._free.remove(found)
        else:
            if self.stuck >= self.most_stuck:
                self.counts["helpers_used_up"] += 1
                raise SourceError("helpers_used_up", f"{self.stuck} helpers hang")
            try:
                found = self.start()
            except OSError as error:
                self.counts["helper_lost"] += 1
                raise SourceError("helper_lost", str(error)) from None
        found.paths.add(what)
        return found

    def _abandon(self, helper: Helper) -> None:
        helper.abandon()
        if not helper.ended:
            self._left.append(helper)

    # --- what hangs ---------------------------------------------------------------------------------------------------
    def _key(self, what: str) -> str:
        return mount_of(what, self.mounts()) if what.startswith("/") else what

    def _refuse_hung(self, key: str) -> None:
        one = self._hung.get(key)
        if one is not None and monotonic_seconds() < one.until:
            self.counts["hung"] += 1
            raise SourceError("hung", f"{key} did not answer, it is tried again later")

    def _mark(self, key: str) -> None:
        before = self._hung.get(key)
        pause = self.retry_seconds if before is None else min(LONGEST_RETRY_SECONDS, 2 * before.pause)
        if len(self._hung) >= MOST_HUNG:
            self._hung.pop(next(iter(self._hung)))
        self._hung[key] = _Hung(monotonic_seconds() + pause, pause)


def mount_of(path: str, mounts: str) -> str:
    """What hangs together with the path: the mount point below which it lies where that is of a network file system, else
    the path itself. mounts: text like that of /proc/self/mounts."""
    best, kind = "", ""
    for line in mounts.splitlines():
        words = line.split(" ")
        if len(words) < 3:
            continue
        point = words[1].replace("\\040", " ").replace("\\011", "\t")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, words[2]
    return best if best and kind not in LOCAL else path


@dataclass
class Resolver:
    """Addresses of names, asked of helpers. An answer is good for `ttl_seconds`; then it is still given while a new one is on
    its way, or does not come. A name without any address is asked for again after `retry_seconds`."""

    helpers: Helpers
    ttl_seconds: float = 60.0
    retry_seconds: float = 5.0
    deadline_seconds: float = NAME_SECONDS
    most: int = 50_000
    _known: dict[str, tuple[float, tuple[str, ...]]] = field(default_factory=dict)
    _failed: dict[str, tuple[float, str]] = field(default_factory=dict)
    _asking: dict[str, asyncio.Task[tuple[str, ...]]] = field(default_factory=dict)

    async def resolve(self, host: str) -> str:
        """The first address of the host. Raises SourceError(`connect_failed`) where there is none."""
        return (await self.addresses(host))[0]

    async def addresses(self, host: str) -> tuple[str, ...]:
        """All addresses of the host, the preferred one first. Raises SourceError(`connect_failed`) where there is none."""
        if is_address(host):
            return (host,)
        now = monotonic_seconds()
        known, failed = self._known.get(host), self._failed.get(host)
        fresh = known is not None and now < known[0]
        if not fresh and failed is not None and now < failed[0]:
            if known is None:
                raise SourceError("connect_failed", failed[1])
            fresh = True
        if known is not None and fresh:
            return known[1]
        task = self._asking.get(host)
        if task is None:
            task = self._asking[host] = asyncio.ensure_future(self._ask(host))
            task.add_done_callback(lambda done: self._asked(host, done))
        return known[1] if known is not None else await asyncio.shield(task)

    def close(self) -> None:
        """Lets the helpers go, and what is being asked."""
        for task in self._asking.values():
            task.cancel()
        self.helpers.close()

    def _asked(self, host: str, done: asyncio.Task[tuple[str, ...]]) -> None:
        self._asking.pop(host, None)
        if not done.cancelled():
            done.exception()  # seen: those who wait get it by themselves

    async def _ask(self, host: str) -> tuple[str, ...]:
        try:
            answer = await self.helpers.ask(f"name {host}", {"op": "resolve", "host": host}, self.deadline_seconds)
        except SourceError as error:
            said = str(error)
        else:
            found = tuple(str(one) for one in answer.get("addresses") or ())
            if found:
                self._failed.pop(host, None)
                _put(self._known, host, (monotonic_seconds() + self.ttl_seconds, found), self.most)
                return found
            said = str(answer.get("error") or "no address")
            self._known.pop(host, None)  # the name is gone: its old address may be somebody else's by now
        _put(self._failed, host, (monotonic_seconds() + self.retry_seconds, f"{host}: {said}"), self.most)
        raise SourceError("connect_failed", f"{host}: {said}")


def _put(book: dict[str, Any], key: str, value: Any, most: int) -> None:
    """Sets it in a book of at most `most` entries; the oldest goes."""
    book.pop(key, None)
    if len(book) >= most:
        book.pop(next(iter(book)))
    book[key] = value


def is_address(host: str) -> bool:
    """Whether the host is an IP address already."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
