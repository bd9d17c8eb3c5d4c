"""README and docs against the code: each command that is shown exists, each link leads somewhere, each metric, address and reason that
is named is one of ours."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
import typer
import yaml

from app import wiring
from app.cli import app
from collectors.scrape_config import read_scrape_configs
from core.config import GreylagConfig, read_config
from core.errors import BadInput
from core.plugins import load_plugins
from core.telemetry import METRICS
from pipeline.api import create_api
from remediation.policy import parse_policy

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
COMMAND = typer.main.get_command(app)
GROUPS = tuple(name for name, one in COMMAND.commands.items() if hasattr(one, "commands"))  # type: ignore[attr-defined]
PASSES_ON = {"serve"}  # takes options of another program


def pieces(text: str) -> Iterator[tuple[int, str, bool]]:
    """(line number, text, in a fence) of what is set as code; a line that ends in a backslash goes on in the next."""
    fence, before = False, ""
    for n, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("```"):
            fence = not fence
        elif fence and line.rstrip().endswith("\\"):
            before += line.rstrip()[:-1]
        elif fence:
            yield n, before + line, True
            before = ""
        else:
            yield from ((n, found, False) for found in re.findall(r"`([^`]+)`", line))


def shell(line: str) -> Iterator[list[str]]:
    """The words of each command of a shell line, comments and assignments left out; nothing for what no shell could read."""
    lexer = shlex.shlex(line.replace("[", " ").replace("]", " ").replace("...", " "), posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return
    one: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set("|&;"):
            yield one
            one = []
        elif one or (not re.match(r"[A-Z_]+=", word) and word != "$"):
            one.append(word)


def commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, words after `greylag`) of each call of ours, `incidents show ID` without the word in front as well."""
    for n, code, _ in pieces(text):
        # An alternative stands with a bar and no blanks: `policy lint|plan`.
        for words in shell(re.sub(r"(?<=\w)\|(?=\w)", "/or/", code)):
            if words and words[0].rpartition("/")[2] == "greylag" and len(words) > 1 and re.match(r"[a-z-]", words[1]):
                yield n, words[1:]
            elif len(words) > 1 and words[0] in GROUPS and re.fullmatch(r"[a-z]+", words[1]):
                yield n, words


def wrong(words: list[str]) -> str | None:
    """What the command line does not know of a call; None = all of it is known."""
    here, rest = COMMAND, list(words)
    while rest and hasattr(here, "commands") and not rest[0].startswith("-"):
        names = rest[0].split("/or/")
        if missing := [name for name in names if name not in here.commands]:
            return f"no command {missing[0]}"
        here, rest = here.commands[names[0]], rest[1:]
    known = {"--help", *(option for one in here.params for option in (*one.opts, *one.secondary_opts))}
    asked = [part.partition("=")[0] for word in rest if word.startswith("-") and word != "-" for part in word.split("/or/")]
    return next((f"no option {one}" for one in asked if one not in known and here.name not in PASSES_ON), None)


@pytest.mark.parametrize("page", NAMES)
def test_each_command_that_a_page_shows_exists(page: str) -> None:
    """Sub-commands and options, in fences and within sentences."""
    found = commands((ROOT / page).read_text(encoding="utf-8"))
    assert [f"{page}:{n}: greylag {' '.join(words)}: {what}" for n, words in found if (what := wrong(words)) is not None] == []


def test_the_check_of_commands_sees_mistakes() -> None:
    """A command that is gone, an option that is none, an alternative of which one is none; and nothing in a sound line."""
    text = "`greylag why JOB --urll x` `incidents lst` `greylag policy lint|plam`\n```\nA=1 greylag replay x --json | jq . && greylag nope\n```\n"
    assert [wrong(words) for _, words in commands(text)] == ["no option --urll", "no command lst", "no command plam", None, "no command nope"]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", head).lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", NAMES)
def test_each_link_of_a_page_leads_somewhere(page: str) -> None:
    """Files, pictures and headings; addresses of the web are not asked."""
    here, broken = ROOT / page, []
    for aim in re.findall(r"\]\(([^)\s]+)\)", here.read_text(encoding="utf-8")):
        if aim.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = aim.partition("#")
        target = (here.parent / path).resolve() if path else here
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(aim)
    assert broken == []


@pytest.fixture(scope="module")
def ours() -> set[str]:
    """Metrics of Greylag's own page, and those that trainers and site files show under our name."""
    tables = (getattr(importlib.import_module(f"collectors.sources.{name}"), "described", None) for name in load_plugins("collectors.sources"))
    return {*METRICS, *(row.metric.partition("{")[0] for table in tables if table is not None for row in table())}


@pytest.mark.parametrize("page", NAMES)
def test_each_metric_that_a_page_names_is_ours(page: str, ours: set[str]) -> None:
    """`greylag_...` is a metric; a name that ends in _ or before a * or { is a beginning."""
    known, text = ours, (ROOT / page).read_text(encoding="utf-8")
    named = {(name, text[at.end():at.end() + 1]) for at in re.finditer(r"\bgreylag_[a-z0-9_]+", text) for name in [at.group()]}
    assert [name for name, after in sorted(named) if name not in known
            and not ((name.endswith("_") or after in ("*", "{", "[")) and any(one.startswith(name) for one in known))] == []


@pytest.mark.parametrize("page", NAMES)
def test_each_address_that_a_page_names_is_served(page: str) -> None:
    """Paths below /api/ exist in the API, whatever stands for an id."""
    served = {re.sub(r"\{[^}]+\}", "*", str(getattr(route, "path", ""))) for route in create_api(None).routes}  # type: ignore[arg-type]
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {at.rstrip("/.,") for at in re.findall(r"(?<![\w:])(?:http://[\w.:-]+)?(/api/greylag/v1/[a-z_/A-Z<>{}*-]*)", text)}
    wanted = {re.sub(r"/(?:[A-Z]+|<[^>]*>|\{[^}]*\})(?=/|$)", "/*", one) for one in named}
    assert sorted(one for one in wanted if one and one not in served) == []


def fences(page: str) -> Iterator[str]:
    """The YAML of a page."""
    return (found.group(1) for found in re.finditer(r"^```yaml\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S))


POLICY_KEYS = {"version", "mode", "limits", "rules", "spares", "defaults"}
CONFIG_KEYS = {"global", *(field.name for field in fields(GreylagConfig) if field.init)}


@pytest.mark.parametrize("page", NAMES)
def test_each_configuration_that_a_page_shows_is_taken(page: str, tmp_path: Path) -> None:
    """What has keys of greylag.yaml is read as such, plug-ins' keys included; secrets and other files need not be there."""
    refused = []
    for text in fences(page):
        data = yaml.safe_load(text.replace("...", "0" * 60))  # a hash is shown by its beginning
        if not isinstance(data, dict) or not set(data) & CONFIG_KEYS:
            continue
        if isinstance(data.get("backend"), dict):
            data["backend"].setdefault("name", Path(page).stem)  # a part of a backend, on the backend's own page
        (tmp_path / "greylag.yaml").write_text(yaml.safe_dump({"scrape_configs": [], **data}))
        try:
            config = read_config(tmp_path / "greylag.yaml")
            read_scrape_configs(replace(config, scrape_config_files=()))
            wiring.detectors(config.detectors, config.file)
            wiring.plugin_entry(load_plugins("remediation.backends"), config.backend, config.file, "backend")
            wiring.notifiers(config)
        except BadInput as error:
            refused.append(f"{text.splitlines()[0]}: {error}")
    assert refused == []


@pytest.mark.parametrize("page", NAMES)
def test_each_policy_that_a_page_shows_is_taken(page: str) -> None:
    """What has a version and rules is a policy; single rules and limits are put into one."""
    whole = {"version": 1, "mode": "observe", "limits": {}, "rules": []}
    found = [(text, yaml.safe_load(text)) for text in fences(page)]
    policies = [data for _, data in found if isinstance(data, dict) and set(data) & {"rules", "limits", "spares"} and set(data) <= POLICY_KEYS]
    refused = []
    for data in policies:
        try:
            parse_policy(yaml.safe_dump({**whole, **data}), page)
        except BadInput as error:
            refused.append(str(error))
    assert refused == []
