"""The `greylag cases` and `greylag rules` commands. Their bodies are in `app.cases` and `app.rules_test`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

cases_app = typer.Typer(no_args_is_help=True, help="Recorded cases: spans of telemetry with what is true of them.")
rules_app = typer.Typer(no_args_is_help=True, help="Rules over trainers' logs.")

AsJson = Annotated[bool, typer.Option("--json", help="one JSON object a line")]


@cases_app.command("add")
def cases_add(
    name: Annotated[str, typer.Argument(help="of the case, and of its folder")],
    paths: Annotated[list[str], typer.Argument(help="a store's folder, or a recording, as `greylag replay` reads them")],
    out: Annotated[str, typer.Option(help="the folder of all cases")] = "cases",
    start: Annotated[str | None, typer.Option(help="first time, RFC 3339")] = None,
    end: Annotated[str | None, typer.Option(help="last time, RFC 3339")] = None,
    expect: Annotated[list[str] | None, typer.Option(help="FAULT, FAULT@NODE, FAULT@NODE/DEVICE, FAULT@job=NAME, or `nothing`")] = None,
    incident: Annotated[str | None, typer.Option(help="an incident of the store: its time, and what became of it")] = None,
    as_told: Annotated[bool, typer.Option("--as-told", help="what a replay says now is right: somebody has looked at it")] = False,
    must_not: Annotated[list[str] | None, typer.Option(help="as --expect: what no incident may say; may be repeated")] = None,
    inventory: Annotated[str | None, typer.Option(help="inventory.yaml; else the one beside the recording")] = None,
    note: Annotated[str, typer.Option(help="a few words for the others")] = "",
    as_json: AsJson = False,
) -> None:
    """Keeps a span of telemetry with what is true of it, to be judged again after each change."""
    from app.cases import CaseOptions, add

    case = add(CaseOptions(name, tuple(paths), out, start, end, tuple(expect or ()), incident, as_told, tuple(must_not or ()),
                           inventory, note))
    true = ", ".join(one["fault"] for one in case["incidents"]) or "nothing"
    typer.echo(json.dumps(case) if as_json else f"{out}/{name}: {case['samples']} samples and {case['events']} events from "
               f"{case['start']} to {case['end']}; true is: {true}")


@cases_app.command("check")
def cases_check(
    paths: Annotated[list[str] | None, typer.Argument(help="cases, or folders of cases")] = None,
    as_json: AsJson = False,
) -> None:
    """Replays cases and compares what Greylag says with what is true; exit 1 where it differs."""
    from app.cases import check

    rows = check(paths or ["cases"])
    for row in rows:
        typer.echo(json.dumps(row) if as_json else "  ".join([row["name"], "right" if row["right"] else "wrong", *row["differences"]]))
    raise typer.Exit(0 if all(row["right"] for row in rows) else 1)


@rules_app.command("test")
def rules_test(
    rules: Annotated[str, typer.Argument(help="the rules' file, as `logs[].rules` names it")],
    logs: Annotated[list[str], typer.Argument(help="trainer.<job>.log files, or folders with them")],
    as_json: AsJson = False,
) -> None:
    """What rules over trainers' logs would have said of recorded logs; exit 1 where a rule never matched a line."""
    from app.rules_test import test_rules

    said, silent = test_rules(rules, logs)
    for row in said:
        typer.echo(json.dumps(row) if as_json else f"{row['at']}  {row['job']}  {row['rule']}: {row['state']}{row['more']}")
    for name in silent:
        typer.echo(json.dumps({"rule": name, "state": "never matched"}) if as_json else f"{name}: never matched a line")
    raise typer.Exit(1 if silent else 0)
