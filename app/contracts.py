"""Writes `core/contracts.md` from the types and `docs/` detectors, sources and fleet (its faults) from their plug-ins;
`--check` fails when one is stale.

The truth beside each sample scenario (`sample_data/scenarios/*.truth.jsonl`) is written with them.
Shapes are documented nowhere else, and a detector's page is what its file says.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

from app.fleet_command import truth_files
from core import events, inventory, protocols, reasons, signals, targets, telemetry, types, window
from core.faults import faults
from core.plugins import load_plugins
from core.xids import POLICIES, XidPolicy, xids

HEAD = """# Contracts

Generated from the types by `make contracts`; do not edit. Times are integer milliseconds since the epoch (UTC) in the
records and RFC 3339 in JSON. Missing is NaN in arrays, None in records and null in JSON, with the key present.
"""


def _type_name(hint: Any) -> str:
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    text = str(hint).replace("typing.", "").replace("collections.abc.", "")
    for module in ("core.types.", "core.window.", "core.protocols.", "core.inventory."):
        text = text.replace(module, "")
    return text.replace("numpy.ndarray[tuple[Any, ...], numpy.dtype[numpy.float64]]", "float64[]").replace("|", "\\|")


def _record(cls: type) -> list[str]:
    out = [f"### {cls.__name__}", "", inspect.getdoc(cls) or "", "", "| field | type |", "|---|---|"]
    hints = typing.get_type_hints(cls)
    out += [f"| {f.name} | {_type_name(hints[f.name])} |" for f in dataclasses.fields(cls)]
    return [*out, ""]


def _protocol(cls: type) -> list[str]:
    out = [f"### {cls.__name__}", "", inspect.getdoc(cls) or "", ""]
    for name, member in vars(cls).items():
        if inspect.isfunction(member) and (name == "__call__" or not name.startswith("_")):
            text = " ".join((inspect.getdoc(member) or "").split())
            out.append(f"- `{name}{_signature(member)}` {text}".rstrip())
    return [*out, ""]


def _signature(member: Any) -> str:
    return str(inspect.signature(member)).replace("'", "").replace("(self, ", "(").replace("(self)", "()")


def _module(title: str, module: ModuleType) -> list[str]:
    out = [f"## {title}", ""]
    for cls in vars(module).values():
        if not isinstance(cls, type) or cls.__module__ != module.__name__:
            continue
        if dataclasses.is_dataclass(cls):
            out += _record(cls)
        elif getattr(cls, "_is_protocol", False):
            out += _protocol(cls)
    return out


def _table(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    cells = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
    return [f"## {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head), *cells, ""]


def contracts() -> str:
    """The whole document."""
    out = [HEAD]
    out += _module("Records", types)
    out += _module("Window", window)
    out += _module("Inventory", inventory)
    out += _module("Protocols and plug-ins", protocols)
    out += _table("Signals", ("signal", "unit", "what", "several series"),
                  [(s.name, s.unit, s.help, s.combine) for s in signals.SIGNALS.values()])
    out += _table("Faults", ("fault", "owner", "class", "what"),
                  [(f.name, f.owner, f.klass, f.means) for f in faults().values()])
    out += _table("Event kinds", ("kind", "fields"), [(k, ", ".join(v)) for k, v in events.KINDS.items()])
    lists = {"Target kinds": targets.KINDS, "Scopes": targets.SCOPES, "Incident states": targets.INCIDENT_STATES,
             "Job phases": targets.PHASES, "Action kinds": targets.ACTION_KINDS, "Outcome states": targets.OUTCOME_STATES}
    for title, names in lists.items():
        out += [f"## {title}", "", ", ".join(f"`{n}`" for n in names), ""]
    for title, rows in (("Scrape reasons", reasons.SCRAPE_REASONS), ("Ingest reasons", reasons.INGEST_REASONS),
                        ("Push reasons", reasons.PUSH_REASONS), ("Shed reasons", reasons.SHED_REASONS),
                        ("Tolerated breaches", reasons.TOLERATED), ("Finding ends", reasons.FINDING_ENDS),
                        ("Incident reasons", reasons.INCIDENT_REASONS), ("Action reasons", reasons.ACTION_REASONS),
                        ("Signature reasons", reasons.SIGNATURE_REASONS), ("Alert reasons", reasons.ALERT_REASONS),
                        ("Notify reasons", reasons.NOTIFY_REASONS)):
        out += _table(title, ("reason", "meaning"), list(rows.items()))
    out += _table("Own metrics", ("name", "type", "labels", "what"),
                  [(n, kind, ", ".join(labels), text) for n, (kind, text, labels) in telemetry.METRICS.items()])
    return "\n".join(out).rstrip() + "\n"


DETECTORS_HEAD = """# Detectors

Generated from the detectors by `make contracts`; do not edit. A detector is one file in `detectors/`: a window in, verdicts
out. Its parameters are set in `greylag.yaml` under `detectors: {name: {parameter: value}}`.
"""


def detectors_page() -> str:
    """What each detector finds, needs, holds and must not fire on, and its parameters."""
    out = [DETECTORS_HEAD]
    for name, plugin in load_plugins("detectors").items():
        module = inspect.getmodule(plugin.judge)
        hold = plugin.hold
        out += [f"## {name}", "", inspect.getdoc(module) or "", ""]
        out += ["**Needs** " + "; ".join("one of " + ", ".join(f"`{s}`" for s in group) if len(group) > 1
                                         else f"`{group[0]}`" for group in plugin.needs) + ".", ""]
        out += [f"**Opens** after {hold.on} faulty of {hold.of} ticks (15 s each), a fatal event at once; **ends** after {hold.off} "
                f"clear ticks; **expires** after {hold.expire} ticks of which nothing is known.", ""]
        out += ["**Must not fire on** " + "; ".join(plugin.must_not) + ".", ""]
        out += [inspect.getdoc(plugin.params) or "", "", "| parameter | default |", "|---|---|"]
        out += [f"| `{f.name}` | {_default(f.default)} |" for f in dataclasses.fields(plugin.params)]
        out += [""]
    out += xid_table()
    return "\n".join(out).rstrip() + "\n"


def _default(value: Any) -> str:
    return "the site's, [below](#xids)" if isinstance(value, XidPolicy) else str(value)


XIDS_HEAD = """Those who publish lists of fatal XIDs disagree, and the site chooses, once for all detectors, in `greylag.yaml`:

```yaml
xids:
  policy: eks        # whose list counts; greylag (NVIDIA's, and 94) where nothing is said
  fatal: [92]        # codes that are fatal here besides,
  not_fatal: [63]    # and codes that are not
```

`x` marks whose list has the code. Where a log line says Fatal or Nonfatal itself (`line`), that comes before the list, and after
what the site says of the code. A code that is not here is fatal to azure and meta only, as `xid_fatal`. With azure's list 45 is
fatal, which the driver writes for each GPU of a job that is killed: `not_fatal: [45]` goes well with it."""


def xid_table() -> list[str]:
    """Who calls which XID fatal, and the fault that it is there."""
    rows = [(str(row.code), row.means, f"`{row.fault}`", *("x" if name in row.fatal_by else "" for name in POLICIES),
             "line" if row.by_line else "") for row in xids().values()]
    title, *table = _table("XIDs", ("XID", "what", "fault", *POLICIES, ""), rows)
    return [title, "", XIDS_HEAD, *table]


SOURCES_HEAD = """# Sources

Generated from the sources by `make contracts`; do not edit. A source is one file in `collectors/sources/`. An exporter's
source says what a series means: its canonical signal, the factor from the exporter's unit to the signal's, whether the raw
value only grows (the window then holds its rate a second), and whose it is. Series that no source knows are stored under
their own names and mean nothing. Nodes are named by the labels given, else by discovery.
"""


def sources_page() -> str:
    """What each source reads: metrics, signals, units, parts and the labels that name them."""
    out = [SOURCES_HEAD]
    for name, plugin in load_plugins("collectors.sources").items():
        module = importlib.import_module(f"collectors.sources.{name}")
        words = re.sub(r"\s*\((?:signals|rules)\.md [^)]*\)", "", inspect.getdoc(module) or "")  # notes for who changes it
        out += [f"## {name}", "", words, ""]
        if plugin.map_series is None:
            out += [f"**Reads** lines of {plugin.log_kind} logs.", ""]
            continue
        if plugin.identity:
            out += ["**Node** " + ", else ".join(f"`{label}`" for label in plugin.identity) + ", else as discovery says.", ""]
        rows: list[tuple[str, ...]] = []
        for row in module.described():
            whose = row.part + (", second choice" if row.metric.replace("[amd_]", "") in plugin.second_choice else "")
            rows.append((f"`{row.metric}`", f"`{row.meaning.signal}`", signals.unit_of(row.meaning.signal),
                         f"{row.meaning.scale:g}", "counter" if row.meaning.counter else "gauge", whose))
        out += _table("", ("metric", "signal", "unit", "factor", "raw value", "whose"), rows)[2:]
    return "\n".join(out).rstrip() + "\n"


FLEET_HEAD = """# Faults and look-alikes of the bundled fleet

Generated from the plug-ins by `make contracts`; do not edit. A fault is one file in `fleet/faults/`, a look-alike (of which the
truth is "nothing to do") one in `fleet/lookalikes/`; each turns knobs of the world (`fleet/knobs.py`), and what pages, logs
and jobs show follows from there. `greylag fleet inject NAME` plants one, a scenario names it under `fault:` or `look_alike:`.

Impact: by how much the job's step gets longer, drawn log-uniformly from this range where nobody says; "stands" = the job
stands still or dies, "none" = its steps stay as they are. Heals: the median time after which it goes away by itself. Cured
by: the actions that end it on its node or in its job; where none is named nothing that is done to a node helps. Tier: the
poorest telemetry that shows it (A exporters as they come, B also logs, C also the recommended fields, D also the trainer's
metrics).
"""


def fleet_page() -> str:
    """What each plug-in of the fleet is: fault, scope, place, sizes, cures, and what it shows in a sentence."""
    out = [FLEET_HEAD]
    for title, package in (("Faults", "fleet.faults"), ("Look-alikes", "fleet.lookalikes")):
        plugins = load_plugins(package)
        rows = [_fleet_row(name, plugin) for name, plugin in sorted(plugins.items(), key=lambda p: (p[1].fault or "", p[0]))]
        out += _table(title, ("name", "fault", "scope", "place", "impact", "onset", "heals", "cured by", "tier", "needs", "what it is"), rows)
    return "\n".join(out).rstrip() + "\n"


def _fleet_row(name: str, plugin: protocols.FaultPlugin) -> tuple[str, ...]:
    low, high = plugin.impact
    impact = "none" if high <= 0.01 else "stands" if low >= 9 else f"{low:.0%} – {high:.0%}"
    heals = "" if plugin.heals_seconds is None else f"{plugin.heals_seconds / 60:.0f} min"
    package = "fleet.lookalikes" if plugin.fault is None else "fleet.faults"
    module = importlib.import_module(f"{package}.{plugin.name}")
    words = (inspect.getdoc(module) or "").split("\n\n")[0].replace("\n", " ")
    return (f"`{name}`", f"`{plugin.fault}`" if plugin.fault else "nothing to do", plugin.scope, plugin.place, impact,
            ", ".join(plugin.onsets), heals, ", ".join(plugin.cured_by), plugin.tier, ", ".join(plugin.needs), words)


def main(args: list[str]) -> int:
    """Writes the documents, or with --check says whether they are current."""
    root = Path(__file__).resolve().parent.parent
    pages = {root / "core" / "contracts.md": contracts(), root / "docs" / "detectors.md": detectors_page(),
             root / "docs" / "sources.md": sources_page(), root / "docs" / "fleet.md": fleet_page(), **truth_files(root / "sample_data" / "scenarios")}
    stale = [p for p, text in pages.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    if "--check" in args:
        for path in stale:
            print(f"{path.relative_to(root)} is stale: run `make contracts`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
