"""Short hashes of what a kept result rests on: the code that made it and the policy that it was made with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from core.render import plain
from remediation.policy import Policy

LENGTH = 16


def code_hash(rooms: Iterable[str]) -> str:
    """Of all Python and YAML files in these folders of the project, by name and content."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for room in rooms:
        for path in sorted([*(root / room).rglob("*.py"), *(root / room).rglob("*.yaml")]):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:LENGTH]


def policy_hash(policy: Policy) -> str:
    """Of what the policy says; where its file lies and how its lines are numbered is left out."""
    said = plain(replace(policy, file="", lines={}))
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:LENGTH]
