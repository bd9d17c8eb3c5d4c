"""`greylag policy lint` and `translate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from core.config import read_config
from core.errors import BadInput, ConfigError, nearest
from core.plugins import load_plugins
from core.protocols import BackendPlugin
from core.targets import MODES
from core.yamlfile import read_yaml
from remediation.hyperpod import translate
from remediation.lint import Problem, examine, uncovered
from remediation.policy import Policy, read_policy

Say = Callable[[str], None]
ALL = "all"


def backends_named(names: Sequence[str]) -> dict[str, BackendPlugin]:
    """The backends by name; `all` is each of them. Raises ConfigError."""
    known: dict[str, BackendPlugin] = load_plugins("remediation.backends")
    for name in names:
        if name != ALL and name not in known:
            raise ConfigError("--backend", "", name, f"allowed are: {', '.join((*known, ALL))}{nearest(name, known)}")
    return {name: plugin for name, plugin in known.items() if name in names or ALL in names}


def problems_of(policy: Policy, backends: dict[str, BackendPlugin]) -> list[Problem]:
    """What is to be mended, each thing once; what only one backend lacks names it."""
    found: dict[Problem, None] = {}
    for name, plugin in backends.items():
        found |= dict.fromkeys(examine(policy, frozenset(plugin.kinds), f"the backend {name}"))
    return list(found)


def lint_command(path: Path | None, names: list[str], config: Path | None, as_json: bool, say: Say) -> int:
    """Prints what is to be mended; 1 where there is anything. Raises ConfigError."""
    from app.wiring import default_policy

    chosen = path
    if config is not None:
        site = read_config(config)
        chosen = path or (site.resolve(site.policy) if site.policy else None)
        names = names or [str(site.backend.get("name", "observe"))]
    policy = read_policy(chosen or default_policy())
    backends = backends_named(names or ["fleet"])
    found, silent = problems_of(policy, backends), uncovered(policy)
    if as_json:
        say(json.dumps({"policy": policy.file, "mode": policy.mode, "backends": list(backends), "faults_without_a_rule": silent,
                        "problems": [{"where": p.where, "rule": p.rule, "what": p.what, "change": p.change} for p in found]}))
        return 1 if found else 0
    for problem in found:
        say(str(problem))
    if silent:
        say(f"note: no rule speaks of {', '.join(silent)}: their incidents are shown, and the policy tells nobody")
    if not found:
        say(f"{policy.file}: {len(policy.rules)} rules, mode {policy.mode}: nothing to mend for {', '.join(backends)}")
    return 1 if found else 0


def translate_command(path: Path, out: Path | None, mode: str, say: Say, tell: Say) -> None:
    """Writes the policy. Raises ConfigError for what is no runPolicy, or has a key that nobody documents."""
    from collectors.log_rules import SECTION, read_rules

    if mode not in MODES:
        raise BadInput("--mode", "", mode, f"allowed are: {', '.join(MODES)}")
    data = read_yaml(path)
    made = translate(data, str(path), mode)
    if isinstance(data, Mapping) and ("spec" in data or SECTION in data) and SECTION in path.read_text(encoding="utf-8"):
        read_rules(path)  # its rules are used as they are: what is wrong with them is said now
    for note in made.notes:
        tell(f"note: {note}")
    if out is None:
        say(made.text.rstrip("\n"))
        return
    if out.exists():
        raise BadInput("--out", "", str(out), "a file that is not there yet is needed")
    out.write_text(made.text, encoding="utf-8")
    tell(f"{out}: written; look at it, then `greylag policy lint {out}`")
