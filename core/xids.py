"""What each XID is and who calls it fatal, read from `xids.yaml` beside this file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import yaml

DEFAULT = "greylag"
VENDORS = ("nvidia", "eks", "azure", "aznhc", "meta")
POLICIES = (DEFAULT, *VENDORS)


@dataclass(frozen=True, slots=True)
class Xid:
    """code: the XID. fault: the fault that it is where it counts as fatal. by_line: its log line's own word comes first."""

    code: int
    fault: str
    means: str
    by_line: bool = False

    def fatal(self, policy: str, told: bool | None = None) -> bool:
        """Whether it counts by that list. told: what the log line itself says (NVLink codes), None = nothing."""
        return told if self.by_line and told is not None else listed(policy, self.code)

    @property
    def fatal_by(self) -> tuple[str, ...]:
        """Whose lists have it."""
        return tuple(name for name in POLICIES if listed(name, self.code))


@dataclass(frozen=True, slots=True)
class XidPolicy:
    """The site's choice of the XIDs that are fatal. policy: whose list counts. fatal, not_fatal: codes on which the site itself
    says otherwise, whatever the list and the log line say."""

    policy: str = DEFAULT
    fatal: tuple[int, ...] = ()
    not_fatal: tuple[int, ...] = ()

    def counts(self, code: int, told: bool | None = None) -> bool:
        """Whether the code is fatal here. told: what the log line itself says, None = nothing."""
        if code in self.fatal or code in self.not_fatal:
            return code in self.fatal
        return xid_of(code).fatal(self.policy, told)


OURS = XidPolicy()


@cache
def _data() -> Mapping[str, Any]:
    return dict(yaml.safe_load(files("core").joinpath("xids.yaml").read_text(encoding="utf-8")))


@cache
def xids() -> Mapping[int, Xid]:
    """All rows by code, in the file's order."""
    return {code: Xid(code, row["fault"], row["means"], row.get("by_line", False)) for code, row in _data()["codes"].items()}


@lru_cache(4096)
def xid_of(code: int) -> Xid:
    """The row of a code; of one that has none, as those who call every code fatal take it."""
    return xids().get(code) or Xid(code, "xid_fatal", "a code without a row")


@lru_cache(4096)
def listed(policy: str, code: int) -> bool:
    """Whether that list (one of POLICIES) calls the code fatal."""
    row = _data()["lists"][policy]
    return code in row["fatal"] if "fatal" in row else code not in row["all_but"]
