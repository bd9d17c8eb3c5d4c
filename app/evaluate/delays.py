"""How long it took to tell a fault, by how a fault of its kind can be told at all: by one line, by one scrape, or from amounts.

hard: a part, a process or a job has failed, and one line of a log, or what one scrape brings (a flag, a counter, a series that is
gone, no answer), says so in itself; nothing has to be compared with peers or with a past. `by log` where the scenario's tier has the
logs in which it stands, else `by scrape`. grey: all else: what is slower, loses, drifts, fills, waits or comes back again and again.
A kind is hard although Greylag waits before it speaks (a service that may start again): that wait is a part of the delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.evaluate.match import Found
from app.evaluate.rates import quantile

BY_LOG, BY_SCRAPE, GREY = "hard_by_log", "hard_by_scrape", "grey"
# What is wanted and aimed at, in seconds, as (p50, p95): hard faults have one bound for both.
WANTED: Mapping[str, tuple[float, float]] = {BY_LOG: (30.0, 30.0), BY_SCRAPE: (90.0, 90.0), GREY: (300.0, 900.0)}
AIMED: Mapping[str, tuple[float, float]] = {BY_LOG: (10.0, 10.0), BY_SCRAPE: (60.0, 60.0), GREY: (180.0, 480.0)}


@dataclass(frozen=True, slots=True)
class Hard:
    """says: the line or the reading. log_from: the poorest tier whose logs have the line, "" = no line says it."""

    says: str
    log_from: str = ""


_XID = Hard("the driver's XID line; without logs DCGM's field of the last XID", "B")
_NO_ANSWER = Hard("the scrape fails")
_UNIT = Hard("systemd's line that the unit has failed; with the recommended fields also the unit's state", "B")
# The driver writes the same line for a flap of seconds: that the link stays down is in no line.
_CARRIER = Hard("the carrier's state, read again and again")
# By plug-in of the fleet. What is not here is grey, and everything that has a size is: nothing but its amount tells it.
HARD: Mapping[str, Hard] = {
    **dict.fromkeys(("xid_48", "xid_62", "xid_64", "xid_74", "xid_79", "xid_94", "xid_95", "xid_119", "xid_145", "xid_fatal"), _XID),
    "gpu_lost": Hard("the driver's line that it has fallen off the bus; without logs its series end while its siblings' go on", "B"),
    "ecc_uncorrectable": Hard("the counter of uncorrectable errors steps; no line is written"),
    "row_remap_failure": Hard("the flag of the failed remapping rises; no line is written"),
    "link_down": _CARRIER, "leaf_down": _CARRIER,
    "disk_readonly": Hard("the kernel's line that it is mounted read-only; without logs node_exporter's flag", "B"),
    "storage_lost": Hard("each client's line that the connection to the target was lost", "B"),
    "nonfinite_loss": Hard("the trainer's line with a loss that is no number", "B"),
    "service_down": _UNIT, "service_down_chrony": _UNIT, "service_down_persistence": _UNIT,
    **dict.fromkeys(("target_down", "exporter_error", "exporter_hung", "exporter_empty", "exporter_half", "collector_slow_targets"),
                    _NO_ANSWER),
    "exporter_partial": Hard("families that each page had are gone from the next one"),
    "exporter_upgrade_broken": Hard("families that each page had are gone from the next one"),
}


def kind_of(plant: str, tier: str) -> str:
    """How a plug-in's fault can be told at a tier."""
    hard = HARD.get(plant)
    if hard is None:
        return GREY
    return BY_LOG if hard.log_from and tier >= hard.log_from else BY_SCRAPE


def delays(counted: Iterable[tuple[str, Found]]) -> dict[str, Any]:
    """By kind: `row` of all its faults, the same of tier B alone, and of each fault's name. counted: (tier, fault that counts)."""
    known = list(counted)
    out: dict[str, Any] = {}
    for kind in (BY_LOG, BY_SCRAPE, GREY):
        mine = [(tier, one) for tier, one in known if kind_of(one.truth.plant, tier) == kind]
        names = sorted({one.truth.fault for _, one in mine})
        out[kind] = {
            **row(one for _, one in mine), "wanted_p50_seconds": WANTED[kind][0], "wanted_p95_seconds": WANTED[kind][1],
            "aimed_p50_seconds": AIMED[kind][0], "aimed_p95_seconds": AIMED[kind][1], "tier_B": row(one for tier, one in mine if tier == "B"),
            "faults": {name: row(one for _, one in mine if one.truth.fault == name) for name in names},
        }
    return out


def row(found: Iterable[Found]) -> dict[str, Any]:
    """n faults and how many of them were found; p50 and p95 with a miss as infinite (None); p95_found of those that were found."""
    seconds = [None if one.delay is None else one.delay / 1000 for one in found]
    told = [value for value in seconds if value is not None]
    return {"n": len(seconds), "found": len(told), "p50_seconds": quantile(seconds, 0.5), "p95_seconds": quantile(seconds, 0.95),
            "p95_found_seconds": quantile(told, 0.95)}
