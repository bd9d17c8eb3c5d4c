"""Scrape jobs with relabelling rules by chance, from a seed."""

from __future__ import annotations

import random
from typing import Any

JOBS, SEED = 300, 20_260_101
LABELS = ["job", "rack", "zone", "name", "empty", "absent", "__meta_os", "__meta_k8s_label_app", "__address__", "__param_q",
          "__metrics_path__", "instance", "__tmp_x"]
VALUES = ["a", "b-1", "R7", "n17.example.com:9100", "gpu;0", "", "x=1,y=2", "Ärger", "line", "ß", "abab", "$1", "0017", "É É"]
PATTERNS = ["(.*)", "", "a", "a|b-1", "(a|b).*", "([a-z]+)-?(\\d+)?", "(?i)r(\\d)", "(?P<host>[^.:]+)\\.?(?P<rest>.*)", "[[:alpha:]]+",
            "(?:(a)|(b))*", ".+", "(.*);(.*)", "\\$1", "\\d+", "__meta_(.+)", "__meta_k8s_label_(.+)", "rack|zone", "n.*e",
            "(ab)+", "[]a]+", "\\Qx=1\\E(.*)", "(\\pL+)(.*)", "(.)(.)(.)(.)(.)?(.)?(.)?(.)?(.)?(.)?(.)?", "(?s).+", "^a$", "a*?(b?)"]
TEMPLATES = ["$1", "${1}", "$2-$1", "$0", "pre-$1-post", "${host}", "$host:$rest", "$1x", "${1}x", "$$1", "$", "${", "${1", "", "const",
             "$3$4", "$11", "$01", "$1$", "{$1}", "é$1", "$hostä"]
TARGETS = ["rack", "new", "job", "__address__", "__metrics_path__", "__param_q", "__param_r", "l_$1", "${1}", "instance",
           "__tmp_x", "x${1}_y", "$2"]


def rule(chance: random.Random) -> dict[str, Any]:
    """One rule that Prometheus takes."""
    action = chance.choice(["replace"] * 5 + ["keep", "drop", "keepequal", "dropequal", "hashmod", "labelmap", "labeldrop",
                                              "labelkeep", "lowercase", "uppercase"])
    sources = chance.sample(LABELS, chance.choice([0, 1, 1, 1, 2, 3]))
    plain = [one for one in TARGETS if "$" not in one]
    out: dict[str, Any] = {"action": chance.choice([action, action.upper()])}
    if action in ("keepequal", "dropequal"):
        return {**out, "source_labels": sources, "target_label": chance.choice(plain)}
    if action in ("labeldrop", "labelkeep"):
        broad = ["rack|zone", "__meta_.*", "name|empty", "[a-z]+", "instance", "e.*"]
        kept = ["__.*|job|rack", "[a-z_]+", "__.+|(?:z.*)"]
        return {**out, "regex": chance.choice(broad if action == "labeldrop" else kept)}
    if action == "labelmap":
        return {**out, "regex": chance.choice(["__meta_(.+)", "__meta_k8s_label_(.+)", "(z)(.*)", "(r)ack"]),
                "replacement": chance.choice(["$1", "new_$1", "${2}_$1", "m", "${0}_x"])}
    if chance.random() < 0.3:
        out["separator"] = chance.choice(["", "-", "::", ";"])
    out |= {"source_labels": sources}
    if action in ("keep", "drop"):
        return {**out, "regex": chance.choice(PATTERNS)}
    if action == "hashmod":
        return {**out, "target_label": chance.choice(plain), "modulus": chance.choice([1, 7, 1000, 2**63, 2**64 - 1])}
    if action in ("lowercase", "uppercase"):
        return {**out, "target_label": chance.choice(plain)}
    out |= {"target_label": chance.choice(TARGETS)}
    if chance.random() < 0.85:
        out["regex"] = chance.choice(PATTERNS)
    if chance.random() < 0.85:
        out["replacement"] = chance.choice(TEMPLATES)
    return out


def jobs(chance: random.Random) -> list[dict[str, Any]]:
    """Scrape configurations with rules and labels by chance; no target is there, and none is asked for an hour."""
    out = []
    for i in range(JOBS):
        labels = {name: chance.choice(VALUES) for name in chance.sample(LABELS[1:8], 5)}
        out.append({
            "job_name": f"job-{i}", "scheme": chance.choice(["http", "http", "https"]),
            "params": {"q": ["1 2", "3"], "s": ["a/b"]} if chance.random() < 0.3 else {},
            "static_configs": [{"targets": ["127.0.0.1:1", "[::1]", "host"], "labels": labels}],
            "relabel_configs": [rule(chance) for _ in range(chance.choice([1, 1, 2, 3]))],
        })
    return out
