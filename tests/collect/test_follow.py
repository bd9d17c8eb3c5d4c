"""Logs that grow: files with rotation and truncation, HTTP doors with offsets, and what their lines become."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.fetch import HttpFetch
from collectors.follow import Follower
from collectors.mapping import Mapper
from collectors.readings import ReadingScrapes
from collectors.tail import LONGEST_LINE, FileTail, Lines
from core.config import LogConfig
from core.plugins import load_plugins
from core.types import Target
from tests.collect.doors import reply, serve

SOURCES = load_plugins("collectors.sources")
MAPPER = Mapper(SOURCES)
T0 = 1_800_000_000_000


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=20), max_size=8), st.integers(1, 7))
def test_lines_do_not_depend_on_where_the_bytes_are_cut(lines, step):
    """Any cutting gives the same lines, and the offset counts each byte."""
    data = "".join(line + "\n" for line in lines).encode()
    cutter = Lines()
    out = [line for i in range(0, len(data), step) for line in cutter.feed(data[i : i + step])]
    assert out == lines
    assert cutter.start == cutter.end == len(data)


def test_a_line_without_an_end_does_not_grow_for_ever():
    """A line over 64 KiB is dropped and counted, the next one is read."""
    cutter = Lines()
    data = b"x" * (LONGEST_LINE + 10)
    assert cutter.feed(data) == []
    assert cutter.feed(data + b"\nnext\n") == ["next"]
    assert cutter.too_long == 1
    assert cutter.start == 2 * len(data) + 6


def test_a_file_is_followed_through_rotation_and_truncation(tmp_path):
    """The unfinished line waits; a rotated file is read to its end first; a cut one begins again."""
    path = tmp_path / "a.log"
    tail = FileTail(str(path))
    assert tail.read() == []
    path.write_text("one\ntw")
    assert tail.read() == ["one"]
    with path.open("a") as file:
        file.write("o\nthree\nrest")
    path.rename(tmp_path / "a.log.1")
    path.write_text("four\n")
    assert tail.read() == ["two", "three", "rest", "four"]
    path.write_text("5\n")
    assert tail.read() == ["5"]
    tail.close()


def test_a_saved_place_goes_on_where_it_ended(tmp_path):
    """A restart reads nothing twice and loses nothing; a replaced file is read from its start."""
    path = tmp_path / "a.log"
    path.write_text("one\ntw")
    first = FileTail(str(path))
    first.read()
    place = first.place
    first.close()
    with path.open("a") as file:
        file.write("o\n")
    second = FileTail(str(path), place)
    assert second.read() == ["two"]
    second.close()
    other = tmp_path / "b.log"
    other.write_text("new\n")
    third = FileTail(str(other), place)
    assert third.read() == ["new"]
    third.close()


XID = "2027-01-15T08:00:0{}.000Z n1 kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n"
ITERATION = (" [2027-01-15 08:00:0{}] iteration        {}/     100 | consumed samples: 1 | elapsed time per iteration (ms): 1000.0 |"
             " learning rate: 1.0E-04 | global batch size: 8 | lm loss: {} | loss scale: 1.0 | grad norm: 0.5 |\n")


def follow(config, log, grow=(), places=None, boots=None, jobs=("llm",)):
    """Polls a door that serves `log` (grown between polls) and gives scrapes and events of each poll, and the follower."""

    def answer(path, body):
        return reply(bytes(log)[int(path.rpartition("from=")[2]):])

    async def act():
        fetch = HttpFetch()
        try:
            async with serve(answer) as url:
                from dataclasses import replace

                follower = Follower([replace(config, url=url + config.url)], SOURCES, MAPPER, fetch, places)
                out = [await follower.poll(T0, ["n1"], jobs, boots)]
                for more in grow:
                    log.extend(more)
                    out.append(await follower.poll(T0 + 15_000, ["n1"], jobs, boots))
                return out, follower
        finally:
            await fetch.aclose()

    return asyncio.run(act())


def test_a_kernel_door_gives_events_once():
    """New bytes become events at their own time, each line once, the unfinished one when it is complete."""
    first, second = XID.format(1).encode(), XID.format(2).encode()
    out, follower = follow(LogConfig("kernel", url="/logs/kernel/{node}"), bytearray(first + second[:30]), [second[30:]])
    events = [[(e.kind, e.target.node, e.fields["xid"]) for e in found] for _, found in out]
    assert events == [[("xid", "n1", 79)], [("xid", "n1", 79)]]
    assert out[0][1][0].at == 1_800_000_001_000
    assert list(follower.places().values()) == [[len(first) + len(second)]]


def test_seconds_since_boot_are_dated_by_the_nodes_boot_time():
    """`[seconds]` count from the boot time that the node's exporter told."""
    log = bytearray(b"[  100.500000] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, gone\n")
    out, _ = follow(LogConfig("kernel", url="/k/{node}"), log, boots={"n1": T0 - 200_000})
    assert [e.at for e in out[0][1]] == [T0 - 99_500]


def test_seconds_since_boot_without_a_boot_time_are_of_the_slot():
    """Where the boot time is not known the line is of the slot in which it came."""
    log = bytearray(b"[  100.500000] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, gone\n")
    out, _ = follow(LogConfig("kernel", url="/k/{node}"), log)
    assert [e.at for e in out[0][1]] == [T0]


def test_a_trainer_door_gives_scrapes_of_trainer_series():
    """Iterations become greylag_train_* series of the rank, at their own times, with their canonical signals."""
    log = bytearray((ITERATION.format(1, 10, "2.5E+00") + ITERATION.format(2, 11, "2.4E+00")).encode())
    out, _ = follow(LogConfig("trainer", url="/logs/trainer/{job}"), log)
    losses = []
    for layout, scrape in out[0][0]:
        assert layout.id == scrape.layout_id
        assert layout.target_id.startswith("log/llm/0/")
        losses += [(scrape.at, scrape.values[r.index]) for r in layout.signals if r.signal == "rank.loss"]
    assert losses == [(1_800_000_001_000, 2.5), (1_800_000_002_000, 2.4)]


def test_a_door_that_is_not_there_is_counted():
    """A log that does not answer gives nothing and is counted by its reason."""

    async def act():
        fetch = HttpFetch()
        follower = Follower([LogConfig("kernel", url="http://127.0.0.1:1/{node}")], SOURCES, MAPPER, fetch)
        found = await follower.poll(T0, ["n1"], [])
        await fetch.aclose()
        return found, follower

    found, follower = asyncio.run(act())
    assert found == ([], [])
    assert follower.failures == {"connect_failed": 1}


def test_files_are_named_by_their_names(tmp_path):
    """`kernel.<node>.log` is the kernel log of that node; files that appear later are followed too."""

    async def act():
        fetch = HttpFetch()
        follower = Follower([LogConfig("kernel", path=f"{tmp_path}/kernel.*.log")], SOURCES, MAPPER, fetch)
        before = await follower.poll(T0, [], [])
        (tmp_path / "kernel.n7.log").write_text("[1.0] NVRM: Xid (PCI:0000:9b:00): 79, gone\n")
        after = await follower.poll(T0, [], [])
        follower.close()
        await fetch.aclose()
        return before, after

    before, after = asyncio.run(act())
    assert before == ([], [])
    assert [e.target.node for e in after[1]] == ["n7"]


@pytest.mark.parametrize("value", [2.5, math.nan, math.inf])
def test_readings_keep_their_values(value):
    """A reading's value arrives as it was logged, NaN and infinity included."""
    rank = Target("rank", "n1", "0", job="llm", rank=0)
    ((layout, scrape),) = ReadingScrapes(MAPPER).scrapes([(None, rank, {"rank.loss": value})], T0)
    assert str(scrape.values[0]) == str(value)
    assert {r.signal for r in layout.signals} == {"rank.loss", "rank.loss_nonfinite"}
    assert scrape.at == T0
