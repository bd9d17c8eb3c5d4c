"""What may hang for ever is read by helpers that are thrown away: nothing else waits, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from collectors.disposable import Helper, Helpers, Resolver, is_address, mount_of
from collectors.fetch import HttpFetch
from collectors.follow import Follower
from collectors.mapping import Mapper
from collectors.tail import HelperTail
from core.config import LogConfig
from core.errors import SourceError
from core.plugins import load_plugins

T0 = 1_800_000_000_000
XID = "2027-01-15T08:00:01.000Z {} kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n"
MOUNTS = """/dev/vda / ext4 rw 0 0
proc /proc proc rw 0 0
filer:/logs /mnt/logs nfs4 rw 0 0
filer:/more /mnt/more\\040logs nfs4 rw 0 0
tmpfs /mnt/logs/tmp tmpfs rw 0 0
"""


def run(work, **settings):
    """Runs `work(helpers)` with helpers that are closed at the end."""

    async def act():
        helpers = Helpers(**{"deadline_seconds": 0.6, "retry_seconds": 30.0, **settings})
        try:
            return await work(helpers)
        finally:
            helpers.close()

    return asyncio.run(act())


@pytest.mark.parametrize(("path", "key"), [
    ("/var/log/kern.log", "/var/log/kern.log"),
    ("/mnt/logs/a.log", "/mnt/logs"),
    ("/mnt/logs", "/mnt/logs"),
    ("/mnt/logs2/a.log", "/mnt/logs2/a.log"),
    ("/mnt/more logs/a.log", "/mnt/more logs"),
    ("/mnt/logs/tmp/a.log", "/mnt/logs/tmp/a.log"),
])
def test_paths_of_a_network_mount_hang_together(path, key):
    """What is below one network mount is one; on local file systems each path is by itself."""
    assert mount_of(path, MOUNTS) == key


def test_a_file_is_read_by_a_helper_as_it_grows(tmp_path):
    """Lines come once, rotation included, and the place is what a restart needs."""
    path = tmp_path / "a.log"
    path.write_text("one\ntw")

    async def work(helpers):
        tail = HelperTail(str(path), helpers)
        first = await tail.read()
        with path.open("a") as file:
            file.write("o\n")
        path.rename(tmp_path / "a.log.1")
        path.write_text("three\n")
        second = await tail.read()
        return first, second, tail.place

    first, second, place = run(work)
    assert (first, second) == (["one"], ["two", "three"])
    assert place == (path.stat().st_ino, 6)


def test_a_lost_helper_loses_no_line(tmp_path):
    """The file goes on where its last answer ended, with another helper."""
    path = tmp_path / "a.log"
    path.write_text("one\n")

    async def work(helpers):
        tail = HelperTail(str(path), helpers)
        before = await tail.read()
        with path.open("a") as file:
            file.write("two\n")
        os.kill(helpers._free[0].pid, signal.SIGSTOP)  # a stopped one takes the request and never answers
        with pytest.raises(SourceError, match="hung"):
            await tail.read()
        await asyncio.sleep(0.1)
        return before, await tail.read()

    assert run(work, deadline_seconds=0.4, retry_seconds=0.05) == (["one"], ["two"])


def test_logs_that_hang_hold_no_other_up(tmp_path):
    """Of five logs two block on opening (pipes without a writer): the round ends in time, the others are read."""
    for i in range(3):
        (tmp_path / f"kernel.n{i}.log").write_text(XID.format(f"n{i}"))
    for i in range(3, 5):
        os.mkfifo(tmp_path / f"kernel.n{i}.log")

    async def work(helpers):
        fetch = HttpFetch()
        follower = Follower([LogConfig("kernel", path=f"{tmp_path}/kernel.*.log")], load_plugins("collectors.sources"),
                            Mapper({}), fetch, helpers=helpers)
        rounds = []
        for _ in range(2):
            began = time.monotonic()
            _, events = await follower.poll(T0, [], [])
            rounds.append((time.monotonic() - began, sorted(e.target.node for e in events)))
        await fetch.aclose()
        return rounds, follower.failures, helpers.hung()

    rounds, failures, hung = run(work)
    assert rounds[0][1] == ["n0", "n1", "n2"]
    assert rounds[0][0] < 5
    assert rounds[1][0] < 0.6  # what hung is not tried again at once
    assert failures["hung"] == 4
    assert hung == [f"{tmp_path}/kernel.n{i}.log" for i in (3, 4)]


def test_a_log_that_comes_back_is_read(tmp_path):
    """After its pause the path is tried again, and what it has is read."""
    path = tmp_path / "a.log"
    os.mkfifo(path)

    async def work(helpers):
        tail = HelperTail(str(path), helpers)
        with pytest.raises(SourceError, match="hung"):
            await tail.read()
        path.unlink()
        path.write_text("here\n")
        with pytest.raises(SourceError, match="hung"):
            await tail.read()
        await asyncio.sleep(0.3)
        return await tail.read(), helpers.hung()

    assert run(work, deadline_seconds=0.4, retry_seconds=0.25) == (["here"], [])


class Unkillable(Helper):
    """A helper that no signal ends, as one in an uninterruptible wait."""

    def abandon(self):
        os.kill(self.pid, signal.SIGSTOP)

    @property
    def ended(self):
        return False


def test_helpers_that_cannot_be_killed_are_bounded(tmp_path):
    """Stopped helpers are left behind, at most as many as allowed; then nothing new is tried, and it is said so."""
    started = []

    def start():
        helper = Unkillable()
        os.kill(helper.pid, signal.SIGSTOP)
        started.append(helper)
        return helper

    async def work(helpers):
        reasons = []
        for i in range(4):
            try:
                await helpers.ask(f"{tmp_path}/{i}", {"op": "find", "pattern": "x"})
            except SourceError as error:
                reasons.append(error.reason)
        return reasons, helpers.stuck, dict(helpers.counts)

    try:
        reasons, stuck, counts = run(work, deadline_seconds=0.1, most_stuck=2, start=start)
    finally:
        for helper in started:
            Helper.abandon(helper)
            helper._process.wait(5)
    assert reasons == ["hung", "hung", "helpers_used_up", "helpers_used_up"]
    assert (stuck, len(started)) == (2, 2)
    assert counts == {"hung": 2, "helpers_used_up": 2}


def test_a_helper_ends_with_its_parents_pipe():
    """When the parent lets go of it, the process ends by itself."""
    helper = Helper()
    helper._process.stdin.close()
    assert helper._process.wait(5) == 0
    helper._process.stdout.close()


class FakeHelpers:
    """Answers name look-ups from a script: addresses, or a reason."""

    def __init__(self, *script):
        self.script, self.asked = list(script), 0

    async def ask(self, what, request, deadline_seconds=None):
        self.asked += 1
        await asyncio.sleep(0)
        said = self.script.pop(0)
        if isinstance(said, str):
            raise SourceError(said)
        return {"addresses": said}


@pytest.mark.parametrize(("script", "pauses", "wanted", "asked"), [
    ([["10.0.0.1", "10.0.0.2"]], [0, 0], ["10.0.0.1", "10.0.0.1"], 1),
    ([["10.0.0.1"], ["10.0.0.9"]], [0, 0.15, 0.02], ["10.0.0.1", "10.0.0.1", "10.0.0.9"], 2),
    ([["10.0.0.1"], "hung"], [0, 0.15, 0.02], ["10.0.0.1", "10.0.0.1", "10.0.0.1"], 2),
    ([["10.0.0.1"], []], [0, 0.15, 0.02], ["10.0.0.1", "10.0.0.1", "connect_failed"], 2),
    ([[], ["10.0.0.1"]], [0, 0, 0.25], ["connect_failed", "connect_failed", "10.0.0.1"], 2),
    (["hung"], [0, 0], ["connect_failed", "connect_failed"], 1),
])
def test_names_are_looked_up_once_in_a_while(script, pauses, wanted, asked):
    """Answers are kept for their time, an old one helps until a new one comes, and a failure is not repeated at once."""
    fake = FakeHelpers(*script)

    async def act():
        resolver, got = Resolver(fake, ttl_seconds=0.1, retry_seconds=0.2), []
        for pause in pauses:
            await asyncio.sleep(pause)
            try:
                got.append(await resolver.resolve("n1.example"))
            except SourceError as error:
                got.append(error.reason)
        return got

    assert asyncio.run(act()) == wanted
    assert fake.asked == asked


def test_many_who_ask_for_a_name_ask_once():
    """A thousand targets behind one name make one look-up."""
    fake = FakeHelpers(["10.0.0.1"])

    async def act():
        resolver = Resolver(fake)
        return set(await asyncio.gather(*(resolver.resolve("n1.example") for _ in range(1000))))

    assert asyncio.run(act()) == {"10.0.0.1"}
    assert fake.asked == 1


def test_a_name_is_resolved_by_a_real_helper():
    """`localhost` has an address; addresses are not asked about."""

    async def work(helpers):
        return await Resolver(helpers).resolve("localhost"), await Resolver(helpers).resolve("::1")

    found, same = run(work, deadline_seconds=3.0)
    assert found in ("127.0.0.1", "::1")
    assert same == "::1"
    assert is_address("10.1.2.3")
    assert not is_address("node-1")
