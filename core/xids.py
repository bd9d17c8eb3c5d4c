"""What each XID is and who calls it fatal, read from `xids.yaml` beside this file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

VENDORS = ("nvidia", "eks", "azure", "aznhc", "meta")
BY_LINE = "line"


@dataclass(frozen=True, slots=True)
class Xid:
    """code: the XID. fault: the fault that it is where it counts as fatal. fatal_by: of VENDORS, or `line`."""

    code: int
    fault: str
    means: str
    fatal_by: tuple[str, ...]

    def fatal(self, vendor: str, told: bool | None) -> bool:
        """Whether it counts. told: what the log line itself says (NVLink codes), None = nothing."""
        if BY_LINE in self.fatal_by:
            return bool(told)
        return vendor in self.fatal_by


@cache
def xids() -> Mapping[int, Xid]:
    """All rows by code, in the file's order."""
    rows = yaml.safe_load(files("core").joinpath("xids.yaml").read_text(encoding="utf-8"))
    return {code: Xid(code, row["fault"], row["means"], tuple(row["fatal"])) for code, row in rows.items()}
