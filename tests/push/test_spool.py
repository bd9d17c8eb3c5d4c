"""The spool: what append returned for is there after any end of the process; nothing else is made up."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.push import spool as module
from collectors.push.spool import Spool, SpoolFailed, SpoolFull


def payloads(one: Spool, start: int = 1) -> list[tuple[int, bytes]]:
    return list(one.read(start))


async def fill(folder: Path, rows: list[bytes], **kwargs: object) -> Spool:
    one = Spool(folder, 10**9, **kwargs)  # type: ignore[arg-type]
    for row in rows:
        await one.append(row)
    return one


def test_records_come_back_in_order_over_segments_and_restarts(tmp_path: Path) -> None:
    """Numbers go on over restarts; each segment holds a few."""
    async def go() -> None:
        rows = [b"%d" % i * 10 for i in range(50)]
        for part in (rows[:20], rows[20:35], rows[35:]):
            one = await fill(tmp_path, part, segment_bytes=100)
            await one.stop()
        one = Spool(tmp_path, 10**9)
        assert payloads(one) == list(enumerate(rows, 1))
        assert payloads(one, 41) == list(enumerate(rows[40:], 41))
        assert len(list(tmp_path.glob("*.seg"))) > 5
    asyncio.run(go())


@given(cut=st.integers(0, 400), byte=st.one_of(st.none(), st.integers(0, 255)))
@settings(max_examples=60, deadline=None)
def test_a_torn_tail_is_cut(tmp_path_factory: pytest.TempPathFactory, cut: int, byte: int | None) -> None:
    """The last segment ends anywhere, or a byte of it is wrong: the whole records before stay, new ones follow them."""
    folder = tmp_path_factory.mktemp("spool")

    async def go() -> None:
        rows = [os.urandom(20) + b"%d" % i for i in range(12)]
        one = await fill(folder, rows)
        await one.stop()
        (path,) = folder.glob("*.seg")
        data = bytearray(path.read_bytes())
        at = min(cut, len(data) - 1)
        if byte is None or data[at] == byte:
            data = data[:at]
        else:
            data[at] = byte
        path.write_bytes(data)
        two = Spool(folder, 10**9)
        kept = payloads(two)
        assert kept == list(enumerate(rows, 1))[:len(kept)]
        assert sum(len(r) + 8 for r in rows[:len(kept)]) <= at < sum(len(r) + 8 for r in rows[:len(kept) + 1])
        number = await two.append(b"new")
        assert number == len(kept) + 1
        await two.stop()
        assert payloads(Spool(folder, 10**9)) == [*kept, (number, b"new")]
    asyncio.run(go())


def test_committed_segments_go_and_numbers_stay(tmp_path: Path) -> None:
    """Space comes back with commits; after all of it is committed a restart goes on with the next number."""
    async def go() -> None:
        one = await fill(tmp_path, [b"x" * 30] * 20, segment_bytes=100)
        before = one.size
        one.cut(11)
        assert one.size < before
        assert [n for n, _ in payloads(one, one.place)] == list(range(11, 21))
        one.cut(21)
        assert (one.size, list(tmp_path.glob("*.seg"))) == (0, [])
        await one.stop()
        two = Spool(tmp_path, 10**9)
        assert two.next == 21
        assert await two.append(b"y") == 21
        await two.stop()
        three = Spool(tmp_path, 10**9)
        assert payloads(three, three.place) == [(21, b"y")]
    asyncio.run(go())


def test_the_budget_holds_what_waits_as_well(tmp_path: Path) -> None:
    """Concurrent appends do not get past the budget together."""
    async def go() -> None:
        one = Spool(tmp_path, 1_000)
        found = await asyncio.gather(*(one.append(b"x" * 92) for _ in range(20)), return_exceptions=True)
        assert [type(f) for f in found].count(SpoolFull) == 10
        assert one.size == 1_000
        one.cut(11)
        assert await one.append(b"x") == 11
        await one.stop()
    asyncio.run(go())


def test_a_disk_that_fails_keeps_nothing_of_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An fsync that fails: the senders hear of it, the segment is given up, the next record has a new one."""
    async def go() -> None:
        seen: list[int] = []
        one = Spool(tmp_path, 10**9, lambda number, item: seen.append(number))
        await one.append(b"good")
        real = os.fdatasync

        def broken(handle: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module.os, "fdatasync", broken)
        found = await asyncio.gather(*(one.append(b"lost") for _ in range(3)), return_exceptions=True)
        assert {type(f) for f in found} == {SpoolFailed}
        monkeypatch.setattr(module.os, "fdatasync", real)
        assert await one.append(b"after") == 2
        await one.stop()
        assert payloads(Spool(tmp_path, 10**9)) == [(1, b"good"), (2, b"after")]
        assert seen == [1, 2]
    asyncio.run(go())


@pytest.mark.parametrize("place", ["", "garbage", "7"])
def test_a_lost_place_replays_more_never_less(tmp_path: Path, place: str) -> None:
    """The place file is only a hint: without it everything that is there comes again."""
    async def go() -> None:
        one = await fill(tmp_path, [b"x"] * 5)
        await one.stop()
        (tmp_path / "place").write_text(place)
        two = Spool(tmp_path, 10**9)
        assert len(payloads(two, two.place)) == (0 if place == "7" else 5)
        assert two.next == (7 if place == "7" else 6)
        await two.stop()
    asyncio.run(go())


def test_a_spool_has_one_owner(tmp_path: Path) -> None:
    """A second process (or a second opening) is refused while the first is there."""
    async def go() -> None:
        one = Spool(tmp_path, 10**9)
        with pytest.raises(BlockingIOError):
            Spool(tmp_path, 10**9)
        await one.stop()
        await Spool(tmp_path, 10**9).stop()
    asyncio.run(go())
