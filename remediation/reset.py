"""Before a GPU is reset: whether it can be reset alone, whether something still uses it, and what watches it meanwhile.

A GPU that a process uses cannot be reset, and what monitors it is such a process: the backend is asked to stop it gently and
to start it again (`pause_monitoring`), and the gap that this makes is planned (`GAPS`), so that it opens no incident.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from core.types import Finding
from core.yamlfile import parse_yaml

# Commands under which a node's exporters may fall silent, and how long they may need to speak again (NVIDIA/NVSentinel#1701:
# links are down while a node trains them after boot; dcgm-exporter answers within one to two minutes of its start).
GAPS = frozenset({"reset_gpu", "reboot", "diagnose", "replace"})
GRACE_MS = 180_000


@cache
def _families() -> tuple[tuple[str, Any, tuple[re.Pattern[str], ...]], ...]:
    name = "resets.yaml"
    rows = parse_yaml(files("remediation").joinpath(name).read_text(encoding="utf-8"), f"remediation/{name}")
    return tuple((row["family"], row["alone"], tuple(re.compile(p, re.IGNORECASE) for p in row["match"])) for row in rows)


@cache
def family_of(model: str) -> str | None:
    """The family of GPUs that a node's instance type and labels name; None where they name none that is known."""
    return next((name for name, _, patterns in _families() if any(p.search(model) for p in patterns)), None)


def alone(model: str, fabric_manager_down: bool = False) -> bool | None:
    """Whether a GPU of such a node can be reset alone; None where its model is not known (nvidia-smi then says so itself)."""
    family = family_of(model)
    if family is None:
        return None
    word = next(word for name, word, _ in _families() if name == family)
    return not fabric_manager_down if word == "with_fabric_manager" else bool(word)


def reset_args(given: Mapping[str, object], model: str, findings: Iterable[Finding], node: str | None) -> tuple[dict[str, object], str | None]:
    """(arguments, reason) of a reset step. gpus: `one` or `all` that NVLink connects, as the model allows; pause_monitoring:
    true. reason: `reset_needs_all` where the policy's own `gpus: one` asks for what the model cannot do. given: the policy's.
    """
    down = any(f.fault == "service_down" and f.ended_at is None and f.target.node == node for f in findings)
    can = alone(model, down)
    args: dict[str, object] = {"gpus": "all" if can is False else "one", "pause_monitoring": True, **given}
    return args, "reset_needs_all" if can is False and args["gpus"] == "one" else None
