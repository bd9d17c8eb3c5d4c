"""A tick whose transaction fails: nothing of it is kept, the owner ends, and the next one judges the same tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.owner import Owner
from core.clock import ManualClock, monotonic_seconds
from core.config import read_config
from core.errors import GreylagError
from tests.store.build import T0, batch, layout, scrape


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Callable[[], Owner]]:
    """A function that makes an owner of the site as a start of the process does; the one before lets go of the store."""
    (tmp_path / "greylag.yaml").write_text("data_dir: data\nlisten: 127.0.0.1:0\nbackend: {name: observe}\n")
    made: list[Owner] = []

    def end() -> None:
        if made:
            made[-1].writer.close()
            made[-1].store.close()
            made[-1].loop.run_until_complete(asyncio.sleep(0))
            made[-1].loop.close()

    def start() -> Owner:
        end()
        made.append(Owner(read_config(tmp_path / "greylag.yaml")))
        made[-1].clock = ManualClock(T0)
        return made[-1]

    yield start
    end()


def test_the_owner_ends_and_the_next_one_judges_the_same_tick(owners, monkeypatch, capsys):
    """Memory had gone on and the store had not: the process ends with status 1, what was acknowledged before is there,
    and after a start the same tick is due and is committed."""
    first, shape = owners(), layout("t1", ["m1", "m2"])
    first.writer.submit(batch(1, scrape(shape, T0, [1.0, 2.0]), layouts=[shape], epoch=first.store.epoch("w"))).result(10)

    def broken(commit):
        raise GreylagError(f"the transaction of tick {commit.tick} was rolled back")

    def ended(status):
        raise SystemExit(status)

    monkeypatch.setattr(first.store, "commit_tick", broken)
    monkeypatch.setattr("app.owner.os._exit", ended)
    first.gate.report("w", T0, monotonic_seconds())
    with pytest.raises(SystemExit) as caught:
        first.ticker.run()
    assert caught.value.code == 1
    assert f"was not committed: the transaction of tick {T0} was rolled back" in capsys.readouterr().err
    assert (first.store.last_tick(), first.store.records(0, 1000)) == (None, [])
    second = owners()
    due = second.gate.wait(T0, monotonic_seconds(), 0.0)
    second.ticker.judge(due)
    values = {one.series.name: list(one.values) for one in second.store.select([], 0, T0 + 1) if one.series.name in ("m1", "m2")}
    assert (due, second.store.last_tick(), values) == (T0, T0, {"m1": [1.0], "m2": [2.0]})
