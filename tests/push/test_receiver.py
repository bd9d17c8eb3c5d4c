"""The receiver as a whole: what is acknowledged comes out once, whole, and survives a restart."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from core.clock import ManualClock
from core.derive import STALE_BITS, STALE_NAN
from core.reasons import PUSH_REASONS
from tests import needs
from tests.push.encode import snappy, write_request
from tests.push.site import START_MS, drain, points, post, receiver, write

BASE = {"job": "dcgm", "instance": "n17:9400"}


def rows(at: int, n: int = 4, value: float = 0.0) -> list:
    return [({"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": str(i), "UUID": f"GPU-{i}", "Hostname": "n17", **BASE},
             [(at, value + i)]) for i in range(n)]


def test_a_write_becomes_one_scrape(tmp_path: Path) -> None:
    """Acknowledged with 204, one scrape of a partial layout, signals mapped, node known."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            assert await write(one.port, write_request(rows(START_MS))) == (204, "")
            results, events = drain(one, START_MS + 10_000)
        (layout, scrape), = results
        assert layout.partial
        assert (layout.target_id, layout.node, layout.source) == ("push/dcgm/n17:9400", "n17", "dcgm")
        assert [ref.signal for ref in layout.signals] == ["gpu.temperature_celsius"] * 4
        assert scrape.values.tolist() == [0, 1, 2, 3]
        assert not events
    asyncio.run(go())


def test_pieces_of_one_scrape_are_joined_and_the_layout_stays(tmp_path: Path) -> None:
    """Three requests hold one scrape each time, cut at other places: one scrape each, the same layout from the second on."""
    async def go() -> None:
        clock = ManualClock(START_MS)
        async with receiver(tmp_path, clock) as one:
            ids = []
            for k in range(6):
                at = START_MS + 15_000 * k
                clock.advance_to(at)
                all_rows = rows(at, 30, k)
                a, b = 3 + 4 * k, 25 - 2 * k
                for piece in (all_rows[:a], all_rows[a:b], all_rows[b:]):
                    await write(one.port, write_request(piece))
                results, _ = drain(one, at + (2_500 if k == 0 else 0))
                assert [len(scrape.values) for _, scrape in results] == [30]
                ids.append(results[0][0].id)
            assert len(set(ids)) == 1
            assert one.spool.place == one.spool.next
    asyncio.run(go())


def test_a_late_piece_is_a_smaller_scrape_of_its_own_target(tmp_path: Path) -> None:
    """What comes after its reading was handed over is handed over as well, once, beside it."""
    async def go() -> None:
        clock = ManualClock(START_MS)
        async with receiver(tmp_path, clock) as one:
            await write(one.port, write_request(rows(START_MS)))
            drain(one, START_MS + 7_000)
            at = START_MS + 15_000
            clock.advance_to(at)
            await write(one.port, write_request(rows(at)[:3]))
            assert drain(one, at + 1_000)[0] == []
            first, _ = drain(one, at + 7_000)
            await write(one.port, write_request(rows(at)[3:]))
            second, _ = drain(one, at + 15_000)
        assert [(layout.target_id, len(scrape.values)) for layout, scrape in first] == [("push/dcgm/n17:9400", 3)]
        assert [(layout.target_id, len(scrape.values)) for layout, scrape in second] == [("push/dcgm/n17:9400#late", 1)]
    asyncio.run(go())


def test_series_that_come_apart_become_blocks(tmp_path: Path) -> None:
    """Parts of a target that always come at other times stop waiting for each other."""
    async def go() -> None:
        clock = ManualClock(START_MS)
        async with receiver(tmp_path, clock) as one:
            await write(one.port, write_request(rows(START_MS, 10)))
            drain(one, START_MS + 7_000)
            seen, others = [], []
            for k in range(1, 8):
                at = START_MS + 15_000 * k
                clock.advance_to(at)
                await write(one.port, write_request(rows(at, 10)[:5]))
                seen.append([layout.target_id for layout, _ in drain(one, at)[0]])
                seen[-1] += [layout.target_id for layout, _ in drain(one, at + 7_000)[0]]
                await write(one.port, write_request(rows(at + 7_000, 10)[5:]))
                others.append(drain(one, at + 7_000)[0])
                drain(one, at + 14_000)
            assert seen[-1] == seen[-2] == ["push/dcgm/n17:9400"]
            assert {layout.target_id for layout, _ in others[-1]} == {"push/dcgm/n17:9400#2"}
            assert one._assembler.counts["split"] == 1
    asyncio.run(go())


def test_stale_markers_keep_their_bits_and_end_a_series(tmp_path: Path) -> None:
    """A marker comes out as it came in; the next reading without the series is whole."""
    async def go() -> None:
        clock = ManualClock(START_MS)
        async with receiver(tmp_path, clock) as one:
            await write(one.port, write_request(rows(START_MS)))
            drain(one, START_MS + 7_000)
            at = START_MS + 15_000
            clock.advance_to(at)
            await write(one.port, write_request([*rows(at)[:3], (rows(at)[3][0], [(at, STALE_NAN)])]))
            (_, ended), = drain(one, at)[0]
            clock.advance_to(at + 15_000)
            await write(one.port, write_request(rows(at + 15_000)[:3]))
            (_, after), = drain(one, at + 15_000)[0]
        assert ended.values.view("u8")[3] == STALE_BITS
        assert after.values.view("u8")[3] == STALE_BITS
        assert after.values.tolist()[:3] == [0, 1, 2]
    asyncio.run(go())


def test_what_was_not_committed_comes_again_after_a_restart(tmp_path: Path) -> None:
    """Taken and committed: never again. Taken and not committed, or never taken: again, and complete."""
    async def go() -> None:
        clock = ManualClock(START_MS)
        async with receiver(tmp_path, clock) as one:
            await write(one.port, write_request(rows(START_MS)))
            drain(one, START_MS + 7_000)
            clock.advance_to(START_MS + 15_000)
            await write(one.port, write_request(rows(START_MS + 15_000)))
            taken, _, _ = one.take(START_MS + 22_000)
            assert taken
            clock.advance_to(START_MS + 30_000)
            await write(one.port, write_request(rows(START_MS + 30_000)))
        async with receiver(tmp_path, clock) as two:
            again, _ = drain(two, START_MS + 40_000)
            assert [scrape.at for _, scrape in again] == [START_MS + 15_000, START_MS + 30_000]
            assert points(again)[0] == points(taken)[0]
        async with receiver(tmp_path, clock) as three:
            assert drain(three, START_MS + 50_000) == ([], [])
    asyncio.run(go())


def test_a_full_spool_sends_the_sender_away_for_a_while(tmp_path: Path) -> None:
    """503 to remote write (Prometheus drops what gets 429), 429 to the others, with Retry-After; then it goes on."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            one.spool._budget = 100
            status, headers, body = await post(one.port, "/api/v1/write", snappy(write_request(rows(START_MS))))
            assert (status, headers["retry-after"]) == (503, "5")
            assert body == b"the spool is full: come again.\n"
            loki = b'{"streams":[{"stream":{"log":"kernel","host":"n1"},"values":[["1790000000000000000","%s"]]}]}' % (b"x" * 99)
            status, headers, _ = await post(one.port, "/loki/api/v1/push", loki, {"Content-Type": "application/json"})
            assert (status, headers["retry-after"]) == (429, "5")
            one.spool._budget = 10_000
            assert (await write(one.port, write_request(rows(START_MS))))[0] == 204
    asyncio.run(go())


def test_an_owner_that_is_away_holds_the_senders_back(tmp_path: Path) -> None:
    """Nothing committed for 15 minutes: 503; after a commit pushes are taken again. `take` stops at four marks."""
    async def go() -> None:
        clock = ManualClock(START_MS)
        async with receiver(tmp_path, clock) as one:
            marks = []
            for k in range(6):
                clock.advance_to(START_MS + 15_000 * k)
                await write(one.port, write_request(rows(START_MS + 15_000 * k)))
                results, _, mark = one.take(clock.now_ms() + 7_000)
                marks.append(mark if results else None)
            assert marks[4:] == [None, None]
            clock.advance_to(START_MS + 16 * 60_000)
            status, sentence = await write(one.port, write_request(rows(clock.now_ms())))
            assert (status, sentence) == (503, "nothing was committed for 15 minutes: come again.")
            for mark in marks[:4]:
                one.committed(mark)
            assert (await write(one.port, write_request(rows(clock.now_ms()))))[0] == 204
            results, _ = drain(one, clock.now_ms() + 7_000)
            assert [scrape.at for _, scrape in results] == [START_MS + 60_000, START_MS + 75_000, clock.now_ms()]
    asyncio.run(go())


@pytest.mark.parametrize(("shift", "sentence"), [
    (-11 * 60_000, "a sample is more than 10 minutes older than the newest one of its series: it was left out."),
    (11 * 60_000, "a sample's time is more than 10 minutes ahead of this machine's clock: it was left out."),
])
def test_times_outside_the_window_are_refused_and_the_rest_is_kept(tmp_path: Path, shift: int, sentence: str) -> None:
    """400 with one sentence; the samples of the request that are good come out."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            await write(one.port, write_request(rows(START_MS)))
            drain(one, START_MS + 7_000)
            wrong = (rows(START_MS)[0][0], [(START_MS + shift, 9.0)])
            status, said = await write(one.port, write_request([wrong]))
            assert (status, said) == (400, sentence)
            good = rows(START_MS - 60_000)[1:]
            status, said = await write(one.port, write_request([wrong, *good]))
            assert (status, said) == (400, f"1 of 4 were refused, the others are kept: {sentence}")
            results, _ = drain(one, START_MS + 14_000)
            assert [p[2] for p in points(results)] == [START_MS - 60_000] * 3
            assert one._telemetry.get("greylag_push_refused_total", reason="out_of_order" if shift < 0 else "far_future") == 2
    asyncio.run(go())


def test_many_requests_share_an_fsync(tmp_path: Path) -> None:
    """A hundred concurrent writes are all on disk after far fewer fsyncs."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            bodies = [write_request([({"__name__": "m", "job": "j", "instance": f"i{k}"}, [(START_MS, 1.0)])]) for k in range(100)]
            answers = await asyncio.gather(*(write(one.port, body) for body in bodies))
            assert {status for status, _ in answers} == {204}
            assert one.spool.fsyncs < 60
            results, _ = drain(one, START_MS + 7_000)
            assert len(results) == 100
    asyncio.run(go())


def test_the_watermark_waits_for_who_pushes_regularly(tmp_path: Path) -> None:
    """Held back until the reading is in, by 10 seconds at most; not at all where nobody pushes."""
    async def go() -> None:
        clock = ManualClock(START_MS)
        async with receiver(tmp_path, clock) as one:
            assert one.watermark(START_MS, START_MS) == START_MS
            for k in range(4):
                clock.advance_to(START_MS + 15_000 * k)
                await write(one.port, write_request(rows(clock.now_ms())))
                drain(one, clock.now_ms() + 2_500)
            last = clock.now_ms()
            slot = last + 15_500
            assert one.watermark(slot, slot) == last + 14_999
            assert one.watermark(slot, slot + 10_000) == slot
            clock.advance_to(slot + 1_000)
            await write(one.port, write_request(rows(last + 15_000)))
            assert one.watermark(slot, slot + 1_000) < slot
            drain(one, slot + 1_000)
            assert one.watermark(slot, slot + 1_000) == slot
    asyncio.run(go())


def test_every_reason_is_of_the_closed_list() -> None:
    """What the package refuses is named in core.reasons."""
    text = "".join(path.read_text() for path in (needs.ROOT / "collectors" / "push").glob("*.py"))
    used = set(re.findall(r'(?:bad\(|refuse\(|PushRefused\([^,"]+, )"(\w+)"', text)) - {"refused"}
    assert used <= set(PUSH_REASONS)
    assert len(used) > 15


def test_a_sender_without_instance_is_a_target_of_its_own(tmp_path: Path) -> None:
    """Recording rules and the like: no node is made up for them; series that name their node stand by it."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            await write(one.port, write_request([({"__name__": "job:up:sum"}, [(START_MS, 1.0)]),
                                                 ({"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "0", "Hostname": "n3"}, [(START_MS, 1.0)])]))
            results, _ = drain(one, START_MS + 7_000)
        assert sorted((layout.target_id, layout.node) for layout, _ in results) == [("push/127.0.0.1", None), ("push/n3/dcgm", "n3")]
    asyncio.run(go())


def test_more_than_memory_holds_is_read_from_the_spool_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the owner is away requests beyond the bound are kept on disk only, and come out all the same, in order."""
    from collectors.push import receiver as module
    monkeypatch.setattr(module, "MOST_IN_MEMORY", 6)

    async def go() -> None:
        clock = ManualClock(START_MS)
        async with receiver(tmp_path, clock) as one:
            for k in range(5):
                clock.advance_to(START_MS + 15_000 * k)
                await write(one.port, write_request(rows(clock.now_ms(), value=k)))
            assert [parsed is None for _, parsed, _ in one._backlog] == [False, True, True, True, True]
            results, _ = drain(one, clock.now_ms() + 7_000)
        assert [(scrape.at, scrape.values.tolist()) for _, scrape in results] == [
            (START_MS + 15_000 * k, [k, k + 1, k + 2, k + 3]) for k in range(5)]
    asyncio.run(go())
