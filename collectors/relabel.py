"""Relabelling as Prometheus 2.42 does it: rules that rewrite a set of labels or drop it.

A set of labels is a mapping without empty values: a label whose value becomes empty is gone. Rules follow each other;
within one rule all values are those from before it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectors.config_reader import Reader
from collectors.re2 import ANY, BadPattern, Pattern, Template

ACTIONS = ("replace", "keep", "drop", "keepequal", "dropequal", "hashmod", "labelmap", "labeldrop", "labelkeep",
           "lowercase", "uppercase")
KEYS = ("source_labels", "separator", "target_label", "regex", "modulus", "replacement", "action")
SEPARATOR, REPLACEMENT = ";", "$1"
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TARGET = re.compile(r"(?:[a-zA-Z_]|\$(?:\{\w+\}|\w))(?:\w|\$(?:\{\w+\}|\w))*", re.ASCII)
_NEEDS_TARGET = ("replace", "keepequal", "dropequal", "hashmod", "lowercase", "uppercase")
_BY_NAME = ("labelmap", "labeldrop", "labelkeep")

Labels = dict[str, str]


@dataclass(frozen=True)
class RelabelRule:
    """One rule. modulus: of `hashmod`. See the module for what it works on."""

    action: str = "replace"
    source_labels: tuple[str, ...] = ()
    separator: str = SEPARATOR
    target_label: str = ""
    pattern: Pattern = field(default_factory=lambda: Pattern(ANY))
    replacement: str = REPLACEMENT
    modulus: int = 0

    def __post_init__(self) -> None:
        # Made once; equal rules have equal ones, so they stay out of comparisons.
        object.__setattr__(self, "_target", Template(self.target_label, self.pattern))
        object.__setattr__(self, "_value", Template(self.replacement, self.pattern))

    def apply(self, many: Sequence[Labels | None]) -> list[Labels | None]:
        """Each set of labels after this rule, None where it is dropped (or was before). The given ones may be changed."""
        if self.action in _BY_NAME:
            self.pattern.prepare({name for one in many if one is not None for name in one})
            return [None if one is None else self._names(one) for one in many]
        values = self._sources(many)
        if self.action in ("replace", "keep", "drop"):
            self.pattern.prepare(set(values))
        return [None if one is None else self._by_value(one, value) for one, value in zip(many, values, strict=True)]

    def _sources(self, many: Sequence[Labels | None]) -> list[str]:
        """The values of the source labels, joined; for what was dropped the empty text."""
        if len(self.source_labels) == 1:
            (name,) = self.source_labels
            return ["" if one is None else one.get(name, "") for one in many]
        join, names = self.separator.join, self.source_labels
        return ["" if one is None else join([one.get(name, "") for name in names]) for one in many]

    def _by_value(self, labels: Labels, value: str) -> Labels | None:
        action = self.action
        if action == "replace":
            self._replace(labels, value)
        elif action in ("keep", "drop"):
            return labels if (self.pattern.groups(value) is not None) == (action == "keep") else None
        elif action in ("keepequal", "dropequal"):
            return labels if (labels.get(self.target_label, "") == value) == (action == "keepequal") else None
        elif action == "hashmod":
            digest = hashlib.md5(value.encode("utf-8", "replace"), usedforsecurity=False).digest()
            labels[self.target_label] = str(int.from_bytes(digest[8:], "big") % self.modulus)
        else:
            _set(labels, self.target_label, _lower(value) if action == "lowercase" else _upper(value))
        return labels

    def _replace(self, labels: Labels, value: str) -> None:
        groups = self.pattern.groups(value)
        if groups is None:
            return
        target: str = self._target.expand(groups)  # type: ignore[attr-defined]
        if not self._target.constant and LABEL.fullmatch(target) is None:  # type: ignore[attr-defined]
            labels.pop(self.target_label, None)
            return
        result: str = self._value.expand(groups)  # type: ignore[attr-defined]
        if result:
            labels[target] = result
        else:
            labels.pop(self.target_label, None)  # as it is written, without its $1: so does Prometheus

    def _names(self, labels: Labels) -> Labels:
        if self.action == "labelmap":
            out = dict(labels)
            for name in sorted(labels):
                groups = self.pattern.groups(name)
                new = self._value.expand(groups) if groups is not None else ""  # type: ignore[attr-defined]
                if new:
                    out[new] = labels[name]
            return out
        keep = self.action == "labelkeep"
        return {name: value for name, value in labels.items() if (self.pattern.groups(name) is not None) == keep}


def _set(labels: Labels, name: str, value: str) -> None:
    if value:
        labels[name] = value
    else:
        labels.pop(name, None)


def _lower(text: str) -> str:
    """Letter by letter, as Go does: one letter stays one letter."""
    return text.lower() if text.isascii() else "".join(one.lower()[:1] for one in text)


def _upper(text: str) -> str:
    return text.upper() if text.isascii() else "".join(up if len(up := one.upper()) == 1 else one for one in text)


def relabel(labels: Mapping[str, str], rules: Sequence[RelabelRule]) -> Labels | None:
    """The labels after all rules; None where one drops them. Labels with an empty value are no labels."""
    return relabel_many([labels], rules)[0]


def relabel_many(many: Sequence[Mapping[str, str]], rules: Sequence[RelabelRule]) -> list[Labels | None]:
    """Each set of labels after all rules. For many sets it costs far less a set than for one."""
    return relabel_in_place([{name: value for name, value in one.items() if value} for one in many], rules)


def relabel_in_place(many: Sequence[Labels], rules: Sequence[RelabelRule]) -> list[Labels | None]:
    """The same for labels without empty values, which are changed."""
    out: list[Labels | None] = list(many)
    for rule in rules:
        out = rule.apply(out)
    return out


# --- configuration ----------------------------------------------------------------------------------------------------
def parse_rules(reader: Reader, key: str) -> tuple[RelabelRule, ...]:
    """A list of rules, checked as Prometheus checks them. Raises ConfigError."""
    return tuple(_rule(Reader(one, reader.where(key), f"{reader.name(key)}[{i}]"))
                 for i, one in enumerate(reader.items(key)))


def _rule(reader: Reader) -> RelabelRule:
    reader.check_keys(KEYS, {})
    given: Any = reader.data.get("action", "replace")
    action = given.lower() if isinstance(given, str) else given
    if action not in ACTIONS:
        raise reader.fail("action", given, f"allowed are: {', '.join(ACTIONS)}")
    sources = reader.texts("source_labels")
    for name in sources:
        if LABEL.fullmatch(name) is None:
            raise reader.fail("source_labels", name, "names of labels are needed: letters, digits and _")
    target, modulus = reader.word("target_label"), reader.number("modulus", 0)
    separator, replacement = reader.word("separator", SEPARATOR), reader.word("replacement", REPLACEMENT)
    text = reader.word("regex", ANY)
    try:
        rule = RelabelRule(action, sources, separator, target, Pattern(text), replacement, modulus)
    except BadPattern as error:
        raise reader.fail("regex", text, f"a regular expression of RE2 is needed ({error})") from None
    _check(reader, rule)
    return rule


def _check(reader: Reader, rule: RelabelRule) -> None:
    """What an action needs and what it does not go with."""
    action, target = rule.action, rule.target_label
    if action in _NEEDS_TARGET and not target:
        raise reader.fail("target_label", "nothing", f"the action {action} needs one")
    if action == "hashmod":
        if not 0 < rule.modulus < 1 << 64:
            raise reader.fail("modulus", rule.modulus, "the action hashmod needs a whole number, 1 or more")
        if LABEL.fullmatch(target) is None:
            raise reader.fail("target_label", target, "a label name of letters, digits and _ is needed")
    elif action in _NEEDS_TARGET and _TARGET.fullmatch(target) is None:
        raise reader.fail("target_label", target, "a label name is needed, which may hold $1 or ${name}")
    if action == "labelmap" and _TARGET.fullmatch(rule.replacement) is None:
        raise reader.fail("replacement", rule.replacement, "a label name is needed, which may hold $1 or ${name}")
    if action in ("lowercase", "uppercase") and rule.replacement != REPLACEMENT:
        raise reader.fail("replacement", rule.replacement, f"the action {action} takes none: remove it")
    own = {"keepequal": ("source_labels", "target_label"), "dropequal": ("source_labels", "target_label"),
           "labeldrop": ("regex",), "labelkeep": ("regex",)}.get(action)
    if own is not None:
        _only(reader, rule, own)


def _only(reader: Reader, rule: RelabelRule, own: tuple[str, ...]) -> None:
    plain = RelabelRule()
    values = {"source_labels": (rule.source_labels, ()), "separator": (rule.separator, plain.separator),
              "target_label": (rule.target_label, ""), "regex": (rule.pattern.text, ANY),
              "modulus": (rule.modulus, 0), "replacement": (rule.replacement, plain.replacement)}
    for key, (given, default) in values.items():
        if key not in own and given != default:
            raise reader.fail(key, given, f"the action {rule.action} takes only {' and '.join(own)}: remove it")
