"""The pages of faults, as an alert links them: `docs/faults/FAULT.md`, served by Greylag itself at `/runbooks/FAULT`.

In a checkout the pages are read from `docs/faults`; a wheel carries them as `pipeline/fault_pages`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from core.faults import faults

_HERE = Path(__file__).resolve()
FOLDERS = (_HERE.parent / "fault_pages", _HERE.parents[1] / "docs" / "faults")
SECTIONS = ("What it means", "How Greylag sees it", "Confirm by hand", "Act", "Return to service")
INDEX = "README"
OTHERS = {"slow_drift": "../drift.md"}  # what alerts are about besides


@cache
def runbook(fault: str) -> str | None:
    """The page of a fault in Markdown (`README`: the list of all; `slow_drift`: of what tickets of drift are about); None where the name
    is no fault or its page is missing."""
    if fault not in (INDEX, *faults(), *OTHERS):
        return None
    for folder in FOLDERS:
        path = folder / OTHERS.get(fault, f"{fault}.md")
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None


def runbook_url(fault: str, links: Mapping[str, str]) -> str:
    """Where a fault's page is: below `runbook_url` of the configuration, else at the running Greylag, which needs no internet;
    where none runs, the file."""
    base, own = links.get("runbook_url", "").rstrip("/"), links.get("external_url", "").rstrip("/")
    if base:
        return f"{base}/{fault}"
    return f"{own}/runbooks/{fault}" if own else f"docs/faults/{fault}.md"


def first_steps(fault: str, most: int = 2) -> tuple[str, ...]:
    """The first numbered steps of the page's section `Act`, as plain text; empty where there is no page."""
    found = re.search(r"^## Act\n(.*?)(?=^## |\Z)", runbook(fault) or "", re.MULTILINE | re.DOTALL)
    steps = re.split(r"^\d+\. ", found[1], flags=re.MULTILINE)[1:] if found else []
    return tuple(_plain(step) for step in steps[:most])


def _plain(text: str) -> str:
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "").split())
