"""Relabelling rule by rule: what each action makes of labels; patterns and replacements; rules of any shape."""

from __future__ import annotations

import hashlib
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.config_reader import Reader
from collectors.re2 import BadPattern, Pattern, Template
from collectors.relabel import parse_rules, relabel, relabel_many


def rules(*given_: dict):
    """Rules from what a file says."""
    return parse_rules(Reader({"r": list(given_)}, "here", ""), "r")


BASE = {"a": "foo", "b": "bar", "c": "baz", "empty": ""}
# rule, labels that change (None = gone), or None where the rule drops all
CASES = [
    ({"source_labels": ["a"], "target_label": "d"}, {"d": "foo"}),
    ({"source_labels": ["a"], "regex": "f(.*)", "target_label": "d", "replacement": "ch${1}-ch$1"}, {"d": "choo-choo"}),
    ({"source_labels": ["a", "b"], "regex": "f(.*);(.*)r", "target_label": "a", "replacement": "b${1}${2}m"}, {"a": "boobam"}),
    ({"source_labels": ["a"], "regex": "oo", "target_label": "d"}, {}),
    ({"source_labels": ["a"], "regex": "f(o+)", "target_label": "${1}", "replacement": "x"}, {"oo": "x"}),
    ({"source_labels": ["a"], "regex": "(f)oo", "target_label": "${2}", "replacement": "x"}, {}),
    ({"source_labels": ["a"], "target_label": "a", "replacement": ""}, {"a": None}),
    ({"source_labels": ["absent"], "target_label": "a"}, {"a": None}),
    ({"source_labels": ["empty"], "target_label": "b", "regex": "", "replacement": "it"}, {"b": "it"}),
    ({"target_label": "k", "replacement": "constant"}, {"k": "constant"}),
    ({"source_labels": ["a", "b"], "separator": "", "target_label": "d"}, {"d": "foobar"}),
    ({"source_labels": ["a"], "regex": "f.*", "action": "keep"}, {}),
    ({"source_labels": ["a"], "regex": "f", "action": "keep"}, None),
    ({"source_labels": ["a"], "regex": "foo|x", "action": "drop"}, None),
    ({"source_labels": ["a"], "regex": "fo", "action": "Drop"}, {}),
    ({"source_labels": ["a"], "target_label": "b", "action": "keepequal"}, None),
    ({"source_labels": ["a"], "target_label": "a", "action": "keepequal"}, {}),
    ({"source_labels": ["a"], "target_label": "a", "action": "dropequal"}, None),
    ({"source_labels": ["empty"], "target_label": "absent", "action": "dropequal"}, None),
    ({"source_labels": ["c"], "target_label": "d", "modulus": 1000, "action": "hashmod"}, {"d": "976"}),
    ({"regex": "(b|c)", "replacement": "new_$1", "action": "labelmap"}, {"new_b": "bar", "new_c": "baz"}),
    ({"regex": "a", "replacement": "b", "action": "labelmap"}, {"b": "foo"}),
    ({"regex": "b|c", "action": "labeldrop"}, {"b": None, "c": None}),
    ({"regex": "a", "action": "labelkeep"}, {"b": None, "c": None}),
    ({"source_labels": ["a"], "target_label": "a", "action": "uppercase"}, {"a": "FOO"}),
    ({"source_labels": ["a", "b"], "target_label": "a", "action": "lowercase"}, {"a": "foo;bar"}),
    ({"source_labels": ["empty"], "target_label": "a", "action": "lowercase"}, {"a": None}),
]


@pytest.mark.parametrize(("rule", "change"), CASES)
def test_each_action(rule, change):
    """An action changes what it says and nothing else; an empty label is no label."""
    full = {name: value for name, value in BASE.items() if value}
    expected = None if change is None else {n: v for n, v in {**full, **change}.items() if v is not None}
    assert relabel(BASE, rules(rule)) == expected


def test_rules_follow_each_other():
    """A rule sees what the one before it made, and one that drops ends it."""
    found = relabel(BASE, rules({"source_labels": ["a"], "target_label": "x", "replacement": "$1-1"},
                                {"source_labels": ["x"], "target_label": "y", "action": "uppercase"},
                                {"regex": "[abc]", "action": "labeldrop"}))
    assert found == {"x": "foo-1", "y": "FOO-1"}


@pytest.mark.parametrize(("pattern", "text", "groups"), [
    ("(a)|(b)", "b", ("b", "", "b")), ("a|b", "b", ("b",)), ("a|b", "ab", None), (".*", "x\n", None), ("(?s).*", "x\n", ("x\n",)),
    ("(.*)", "x\ny", None), ("x$", "x\n", None), ("(?i)É", "é", ("é",)), (r"\d", "٣", None), (r"(\pL+)\.(?P<n>[[:digit:]]+)", "é.7", ("é.7", "é", "7")),
    (r"[(\])]+(x)", "(])x", ("(])x", "x")), (r"[]]([^]])", "]a", ("]a", "a")), (r"\Q(a\E(b)", "(ab", ("(ab", "b")), (r"\((a)\\(b)", "(a\\b", ("(a\\b", "a", "b")),
    ("(a+?)(a*)", "aaa", ("aaa", "a", "aa")), ("", "", ("",)), ("", "a", None),
])
def test_patterns_match_a_whole_text_as_re2_does(pattern, text, groups):
    """Groups are counted from their left brackets; what took no part is empty."""
    assert Pattern(pattern).groups(text) == groups


@pytest.mark.parametrize("pattern", ["(", "a)(b", "(?=a)", r"(a)\1", "a{1001}", r"\C", "[z-a]", "*", "x" * 20_000, "\ud800"])
def test_what_is_no_pattern(pattern):
    """What RE2 refuses is refused, and so is what is far too long."""
    with pytest.raises(BadPattern):
        Pattern(pattern)


@pytest.mark.parametrize(("template", "result"), [
    ("$1", "A"), ("${1}", "A"), ("$n", "B"), ("$$1", "$1"), ("$", "$"), ("a$", "a$"), ("$1x", ""), ("${1}x", "Ax"), ("${1", "${1"),
    ("$0", "A-B"), ("$9", ""), ("$01", ""), ("${}", "${}"), ("$-", "$-"), ("$né", ""), ("$1$2", "AB"), ("$1_", ""), ("$999999999999", ""),
])
def test_replacements_are_filled_in_as_go_does(template, result):
    """The longest name counts; what is no reference stays as it is."""
    pattern = Pattern("(A)-(?P<n>B)")
    assert Template(template, pattern).expand(pattern.groups("A-B")) == result


def test_a_pattern_that_is_slow_elsewhere():
    """RE2's time grows with the text's length only: Python's own patterns would take years for this one."""
    started = time.monotonic()
    assert Pattern("(a*)*(a*)*(a|aa)+b").groups("a" * 2000) is None
    assert time.monotonic() - started < 5


simple = st.lists(st.sampled_from(["a", "b", "(a)", "(b)?", "[ab]", "(?:a|b)", "a*", "(a|b)+", "(ab)*?", "(?P<n>b)"]), max_size=6).map("".join)


@given(simple.filter(lambda text: text.count("?P<n>") < 2), st.text("ab", max_size=8))
def test_patterns_agree_with_pythons_where_both_mean_the_same(pattern, text):
    """For patterns of letters, classes, groups and repetitions the groups are those of Python's `re`."""
    found = re.fullmatch(pattern, text)
    expected = None if found is None else (text, *(one or "" for one in found.groups()))
    assert Pattern(pattern).groups(text) == expected


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.text("xyz1", max_size=3)), max_size=5))
def test_many_at_once_are_as_one_by_one(many):
    """What one set of labels becomes does not hang on the others; the given ones stay as they are."""
    some = rules({"source_labels": ["a", "b"], "regex": "(x*);(.*)", "target_label": "d", "replacement": "$2$1"},
                 {"regex": "(a)", "replacement": "c", "action": "labelmap"}, {"source_labels": ["d"], "regex": ".*1", "action": "drop"})
    before = [dict(one) for one in many]
    assert relabel_many(many, some) == [relabel(one, some) for one in many]
    assert many == before


@given(st.text(max_size=20), st.integers(1, 2**64 - 1))
def test_hashmod_is_the_end_of_md5(text, modulus):
    """The last 8 bytes of the digest, as a number."""
    expected = str(int(hashlib.md5(text.encode("utf-8", "replace")).hexdigest()[16:], 16) % modulus)
    found = relabel({"a": text}, rules({"source_labels": ["a"], "target_label": "h", "modulus": modulus, "action": "hashmod"}))
    assert found is not None
    assert found["h"] == expected
