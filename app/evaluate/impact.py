"""Recall against a fault's impact on its job, and the smallest impact that is found nine times in ten.

The question is: from which slowdown on is a fault found with a chance of 90 %? Its answer must not hang on one fault in a band of
two, and large faults, which are found anyway, must not outweigh small ones that are missed. So recall is taken to grow with impact,
or to stay (nothing is harder to find for being larger), and the rising curve that fits the bands best is drawn: a band whose recall is
below that of the next smaller ones is put together with them, each fault counting once (isotonic regression by pooling adjacent
violators: Ayer and others 1955, as psychometric and dose curves are drawn). The smallest impact is the lower edge of the lowest band
at which the curve is at 90 %. Beside it stand n and the Wilson interval of the bands that were put together there, and recall of
everything that is at least so large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from app.evaluate.match import Found
from app.evaluate.rates import rate

EDGES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.5, 1.0, 9.0)
WANTED_RECALL = 0.9


def bands(found: Sequence[Found]) -> list[dict[str, Any]]:
    """One row for each band of impact that has a fault, smallest first: `recall` of the band, `curve` as the module says,
    `from_here` recall of this band and all larger ones."""
    counts = []
    for low, high in pairwise(EDGES):
        inside = [one for one in found if one.truth.impact is not None and low <= one.truth.impact < high]
        if inside:
            counts.append((low, high, sum(one.by is not None for one in inside), len(inside)))
    curve = rising([(hits, n) for _, _, hits, n in counts])
    return [{"from": low, "to": high, "recall": rate(hits, n), "curve": rate(*curve[i]),
             "from_here": rate(sum(c[2] for c in counts[i:]), sum(c[3] for c in counts[i:]))}
            for i, (low, high, hits, n) in enumerate(counts)]


def rising(counts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(hits, n) of the pool that each of the given (hits, n) is in, so that their shares rise or stay."""
    pools: list[tuple[int, int, int]] = []  # hits, n, bands in it
    for hits, n in counts:
        pools.append((hits, n, 1))
        while len(pools) > 1 and pools[-2][0] * pools[-1][1] > pools[-1][0] * pools[-2][1]:
            last, before = pools.pop(), pools.pop()
            pools.append((before[0] + last[0], before[1] + last[1], before[2] + last[2]))
    return [(hits, n) for hits, n, size in pools for _ in range(size)]


def smallest(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The lowest of the `bands` at which the curve is at 90 %: its `impact` (lower edge), `recall` of the curve there with n and
    interval, and `from_here`. All None where the curve is below 90 % everywhere."""
    reached = next((row for row in rows if row["curve"]["value"] >= WANTED_RECALL), None)
    if reached is None:
        return {"impact": None, "recall": None, "from_here": None}
    return {"impact": reached["from"], "recall": reached["curve"], "from_here": reached["from_here"]}
