"""The lab: plants faults in a running fleet, one after the other, each while the job trains and the last is healed.

`python -m fleet.lab --fleet URL --owner URL --seed N --faults a,b,c` prints the truth of each fault as a JSON line and
ends with 0 when all were planted and healed. It waits by the fleet's clock. Its token comes from the environment
(GREYLAG_LAB_TOKEN); the product never holds it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from core.clock import monotonic_seconds, rfc3339
from core.errors import GreylagError, Unavailable
from core.targets import CLOSED_STATES
from fleet.server import TOKEN_VARIABLE

POLL_WALL_SECONDS = 0.2
SILENCE_WALL_SECONDS = 60.0
SEVERITIES = (0.14, 0.4)


@dataclass(frozen=True, slots=True)
class LabPlan:
    """What to plant. settle_seconds: cluster time that the job must have trained before a fault comes.
    heal_seconds: cluster time after which a fault counts as not healed."""

    faults: tuple[str, ...]
    seed: int
    settle_seconds: float = 240.0
    heal_seconds: float = 5400.0


class Lab:
    """Talks to the fleet and to the owner, both over HTTP. tell: called with each truth record."""

    def __init__(self, fleet: str, owner: str, token: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self._client = httpx.Client(timeout=10.0, trust_env=False)
        self._fleet, self._owner, self._token, self._tell = fleet.rstrip("/"), owner.rstrip("/"), token, tell

    def run(self, plan: LabPlan) -> None:
        """Plants all faults of the plan. Raises GreylagError for what could not be planted or was not healed."""
        rng = random.Random(plan.seed)
        order = list(plan.faults)
        rng.shuffle(order)
        for name in order:
            seed = rng.randrange(1 << 31)
            self._until(lambda: self._trains(plan.settle_seconds), plan.heal_seconds, f"{name}: the job did not train")
            resolved = self._incidents()[1]
            self._inject(name, seed, plan)
            self._until(lambda seen=resolved: self._healed(seen), plan.heal_seconds,  # type: ignore[misc]
                        f"{name}: it was not healed")
            self._until(lambda: self._trains(0.0), plan.heal_seconds, f"{name}: the job did not train again")

    def _inject(self, name: str, seed: int, plan: LabPlan) -> None:
        # Sizes that nobody can overlook: the demo is about what follows.
        size = random.Random(seed).uniform(*SEVERITIES)

        def planted() -> bool:
            answer = self._ask("POST", f"{self._fleet}/lab/v1/faults", {"fault": name, "seed": seed, "phase": "train", "severity": size},
                               ok=(201, 409))
            if answer.status_code == 409:
                return False  # a checkpoint began between the two questions
            row = answer.json()
            truth = {key: row[key] for key in ("fault", "scope", "culprit")}
            self._tell({"type": "truth", "at": row["at"], "truth": truth})
            return True

        self._until(planted, plan.heal_seconds, f"{name}: it could not be planted")

    def _trains(self, seconds: float) -> bool:
        for job in self._get(f"{self._fleet}/control/v1/jobs"):
            since = job.get("trained_since_ms")
            if job["phase"] == "train" and since is not None and self._now() - since >= seconds * 1000:
                return True
        return False

    def _healed(self, resolved_before: int) -> bool:
        still_open, resolved = self._incidents()
        return still_open == 0 and resolved > resolved_before

    def _incidents(self) -> tuple[int, int]:
        """(open, resolved) incidents of the owner."""
        answer = self._get(f"{self._owner}/api/greylag/v1/incidents?limit=1000")
        rows = answer["items"] if isinstance(answer, dict) else answer
        states = [row["state"] for row in rows]
        return sum(s not in CLOSED_STATES for s in states), states.count("resolved")

    def _now(self) -> int:
        return int(self._get(f"{self._fleet}/control/v1/clock")["now_ms"])

    def _until(self, condition: Callable[[], bool], seconds: float, failed: str) -> None:
        """Polls until the condition holds; raises GreylagError once `seconds` of cluster time have passed."""
        end = self._now() + int(seconds * 1000)
        while not condition():
            now = self._now()
            if now >= end:
                raise GreylagError(f"{failed} within {seconds:.0f} s of cluster time ({rfc3339(now)})")
            time.sleep(POLL_WALL_SECONDS)

    def _get(self, url: str) -> Any:
        return self._ask("GET", url).json()

    def _ask(self, method: str, url: str, body: Any = None, ok: tuple[int, ...] = (200,)) -> httpx.Response:
        """The answer; tries again while the other side is silent. Raises Unavailable, or GreylagError for a refusal."""
        headers = {"authorization": f"Bearer {self._token}"} if "/lab/" in url else {}
        end = monotonic_seconds() + SILENCE_WALL_SECONDS
        while True:
            problem = ""
            try:
                answer = self._client.request(method, url, json=body, headers=headers)
                if answer.status_code in ok:
                    return answer
                if answer.status_code < 500:
                    raise GreylagError(f"{url} answered {answer.status_code}: {answer.text[:200]}")
                problem = f"{url} answered {answer.status_code}"
            except httpx.HTTPError as error:
                problem = f"{url} did not answer ({type(error).__name__})"
            if monotonic_seconds() > end:
                raise Unavailable(problem)
            time.sleep(POLL_WALL_SECONDS)


def main(argv: list[str] | None = None) -> int:
    """The command line: 0 all planted and healed, 1 not, 2 bad input."""
    parser = argparse.ArgumentParser(prog="fleet.lab", description="Plants faults in a running fleet, with their truth.")
    parser.add_argument("--fleet", required=True, help="base URL of the fleet")
    parser.add_argument("--owner", required=True, help="base URL of Greylag's API")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", default="thermal_throttle,packet_loss,stalled_loss")
    parser.add_argument("--settle-seconds", type=float, default=240.0)
    args = parser.parse_args(argv)
    token = os.environ.get(TOKEN_VARIABLE, "")
    faults = tuple(name for name in args.faults.split(",") if name)
    if not token or not faults:
        sys.stderr.write(f"fleet.lab: {TOKEN_VARIABLE} and at least one fault are needed\n")
        return 2

    def tell(record: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(record, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        Lab(args.fleet, args.owner, token, tell).run(LabPlan(faults, args.seed, args.settle_seconds))
    except GreylagError as error:
        sys.stderr.write(f"fleet.lab: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
