"""Series selectors as `--match` takes them: `up`, `{job="dcgm"}`, `DCGM_FI_DEV_GPU_TEMP{Hostname=~"n1.*"}`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import promql_parser

from core.errors import BadInput
from core.protocols import Matcher

METRIC = "__name__"
EVERYTHING = '{__name__!=""}'
NEEDS = 'a series selector is needed, such as \'{job="dcgm-exporter"}\''
_OPS = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def read_selector(text: str, where: str = "--match") -> tuple[Matcher, ...]:
    """The matchers of a selector. Raises BadInput for anything else."""
    try:
        tree: Any = promql_parser.parse(text)
    except Exception as error:  # the parser raises ValueError, and its own panics as other types
        raise BadInput(where, "", text, f"{NEEDS} ({str(error)[:120]})") from None
    if not isinstance(tree, promql_parser.VectorSelector) or tree.offset is not None or tree.at is not None:
        raise BadInput(where, "", text, NEEDS)
    if tree.matchers.or_matchers:
        raise BadInput(where, "", text, "a selector without `or` is needed: give --match twice instead")
    found = [Matcher(str(m.name), _OPS[str(m.op).rpartition(".")[2]], str(m.value)) for m in tree.matchers.matchers]
    if tree.name and not any(m.label == METRIC for m in found):
        found.insert(0, Matcher(METRIC, "=", tree.name))
    return tuple(found)


def selector_text(matchers: Sequence[Matcher]) -> str:
    """The selector as PromQL writes it."""
    return "{" + ",".join(f"{m.label}{m.op}{json.dumps(m.value, ensure_ascii=False)}" for m in matchers) + "}"


def predicate(matchers: Sequence[Matcher]) -> Callable[[str, Mapping[str, str]], bool]:
    """A function of (name, labels) that says whether a series matches. Raises BadInput for a pattern that is none."""
    tests: list[tuple[str, bool, str | re.Pattern[str]]] = []
    for one in matchers:
        value: str | re.Pattern[str] = one.value
        if one.op in ("=~", "!~"):
            try:
                value = re.compile(one.value, re.DOTALL)
            except re.error as error:
                raise BadInput("--match", one.label, one.value, f"a regular expression is needed ({error})") from None
        tests.append((one.label, one.op in ("=", "=~"), value))

    def matches(name: str, labels: Mapping[str, str]) -> bool:
        for label, wanted, value in tests:
            given = name if label == METRIC else labels.get(label, "")
            hit = given == value if isinstance(value, str) else value.fullmatch(given) is not None
            if hit != wanted:
                return False
        return True

    return matches
