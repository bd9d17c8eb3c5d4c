"""Which rank and node a trainer's line speaks of, and DeepSpeed's checkpoints."""

from __future__ import annotations

import pytest

from collectors.loglines import LogReader
from collectors.logtimes import Anchor
from core.plugins import load_plugins
from core.protocols import TargetInfo
from tests import needs

SOURCES = {n: s for n, s in load_plugins("collectors.sources").items() if s.log_kind == "trainer"}
STEP = "iteration {}/ 100 | elapsed time per iteration (ms): 1000.0 | lm loss: 1.0E+00 | number of nan iterations: 0 |"


def read(*lines):
    """All events, and (rank, node, step) of all readings of a step."""
    log = LogReader(SOURCES, TargetInfo("log/j1", {"job": "j1"}), Anchor(0))
    events, steps = [], []
    for line in lines:
        said = log.read(line)[1]
        events += said.events
        steps += [(t.rank, t.node, values["rank.step"]) for _, t, values in said.readings if "rank.step" in values]
    return events, steps


@pytest.mark.parametrize(("lines", "expected"), [
    ((STEP.format(1),), [(0, None, 1)]),
    (("using world size: 16, data-parallel size: 4", STEP.format(1)), [(15, None, 1)]),
    (("n1: using world size: 16, data-parallel size: 4", "n2: " + STEP.format(1)), [(15, "n2", 1)]),
    (("using world size: 16, data-parallel size: 4", "[rank3]: " + STEP.format(1)), [(3, None, 1)]),
    (("using world size: 0, data-parallel size: 4", STEP.format(1)), [(0, None, 1)]),
    (("  world_size ............ 16", STEP.format(1)), [(0, None, 1)]),
])
def test_the_last_rank_writes_megatrons_iterations(lines, expected) -> None:
    """Once the log has told the world size; a rank in front of the line knows better."""
    assert read(*lines)[1] == expected


def test_a_real_log_names_the_last_ranks_node() -> None:
    """In a real Megatron-DeepSpeed run on two nodes the iterations come from the second one, rank 15 of 16; rank 0 on the
    first one writes DeepSpeed's own lines."""
    text = needs.shared("samples/training/superbench_megatron_deepspeed.log").read_text(errors="replace")
    events, steps = read(*text.splitlines())
    assert [told for told in steps if told[0] == 15] == [(15, "vm-07-14", step) for step in range(1, 6)]
    assert {told[:2] for told in steps} == {(0, "vm-07-05"), (15, "vm-07-14")}
    assert [(e.kind, dict(e.fields)) for e in events if e.kind == "checkpoint"] == [
        ("checkpoint", {"step": 5, "state": "saving"})]


@pytest.mark.parametrize(("line", "rank", "node", "fields"), [
    ("Rank 3: found NaN in local grad norm for bucket #0 in backward pass. Device: 2, node: n5.", 3, "n5", {"what": "grad_norm"}),
    ("Unexpected result nan on rank 12 at iteration #17 invocation #1 (message='found NaN in local forward loss calculation')",
     12, None, {"what": "loss", "step": 17}),
    ("[rank7]: AssertionError: found Inf in local forward loss calculation. Device: 1, node: gpu-9", 7, "gpu-9", {"what": "loss"}),
])
def test_megatron_tells_whose_result_is_not_finite(line, rank, node, fields) -> None:
    """The rank that found it, before it goes round to all."""
    (event,) = read(line)[0]
    assert (event.kind, event.target.rank, event.target.node) == ("nonfinite", rank, node)
    assert dict(event.fields) == {"rank": rank, **fields}


def test_deepspeeds_ranks_tell_of_one_checkpoint() -> None:
    """Each rank writes a line; the checkpoint begins once and ends once."""
    lines = [f"[rank{r}]: [2026-11-28 12:00:0{r},000] [INFO] [engine.py:1:save] Saving model checkpoint: /c/global_step50/mp_rank_0{r}.pt"
             for r in range(3)]
    lines += [f"[rank{r}]: [2026-11-28 12:00:1{r},000] [INFO] [torch:33:commit] [Torch] Checkpoint global_step50 is ready now!"
              for r in range(3)]
    told = [(e.kind, e.fields.get("state") or e.fields.get("phase"), e.fields.get("step")) for e in read(*lines)[0]]
    assert told == [("checkpoint", "saving", 50), ("job_phase", "checkpoint", 50), ("checkpoint", "saved", 50),
                    ("job_phase", "train", 50)]
