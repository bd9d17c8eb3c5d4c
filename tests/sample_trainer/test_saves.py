"""Which checkpoint the sample trainer begins from: the newest that is trusted, and all ranks the same."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from app.processes import free_port
from core.clock import rfc3339
from sample_data.trainer.reduce import AllReduce
from sample_data.trainer.saves import Saved, agreed, kept, spans, trusted
from sample_data.trainer.train import Model, main

T0 = 1_767_225_600.0
QUICK = ["--pause", "0", "--checkpoint-every", "10"]


def write(path: Path, step: int, at: float) -> None:
    Model(np.full(3, float(step)), step).save(path, at)


def span(start: float, end: float) -> str:
    return f"{rfc3339(round(start * 1000))}/{rfc3339(round(end * 1000))}"


def test_so_many_as_asked_for_are_kept(tmp_path: Path) -> None:
    """The newest under its own name, the others beside it by their steps."""
    main(["--steps", "50", "--checkpoint", str(tmp_path / "a.npz"), "--keep", "3", *QUICK])
    assert [(one.path.name, one.step) for one in kept(tmp_path / "a.npz")] == [("a.npz", 50), ("a.npz.step40", 40), ("a.npz.step30", 30)]


def test_a_span_takes_what_was_saved_in_it_and_nothing_else() -> None:
    """Its first moment belongs to it, its last does not; several spans are several words."""
    found = [Saved(Path(str(i)), i, T0 + i) for i in (4, 3, 2, 1)]
    assert [one.step for one in trusted(found, spans(f"{span(T0 + 1, T0 + 2)} {span(T0 + 3, T0 + 4)}"))] == [4, 2]
    assert trusted(found, spans("")) == found


def test_a_run_begins_from_before_the_span_and_trusts_what_it_saves_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newer checkpoint is passed over; the run after that takes the newest, which was saved since."""
    file = tmp_path / "a.npz"
    main(["--steps", "30", "--checkpoint", str(file), "--keep", "3", "--save-anything", "--nan-at", "15", *QUICK])
    saves = {one.step: one.at for one in kept(file)}
    careful = ["--distrusts", span((saves[10] + saves[20]) / 2 + 0.001, saves[30] + 0.002), "--checkpoint", str(file), "--keep", "3", *QUICK]
    for steps, first in ((40, 10), (60, 40)):
        capsys.readouterr()
        assert main(["--steps", str(steps), *careful]) == 0
        assert f'"step": {first}}}' in capsys.readouterr().out
    assert np.isfinite(Model.load(file).weights).all()


def test_where_none_is_left_it_says_so_and_does_not_begin_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that there is was saved too late."""
    write(tmp_path / "a.npz", 10, T0)
    assert main(["--steps", "20", "--checkpoint", str(tmp_path / "a.npz"), "--distrusts", span(T0 - 1, T0 + 1), *QUICK]) == 1
    assert "there is no checkpoint from outside" in capsys.readouterr().err


def test_all_ranks_begin_from_one_step() -> None:
    """A span's edge fell between the saves of two ranks: both take the step that both have."""
    address = f"127.0.0.1:{free_port()}"
    mine = {0: (30, 20, 10), 1: (20, 10), 2: (20,)}
    told: dict[int, Saved | None] = {}

    def rank(number: int) -> None:
        group = AllReduce(number, 3, address)
        told[number] = agreed([Saved(Path("x"), step, T0 + step) for step in mine[number]], group)
        group.close()

    threads = [threading.Thread(target=rank, args=(number,)) for number in mine]
    for one in threads:
        one.start()
    for one in threads:
        one.join(10)
    assert [told[n].step for n in mine if told[n] is not None] == [20, 20, 20]
