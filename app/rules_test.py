"""`greylag rules test`: rules over trainers' logs, tried on recorded logs before a running Greylag has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app import wiring
from collectors.log_rules import FAULT, MATCHING, read_rules
from collectors.mapping import Mapper
from collectors.recording import Recording
from core.clock import rfc3339
from core.errors import BadInput
from pipeline.store.sorting import DuckSorter


def test_rules(path: str, logs: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """(what changed, by time: {at, job, rule, state, more}; names of rules that no line of any log matched). Raises BadInput."""
    rules = read_rules(path)
    everything = wiring.sources()
    readers = {name: one for name, one in everything.items() if one.parse_line is not None}
    recording = Recording(logs, Mapper(everything), readers, DuckSorter, log_rules=rules)
    if recording.last_at is None:
        raise BadInput(", ".join(logs), "", "no line with a time", "trainer.<job>.log files are needed")
    said = []
    for batch in recording.advance(recording.last_at):
        for event in batch.events:
            if event.kind == "log_rule":
                fields = {key: value for key, value in event.fields.items() if key not in ("rule", "state") and value is not None}
                more = f" ({', '.join(f'{key} {value}' for key, value in fields.items())})" if fields else ""
                said.append({"at": rfc3339(event.at), "job": event.target.job, "rule": event.fields["rule"],
                             "state": event.fields["state"], "more": more})
    heard = {row["rule"] for row in said if row["state"] in (MATCHING, FAULT)}
    return said, [rule.name for rule in rules if rule.name not in heard]
