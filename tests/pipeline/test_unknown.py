"""The trained model: features of parts against their node, what is odd and why, the file, the fleet's change, the training."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.odd import OddParts
from app.train import TrainParams, moments, train
from core.errors import BadInput
from core.telemetry import Telemetry
from core.types import Floats, Target
from core.window import Block, Window
from pipeline.parts import odd_suspects
from pipeline.store.duck import DuckStore
from pipeline.unknown import LEVEL, Model, Seen, features, look, scaled, shifted
from pipeline.unknown_file import document, read_model, write_model
from tests.pipeline.fleet_of_gpus import gpus, shown, silicon, store_of
from tests.store import build

HOUR = 3_600_000
T0 = 1_790_000_000_000 // HOUR * HOUR
NODES, HOURS = 2, 7.4
END = T0 + int(HOURS * HOUR)
SMALL = TrainParams(windows=24, rows_min=150)


def plain_covariance(rows: Floats, seed: int) -> Floats:
    return np.cov(rows, rowvar=False)


@pytest.fixture(scope="module")
def store() -> Iterator[DuckStore]:
    made = store_of(NODES, HOURS, T0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(store: DuckStore) -> Model:
    return train(store, T0, END, SMALL, covariance=plain_covariance)


def seen_of(rng: np.random.Generator, change: Callable[[dict[str, Floats]], None] = lambda blocks: None, nodes: int = NODES,
            seed: int = 1, warmer: float = 0.0) -> Seen:
    blocks = shown(nodes, 60, silicon(nodes, seed), rng, warmer)
    change(blocks)
    return features("gpu", gpus(nodes), blocks)


# --- features ---------------------------------------------------------------------------------------------------------
def test_a_level_is_the_difference_from_the_node() -> None:
    """A GPU at 12 % less power than its node's median shows it in units of the smallest difference; load that all share is none."""
    power = np.full((60, 8), 500.0) * np.linspace(0.5, 1.0, 60)[:, None]
    power[:, 3] *= 0.88
    found = features("gpu", gpus(1), {"gpu.power_watts": power, "gpu.utilization_ratio": np.ones((60, 8))})
    column = found.names.index(("gpu.power_watts", LEVEL))
    assert np.allclose(found.values[:, column], [0, 0, 0, -6, 0, 0, 0, 0])


@pytest.mark.parametrize(("change", "parts"), [
    (lambda b: b.update({"gpu.utilization_ratio": np.zeros((60, 8))}), 0),
    (lambda b: b.pop("gpu.utilization_ratio"), 0),
    (lambda b: b["gpu.utilization_ratio"].__setitem__((slice(None), [0, 1]), 0.0), 0),
    (lambda b: b["gpu.utilization_ratio"].__setitem__((slice(None), [0]), 0.0), 8),
    (lambda b: None, 8)])
def test_only_nodes_at_one_work_are_compared(change: Callable[[dict[str, Floats]], Any], parts: int) -> None:
    """Idle nodes, nodes of which nothing is known and nodes shared by jobs are left out; one part that stands still is not."""
    blocks = shown(1, 60, silicon(1, 1), np.random.default_rng(1))
    change(blocks)
    assert len(features("gpu", gpus(1), blocks).parts) == parts


def test_half_of_the_minutes_are_needed() -> None:
    """A part that was seen for less than eight minutes is missing, not zero."""
    blocks = shown(1, 60, silicon(1, 1), np.random.default_rng(1))
    blocks["gpu.power_watts"][:34, 2] = np.nan
    found = features("gpu", gpus(1), blocks)
    assert np.isnan(found.values[2, found.names.index(("gpu.power_watts", LEVEL))])


def test_no_parts_and_few_peers_are_no_error() -> None:
    """An empty axis, and a node of three parts, show nothing."""
    blocks = {name: values[:, :3] for name, values in shown(1, 60, silicon(1, 1), np.random.default_rng(1)).items()}
    assert (len(features("gpu", (), {}).parts), len(features("gpu", gpus(1)[:3], blocks).parts)) == (0, 0)


# --- what is odd ------------------------------------------------------------------------------------------------------
def test_a_healthy_fleet_is_not_odd(model: Model) -> None:
    """Twenty quarter hours of the same chips, and other chips of the same kind: nothing is odd."""
    rng = np.random.default_rng(7)
    assert not [odd for _ in range(20) for odd in look(model, [seen_of(rng)]).odd]
    assert not [odd for seed in range(20, 28) for odd in look(model, [seen_of(rng, seed=seed)]).odd]


@pytest.mark.parametrize(("signal", "factor"), [
    ("gpu.dram_active_ratio", 0.7), ("gpu.tensor_active_ratio", 0.8), ("gpu.power_watts", 0.8), ("gpu.sm_clock_hertz", 0.9),
    ("gpu.nvlink_bytes_per_second", 0.6), ("gpu.temperature_celsius", 1.25)])
def test_an_odd_part_is_named_with_its_signal(model: Model, signal: str, factor: float) -> None:
    """One GPU whose one signal is off by a fifth or so: it is the only odd part, and the signal is named first."""
    def change(blocks: dict[str, Floats]) -> None:
        blocks[signal][:, 13] *= factor

    found = look(model, [seen_of(np.random.default_rng(5), change)])
    assert [(o.target.id, o.signals[0].signal) for o in found.odd] == [("GPU-1-5", signal)]
    assert np.sign(found.odd[0].signals[0].difference) == np.sign(factor - 1)


def test_what_is_usual_one_by_one_and_odd_together_is_found(model: Model) -> None:
    """Hotter at less power: each alone is within what chips differ by, together no chip does it."""
    def change(blocks: dict[str, Floats]) -> None:
        blocks["gpu.power_watts"][:, 13] *= 0.93
        blocks["gpu.temperature_celsius"][:, 13] += 5

    odd = look(model, [seen_of(np.random.default_rng(5), change)]).odd
    assert {o.target.id for o in odd} == {"GPU-1-5"}
    assert {s.signal for o in odd for s in o.signals} >= {"gpu.temperature_celsius"}


def test_a_part_with_a_missing_signal_is_unknown(model: Model) -> None:
    """It is neither odd nor looked at."""
    def change(blocks: dict[str, Floats]) -> None:
        blocks["gpu.sm_clock_hertz"][:, 13] = np.nan

    found = look(model, [seen_of(np.random.default_rng(5), change)])
    assert (found.odd, found.looked, found.unknown) == ((), NODES * 8 - 1, 1)


# --- the file ---------------------------------------------------------------------------------------------------------
def test_the_file_gives_the_model_back(model: Model, tmp_path: Path) -> None:
    """What is read judges as what was written; the hash and the span are those of the file."""
    digest = write_model(tmp_path / "model.json", model)
    read = read_model(tmp_path / "model.json")
    seen = seen_of(np.random.default_rng(3))
    assert (read.hash, read.start, read.end, read.windows) == (digest, model.start, model.end, model.windows)
    assert np.allclose(scaled(read.kinds[0], seen), scaled(model.kinds[0], seen), equal_nan=True)


def _signed(body: dict[str, Any]) -> dict[str, Any]:
    from pipeline.unknown_file import digest

    return {**body, "hash": digest(body)}


@pytest.mark.parametrize(("spoil", "words"), [
    (lambda b: "", "no JSON"), (lambda b: "[" * 100_000, "no JSON"), (lambda b: "3", "format"),
    (lambda b: {**b, "format": "greylag-unknown/9"}, "train again"),
    (lambda b: {**b, "windows": b["windows"] + 1}, "not what was written"),
    (lambda b: _signed({**b, "kinds": [{**b["kinds"][0], "limit": -1}]}), "not positive"),
    (lambda b: _signed({**b, "kinds": [{**b["kinds"][0], "scale": [1.0]}]}), "kinds"),
    (lambda b: _signed({**b, "kinds": [{**b["kinds"][0], "kind": "toaster"}]}), "kinds"),
    (lambda b: _signed({**b, "kinds": [{**b["kinds"][0], "names": [["gpu.soul", "level"]]}]}), "not known"),
    (lambda b: _signed({k: v for k, v in b.items() if k != "span"}), "kinds")])
def test_a_spoiled_file_is_refused_in_one_sentence(model: Model, tmp_path: Path, spoil: Callable[[Any], Any], words: str) -> None:
    """Cut short, changed, of another format, signed but senseless: BadInput, nothing is executed."""
    spoiled = spoil(document(model))
    (tmp_path / "model.json").write_text(spoiled if isinstance(spoiled, str) else json.dumps(spoiled))
    with pytest.raises(BadInput, match=words):
        read_model(tmp_path / "model.json")


# --- a fleet that has changed -----------------------------------------------------------------------------------------
def test_the_same_fleet_has_not_changed(model: Model) -> None:
    """An hour of healthy looks, and one odd part in it: no change."""
    def change(blocks: dict[str, Floats]) -> None:
        blocks["gpu.power_watts"][:, 13] *= 0.7

    rng = np.random.default_rng(2)
    assert shifted(model.kinds[0], [seen_of(rng, change) for _ in range(12)]) == []


@pytest.mark.parametrize(("change", "signal"), [
    (lambda b: b["gpu.sm_clock_hertz"].__setitem__((slice(None), slice(0, None, 2)), b["gpu.sm_clock_hertz"][:, ::2] * 0.8), "gpu.sm_clock_hertz"),
    (lambda b: b.update({"gpu.temperature_celsius": b["gpu.temperature_celsius"] + 30}), "gpu.temperature_celsius"),
    (lambda b: b.pop("gpu.tensor_active_ratio"), "gpu.tensor_active_ratio")])
def test_another_fleet_is_told_by_its_signal(model: Model, change: Callable[[dict[str, Floats]], Any], signal: str) -> None:
    """Half of the GPUs with another clock, all of them 30 °C warmer, a signal that is gone: the change is named."""
    rng = np.random.default_rng(2)
    assert shifted(model.kinds[0], [seen_of(rng, change) for _ in range(6)])[0][0] == signal


# --- looks of a running owner -----------------------------------------------------------------------------------------
def window_at(end: int, rng: np.random.Generator, change: Callable[[dict[str, Floats]], Any] = lambda b: None) -> Window:
    blocks, parts = shown(NODES, 60, silicon(NODES, 1), rng), gpus(NODES)
    change(blocks)
    nan = np.full(len(parts), np.nan)
    made = {name: Block(name, parts, values, np.zeros(len(parts)), nan, nan) for name, values in blocks.items()}
    return Window(end, 15, end - 15_000 * np.arange(59, -1, -1), {"gpu": parts}, made)


def test_a_part_is_listed_when_it_stays_odd(model: Model, tmp_path: Path) -> None:
    """Odd in three of the last four looks, five minutes apart; healthy again it goes; without a file there is no model."""
    shows: list[Window] = []
    odd = OddParts(tmp_path / "model.json", lambda: shows[-1] if shows else None, Telemetry())
    assert (odd.look(), odd.document()["model"]) == (False, None)
    write_model(tmp_path / "model.json", model)
    rng, listed = np.random.default_rng(4), []
    for n in range(12):
        def change(blocks: dict[str, Floats], n: int = n) -> None:
            blocks["gpu.power_watts"][:, 13] *= 0.75 if 2 <= n < 7 else 1.0

        shows.append(window_at(T0 + n * 300_000, rng, change))
        odd.look()
        listed.append([p.target.id for p in odd.odd()])
    assert listed == [[]] * 4 + [["GPU-1-5"]] * 4 + [[]] * 4
    assert odd.refused is None


def test_a_changed_fleet_silences_the_list(model: Model, tmp_path: Path) -> None:
    """What the training never saw is told in one sentence, with the training's span, and nothing is listed."""
    write_model(tmp_path / "model.json", model)
    rng, shows = np.random.default_rng(4), []
    odd = OddParts(tmp_path / "model.json", lambda: shows[-1], Telemetry())
    for n in range(6):
        shows.append(window_at(T0 + n * 300_000, rng, lambda b: b["gpu.power_watts"].__imul__(
            np.where(np.arange(NODES * 8) % 2, 0.6, 1.0))))
        odd.look()
    answer = odd.document()
    assert answer["items"] == []
    assert answer["refused"].startswith("the fleet is not the one that the model was trained on (2026-09-21 to 2026-09-21): gpu.power_watts of ")


def test_a_suspect_that_is_odd_gets_a_word_and_no_weight() -> None:
    """The reason is added; order, probabilities and everything else stay."""
    from core.types import Suspect

    one = build.incident("inc-1", T0, suspects=(Suspect(Target("gpu", "n1", "5", "GPU-1-5"), 0.4, ("slow",)), Suspect(gpus(1)[0], 0.3)))
    told = odd_suspects(one, {"gpu:GPU-1-5": "gpu.power_watts"})
    assert told == replace(one, suspects=(replace(one.suspects[0], reasons=("slow", "odd_among_peers")), one.suspects[1]))


# --- training ---------------------------------------------------------------------------------------------------------
def test_windows_are_spread_and_apart() -> None:
    """They do not overlap, lie within the span, and are the same for the same seed."""
    found = moments(T0, T0 + 86_400_000, 50, 3)
    assert (len(found), found) == (50, moments(T0, T0 + 86_400_000, 50, 3))
    assert min(np.diff(found)) >= 900_000
    assert found[0] - 900_000 >= T0
    assert found[-1] <= T0 + 86_400_000


def test_too_little_history_makes_no_model(store: DuckStore) -> None:
    """One sentence: what there is, what is needed."""
    with pytest.raises(BadInput, match="a total of 3 quarter hours"):
        train(store, T0, T0 + HOUR, SMALL, covariance=plain_covariance)


@pytest.mark.evaluate
def test_open_incidents_are_left_out_and_a_change_is_refused() -> None:
    """A node under an incident is no history; one that names no node takes its windows along; a fleet that got warmer half
    an hour before the end of its history is refused by name."""
    span = (T0, END)
    made = store_of(NODES, HOURS, T0)
    made.commit_tick(build.tick(1, incidents=[build.incident("inc-1", T0, culprit=Target("gpu", "n1", "0"), resolved_at=None, state="open")]))
    assert train(made, *span, replace(SMALL, rows_min=100)).kinds[0].rows == 24 * 8
    made.commit_tick(build.tick(2, incidents=[build.incident("inc-2", T0, culprit=None, scope="job", resolved_at=None, state="open")]))
    with pytest.raises(BadInput, match="a total of 0 quarter hours"):
        train(made, *span, SMALL)
    made.close()
    changed = store_of(NODES, HOURS, T0, changes={5: 40.0})
    with pytest.raises(BadInput, match=r"a fleet that changed.*gpu\.temperature_celsius"):
        train(changed, *span, SMALL)
    changed.close()


@pytest.mark.evaluate
def test_nothing_that_runs_all_day_imports_scikit_learn() -> None:
    """The owner's modules, the model's judgement and the training's own module leave it alone until it is needed."""
    code = "import sys, app.owner, app.train, app.odd; print([m for m in ('sklearn', 'scipy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
