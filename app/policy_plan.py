"""`greylag policy plan`: what would happen to each open incident now, and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.story import part
from app.worth_lines import worth_lines
from core.clock import TICK_MS, rfc3339
from core.errors import BadInput, Unavailable
from core.render import plain
from remediation.policy import parse_policy
from remediation.rehearsal import WOULD, Budget, Outlook, rehearse, still
from remediation.turn import Site

if TYPE_CHECKING:
    from app.owner import Owner

Say = Callable[[str], None]
DEFAULT_URL = "http://127.0.0.1:9470"
PATH = "/api/greylag/v1/plan"
PLAIN = ("", "action_planned", "awaiting_approval", "escalated", "verify_started")  # they say what the word before says already


# --- the owner's side -------------------------------------------------------------------------------------------------
def document(owner: Owner, text: str | None) -> dict[str, Any]:
    """The answer, made under the tick's lock by the engine's own code on a copy of its state. text: a policy that is not in
    force, None = the one that is. Raises BadInput."""
    engine, policy = owner.hands.engine, owner.hands.policy
    if text is not None:
        policy = parse_policy(text, "policy")
    world = still(engine)  # before the lock: a backend that is slow must not hold the tick up
    with owner.ticker.lock:
        brain, window = owner.brain, owner.last_window
        last = owner.store.last_tick()
        if window is None or brain.facts is None or last is None:
            return {"at": None, "policy": policy.file, "mode": policy.mode, "in_force": text is None, "backend": owner.hands.backend,
                    "frozen": engine.frozen, "world": world.seen is not None, "items": [], "budgets": []}
        at = last + TICK_MS
        found = rehearse(engine, at, brain.open_incidents(), brain.facts, Site(window.topology, brain.marks.silences(at)), world, policy)
    return {"at": rfc3339(found.at), "policy": policy.file, "mode": found.mode, "in_force": text is None, "backend": owner.hands.backend,
            "frozen": found.frozen, "world": found.world, "items": [_item(one) for one in found.outlooks],
            "budgets": [_budget(one) for one in found.budgets]}


def _item(one: Outlook) -> dict[str, Any]:
    incident = one.incident
    return {"incident": incident.id, "fault": incident.fault, "scope": incident.scope, "culprit": plain(incident.culprit),
            "confidence": incident.confidence, "jobs": list(incident.jobs), "opened_at": rfc3339(incident.opened_at),
            "state": incident.state, "lost_gpu_hours": incident.lost_gpu_hours, "would": one.would, "reason": one.reason,
            "because": one.because, "held_by": one.held_by, "rule": one.rule, "attempt": one.attempt, "of": one.of,
            "steps": [plain(step) for step in one.steps], "worth": plain(one.worth)}


def _budget(one: Budget) -> dict[str, Any]:
    return {"name": one.name, "used": one.used, "limit": one.limit, "left": one.left}


# --- the command's side -----------------------------------------------------------------------------------------------
def address(url: str | None, config: Path | None) -> str:
    """Where the running Greylag listens. Raises ConfigError, BadInput."""
    if url is not None and config is not None:
        raise BadInput("--url", "", url, "either --url or -c is needed, not both")
    if config is None:
        return url or DEFAULT_URL
    from core.config import read_config

    return f"http://{read_config(config).listen}"


def ask(url: str, policy: Path | None) -> dict[str, Any]:
    """The answer of a running Greylag. Raises Unavailable, BadInput."""
    from app.client import Client

    client = Client(url)
    try:
        if policy is None:
            return dict(client.get(PATH))
        from remediation.policy import read_policy

        read_policy(policy)  # said here, with the file's own name and lines
        return {**client.post(PATH, {"policy": policy.read_text(encoding="utf-8")}), "policy": str(policy)}
    except Unavailable as error:
        raise Unavailable(f"{error}. The plan is made by a running Greylag") from None


def plan_command(url: str | None, config: Path | None, policy: Path | None, as_json: bool, say: Say) -> None:
    """Prints the plan."""
    answer = ask(address(url, config), policy)
    if as_json:
        say(json.dumps(answer, ensure_ascii=False))
        return
    for line in lines(answer):
        say(line)


def lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """The plan for people."""
    if answer["at"] is None:
        yield "no tick has been judged yet: there is nothing to plan"
        return
    name = Path(answer["policy"]).name + ("" if answer["in_force"] else " (not in force)")
    yield f"{answer['at'][:19].replace('T', ' ')}  policy {name}, mode {answer['mode']}, backend {answer['backend']}"
    if answer["frozen"]:
        yield "FROZEN: no command starts until `greylag` is resumed and no FREEZE file is there"
    if not answer["world"]:
        yield "the backend did not answer: nothing would start"
    if not answer["items"]:
        yield "no open incidents"
    for one in answer["items"]:
        yield from _item_lines(one)
    yield "budgets left"
    for row in answer["budgets"]:
        yield f"  {row['left']:g} of {row['limit']:g}  {row['name']}"


def _item_lines(one: Mapping[str, Any]) -> Iterator[str]:
    rule = "no rule" if one["rule"] is None else f"rule {one['rule']}" + (f", attempt {one['attempt']} of {one['of']}" if one["attempt"] else "")
    yield (f"{one['incident']}  {one['fault']} on {part(one['culprit'])}, confidence {one['confidence']:.2f}, "
           f"{one['lost_gpu_hours']:.1f} GPU-hours lost")
    yield f"  {rule}: {WOULD[one['would']]}" + (f": {one['because']} ({one['reason']})" if one["reason"] not in PLAIN else "")
    for number, step in enumerate(one["steps"], 1):
        args = ", ".join(f"{key} {value}" for key, value in step["args"].items())
        yield f"    {number}. {step['kind']} {part(step['target'])}" + (f" ({args})" if args else "") + (", done" if step["done"] else "")
    for line in worth_lines(one["worth"]):
        yield f"    {line}"
