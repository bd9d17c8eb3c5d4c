"""The closed list of faults, read from `faults.yaml` beside this file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml


@dataclass(frozen=True, slots=True)
class Fault:
    """name; owner: infra | network | storage | facilities | job owner; klass: page | ticket | log."""

    name: str
    owner: str
    klass: str
    means: str


@cache
def faults() -> dict[str, Fault]:
    """All faults by name, in the file's order."""
    rows = yaml.safe_load(files("core").joinpath("faults.yaml").read_text(encoding="utf-8"))
    return {name: Fault(name, row["owner"], row["class"], row["means"]) for name, row in rows.items()}
