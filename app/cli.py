"""The `greylag` command. Exit status: 0 done, 1 a finding that it was asked to fail on, 2 bad input in one sentence."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cases_commands import cases_app, rules_app
from app.policy_commands import policy_app
from core.errors import BadInput, GreylagError, Unavailable, nearest
from core.faults import faults

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Finds grey failures in GPU training clusters, names the culprit, repairs it under policy.")
incidents_app = typer.Typer(no_args_is_help=True, help="Incidents of a running Greylag.")
fleet_app = typer.Typer(no_args_is_help=True, help="The bundled emulated fleet.")
store_app = typer.Typer(no_args_is_help=True, help="The store.")
dashboards_app = typer.Typer(no_args_is_help=True, help="Grafana dashboards as code.")
for name, sub in (("policy", policy_app), ("incidents", incidents_app), ("fleet", fleet_app), ("store", store_app),
                  ("dashboards", dashboards_app), ("cases", cases_app), ("rules", rules_app)):
    app.add_typer(sub, name=name)

ConfigPath = Annotated[Path, typer.Option("-c", "--config", help="greylag.yaml")]
OwnerUrl = Annotated[str, typer.Option("--url", help="address of the running Greylag")]


def _ask_with(path: str | None) -> str | None:
    """The client looks for its token there; the commands themselves never see it."""
    if path:
        os.environ["GREYLAG_TOKEN_FILE"] = path
    return path


TokenFile = Annotated[str | None, typer.Option("--token-file", callback=_ask_with, envvar="GREYLAG_TOKEN_FILE",
                                               help="file with the token to ask with, where tokens are asked for; else GREYLAG_TOKEN")]
DEFAULT_URL = "http://127.0.0.1:9470"
MISTAKES = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)  # of a path that was given


@app.command()
def demo(
    nodes: Annotated[int, typer.Option(min=2, max=256, help="nodes in service")] = 16,
    seed: Annotated[int, typer.Option(help="draws places and order of the faults")] = 1,
    fault: Annotated[str | None, typer.Option(help="one fault only, or `none`")] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="ends after this wall time")] = None,
    headless: Annotated[bool, typer.Option("--headless", help="no explorer")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the lines of `replay --json`")] = False,
    exit_when_healed: Annotated[bool, typer.Option("--exit-when-healed", help="0 only when all is proven")] = False,
    refuse_control: Annotated[bool, typer.Option("--refuse-control", help="the control API refuses everything")] = False,
) -> None:
    """An emulated fleet breaks, Greylag finds the part, repairs it and proves the recovery."""
    from app.demo import FAULTS, DemoOptions, run_demo

    if fault is not None and fault not in (*FAULTS, "none"):
        raise BadInput("--fault", "", fault, f"allowed are: {', '.join((*FAULTS, 'none'))}")
    options = DemoOptions(nodes, 2, seed, fault, seconds, headless, as_json, exit_when_healed, refuse_control)
    raise typer.Exit(run_demo(options))


@app.command()
def run(
    config: ConfigPath,
    role: Annotated[str, typer.Option(help="all, owner or collector")] = "all",
    worker: Annotated[str, typer.Option(help="role collector: its name, collector-0 to collector-N")] = "collector-0",
) -> None:
    """Watches a cluster as the configuration says."""
    from app.run import run_role

    raise typer.Exit(run_role(config, role, worker))


@app.command()
def check(config: ConfigPath) -> None:
    """Checks a configuration: every file that it names is read, nothing is started."""
    from app.run import check_config

    for line in check_config(config):
        typer.echo(line)


@app.command()
def replay(
    paths: Annotated[list[str], typer.Argument(help="files or folders of a recording")],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
    inventory: Annotated[str | None, typer.Option(help="inventory.yaml")] = None,
    policy: Annotated[str | None, typer.Option(help="a policy; its actions are simulated")] = None,
    keep: Annotated[str | None, typer.Option(help="keeps the store in this folder")] = None,
    fail_on: Annotated[str | None, typer.Option(help="`incident`: exit 1 when one opens")] = None,
    log_rules: Annotated[str | None, typer.Option(help="rules over trainers' logs, as HyperPod has them")] = None,
) -> None:
    """Judges a recording as if it were live, in virtual time."""
    from app.replay import ReplayOptions, replay_command

    if fail_on not in (None, "incident"):
        raise BadInput("--fail-on", "", fail_on, "allowed is: incident")
    raise typer.Exit(replay_command(ReplayOptions(tuple(paths), inventory, policy, keep, log_rules), as_json, fail_on))


@app.command()
def drift(
    url: OwnerUrl = DEFAULT_URL,
    token_file: TokenFile = None,
    data_dir: Annotated[str | None, typer.Option(help="the store of a stopped Greylag, or of an import, in place of --url")] = None,
    inventory: Annotated[str | None, typer.Option(help="inventory.yaml, for --data-dir; else the one beside the store")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Parts that get worse over days, with days to go to a named limit."""
    from app.drift_command import lines, of_running, of_store

    answer = of_running(url) if data_dir is None else of_store(data_dir, inventory)
    for line in [json.dumps(answer)] if as_json else lines(answer):
        typer.echo(line)


@app.command()
def train(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="greylag.yaml of a stopped Greylag")] = None,
    data_dir: Annotated[str | None, typer.Option(help="the folder of a store (of an import, say), in place of -c")] = None,
    out: Annotated[Path | None, typer.Option(help="the file; model.json in the folder of the store where it is left out")] = None,
    start: Annotated[str | None, typer.Option(help="RFC 3339; the store's first time where it is left out")] = None,
    end: Annotated[str | None, typer.Option(help="RFC 3339; the store's last time where it is left out")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the summary as one JSON object")] = False,
) -> None:
    """Learns from the fleet's own healthy history what is usual, so that odd parts are found that no rule names."""
    from app.train_command import train_command

    done = train_command(config, data_dir, out, start, end, lambda line: typer.echo(line, err=True))
    typer.echo(json.dumps(done) if as_json else f"{done['model']}: {done['windows']} windows from {done['start']} to {done['end']}, "
               f"hash {done['hash'][:12]}")


@app.command("import")
def import_(
    files: Annotated[list[str] | None, typer.Argument(help="`promtool tsdb dump` or `sacct` files (- = stdin), recordings, logs, their archives")] = None,
    url: Annotated[str | None, typer.Option("--from", help="address of a Prometheus, VictoriaMetrics, Thanos, Mimir or Loki")] = None,
    out: Annotated[str, typer.Option(help="the folder for the store")] = "greylag-history",
    start: Annotated[str | None, typer.Option(help="a time, or a time ago such as 30d (the default)")] = None,
    end: Annotated[str | None, typer.Option(help="a time, or a time ago; now where it is left out")] = None,
    match: Annotated[list[str] | None, typer.Option(help="a selector of series, or of Loki's streams; may be repeated")] = None,
    step: Annotated[str, typer.Option(help="the grid of query_range")] = "15s",
    format_: Annotated[str, typer.Option("--format", help="auto, export, remote_read, query_range, loki, tsdb-dump, logs or sacct")] = "auto",
    inventory: Annotated[str | None, typer.Option(help="inventory.yaml, kept beside the store")] = None,
    token_file: Annotated[str | None, typer.Option(help="file with a bearer token")] = None,
    user: Annotated[str | None, typer.Option(help="user of basic authentication")] = None,
    password_file: Annotated[str | None, typer.Option(help="file with the user's password")] = None,
    ca_file: Annotated[str | None, typer.Option(help="PEM file of the authority to trust")] = None,
    header: Annotated[list[str] | None, typer.Option(help="a further header, such as `X-Scope-OrgID: team`")] = None,
    log_names: Annotated[list[str] | None, typer.Option(help="a pattern over logs' paths (Loki: labels) with (?P<node>...) or (?P<job>...)")] = None,
    zone: Annotated[str | None, typer.Option(help="zone of dates in logs and sacct that name none; UTC where it is left out")] = None,
    jobs_by: Annotated[str, typer.Option(help="sacct: jobs are called by their id or name")] = "id",
    as_json: Annotated[bool, typer.Option("--json", help="the summary as one JSON object")] = False,
) -> None:
    """Reads the past of a Prometheus, VictoriaMetrics or Loki, of logs and of Slurm into a store that `replay` reads."""
    from app.import_command import ImportOptions, import_command

    options = ImportOptions(out, url, tuple(files or ()), start, end, tuple(match or ()), step, format_, inventory, token_file,
                            user, password_file, ca_file, tuple(header or ()), 0, tuple(log_names or ()), zone, jobs_by)
    raise typer.Exit(import_command(options, as_json))


@app.command()
def bench(
    what: Annotated[str, typer.Argument(help="parse, ingest, store, detect, fleet, query or incidents")],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a row")] = False,
    matrix: Annotated[bool, typer.Option("--matrix", help="ingest: 50 to 400 targets, workers, shapes, peers")] = False,
    scale: Annotated[bool, typer.Option("--scale", help="ingest: 1,000 targets of 5,000 series, and a restart")] = False,
    nodes: Annotated[int, typer.Option("--nodes", min=0, help="detect: this fleet, a multiple of 50, beside the smallest")] = 0,
    day: Annotated[bool, typer.Option("--day", help="fleet: a whole day of 1,000 nodes and the memory it takes")] = False,
) -> None:
    """Measures a part, in ratios against a named peer in the same run."""
    from app.bench import BENCHES

    if what not in BENCHES:
        raise BadInput("bench", "", what, f"allowed are: {', '.join(BENCHES)}")
    if (matrix or scale) and what != "ingest":
        raise BadInput("bench", "--matrix" if matrix else "--scale", what, "allowed with: ingest")
    if nodes and what != "detect":
        raise BadInput("bench", "--nodes", str(nodes), "allowed with: detect")
    if day and what != "fleet":
        raise BadInput("bench", "--day", what, "allowed with: fleet")
    arguments = {"ingest": (matrix, scale), "detect": (nodes,), "fleet": (day,)}.get(what, ())
    for row in BENCHES[what](*arguments):
        typer.echo(json.dumps({"bench": what, **row}) if as_json else "  ".join(f"{k}: {v}" for k, v in row.items()))


@app.command()
def why(
    name: Annotated[str, typer.Argument(metavar="JOB|NODE", help="a job or a node that Greylag knows")],
    url: OwnerUrl = DEFAULT_URL,
    token_file: TokenFile = None,
    store: Annotated[Path | None, typer.Option(help="asks the store that `replay --keep` left, in place of a running Greylag")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the lines as one JSON object")] = False,
) -> None:
    """Ten lines for whoever is on call: cluster or code, the culprit, the evidence, what changed, the next step."""
    from app import why as answers

    lines = answers.why(name, url, store)
    typer.echo(json.dumps(answers.as_json(lines), ensure_ascii=False) if as_json else "\n".join(lines))


@app.command()
def doctor(
    url: OwnerUrl = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="the whole examination as one JSON object")] = False,
) -> None:
    """Which faults can be judged on this site today, what would add each other one, and what that costs in series."""
    from app import doctor as examination
    from app.client import Client

    try:
        found = Client(url).get("/api/greylag/v1/doctor")
    except Unavailable as error:
        raise Unavailable(f"{error}. The doctor asks a running Greylag what it sees") from None
    typer.echo(json.dumps(found) if as_json else "\n".join(examination.lines(found)))


@app.command()
def evaluate(
    suite: Annotated[str | None, typer.Option(
        help="quick (a minute), standard (18 minutes), full (a day) or recorded (cases alone); quick, and recorded where --cases is given")] = None,
    first_seed: Annotated[int | None, typer.Option(min=0, help="below 10000: for tuning, no scorecard is written")] = None,
    out: Annotated[str | None, typer.Option(help="the scorecard's file (JSON)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="goes on from FILE.rows.jsonl")] = False,
    only: Annotated[list[str] | None, typer.Option(help="only scenarios with this fault or plug-in; may be repeated")] = None,
    scenario: Annotated[str | None, typer.Option(help="one scenario of the suite by its number, told in full")] = None,
    tell_all: Annotated[bool, typer.Option("--details", help="each fault and incident of each scenario too")] = False,
    processes: Annotated[int, typer.Option(min=1, help="scenarios at a time")] = 2,
    times: Annotated[int, typer.Option(help="so many plans of the suite, from seeds of their own, in one scorecard")] = 1,
    cases: Annotated[list[str] | None, typer.Option(
        help="recorded cases, or stores and recordings with their truth, beside those that are shipped; may be repeated")] = None,
    truth: Annotated[str | None, typer.Option(help="what is true of the only --cases: labels (.yaml, .json) or NAME.truth.jsonl")] = None,
    floor: Annotated[float | None, typer.Option(min=0, max=1, help="exit 1 where mean recall or precision is below, or a case is not right")] = None,
    goodput: Annotated[bool, typer.Option("--goodput", help="months of cluster life instead: what finding and repairing is worth")] = False,
    scorecard: Annotated[str | None, typer.Option(help="of --goodput: what `evaluate --out` wrote; chances are drawn from it")] = None,
    policy: Annotated[str | None, typer.Option(help="of --goodput: the policy; the shipped act.yaml where it is left out")] = None,
    nodes: Annotated[list[int] | None, typer.Option(help="of --goodput: sizes of the fleet, 64, 512 and 2048 where it is left out")] = None,
    days: Annotated[float, typer.Option(help="of --goodput: length of a month")] = 30.0,
    seeds: Annotated[int, typer.Option(help="of --goodput: months of each size")] = 1,
    whole: Annotated[float, typer.Option(help="of --goodput: so many node-days through the whole path instead of months; --out keeps each as it ends")] = 0.0,
) -> None:
    """Random faults on the bundled fleet in virtual time, and a scorecard of what was found; progress on stderr."""
    from app.evaluate.command import EvaluateOptions, tell_stderr
    from app.evaluate.command import evaluate as run_suite

    if goodput:
        from app.goodput.command import SIZES, GoodputOptions, evaluate_goodput

        months = GoodputOptions(scorecard, policy, tuple(nodes or SIZES), days, seeds, first_seed, out, whole)
        raise typer.Exit(evaluate_goodput(months, tell_stderr, typer.echo))
    for name in only or ():
        _known_plant(name)
    options = EvaluateOptions(suite or ("recorded" if cases else "quick"), first_seed, out, resume, tuple(only or ()), scenario, tell_all,
                              processes, times, tuple(cases or ()), truth, floor)
    raise typer.Exit(run_suite(options, tell_stderr, typer.echo))


def _known_plant(name: str) -> None:
    """Raises BadInput for a name that is neither a fault nor a plug-in that plants one."""
    from fleet.build import all_plugins

    known = {word for key, plugin in all_plugins().items() for word in (key, plugin.fault) if word is not None}
    if name not in known:
        raise BadInput("--only", "", name, f"a fault, or a plug-in of fleet/faults, is needed{nearest(name, known)}")


@incidents_app.command("list")
def incidents_list(url: OwnerUrl = DEFAULT_URL, token_file: TokenFile = None, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Incidents, the newest first."""
    from app.client import Client
    from app.story import part

    for one in Client(url).get("/api/greylag/v1/incidents", limit=100)["items"]:
        typer.echo(json.dumps(one) if as_json else
                   f"{one['id']}  {one['opened_at'][:19]}  {one['state']:<10} {one['fault']} on {part(one['culprit'])}, "
                   f"{one['lost_gpu_hours']:.2f} GPU-hours lost")


@incidents_app.command("show")
def incidents_show(incident: str, url: OwnerUrl = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """One incident with its evidence and actions."""
    from app.client import Client
    from app.story import case_lines, shown_lines
    from app.worth_lines import worth_lines

    answer = Client(url).get(f"/api/greylag/v1/incidents/{incident}")
    for line in (*shown_lines(answer), *worth_lines(answer.get("worth")), *case_lines(answer)):
        typer.echo(line)


@incidents_app.command("scores")
def incidents_scores(url: OwnerUrl = DEFAULT_URL, token_file: TokenFile = None, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """How often diagnoses confirmed or refuted what detectors said, by fault."""
    from app.client import Client
    from app.worth_lines import score_lines

    items = Client(url).get("/api/greylag/v1/diagnoses")["items"]
    for line in map(json.dumps, items) if as_json else score_lines(items) or ["no diagnosis yet"]:
        typer.echo(line)


@incidents_app.command("undelivered")
def incidents_undelivered(url: OwnerUrl = DEFAULT_URL, token_file: TokenFile = None, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Messages that no receiver has taken: those that wait, and dead letters; and the pages that each weekly budget leaves."""
    from app.asking import listed
    from app.client import Client

    answer = Client(url).get("/api/greylag/v1/outbox", limit=1000)
    typer.echo(json.dumps(answer) if as_json else "\n".join(listed(answer)))


@incidents_app.command("resend")
def incidents_resend(message: Annotated[str, typer.Argument(help="the id of a dead letter, or `all`")], url: OwnerUrl = DEFAULT_URL,
                     token_file: TokenFile = None) -> None:
    """A message that was given up is tried again."""
    from app.asking import resend

    typer.echo(resend(url, message))


@incidents_app.command("losses")
def incidents_losses(url: OwnerUrl = DEFAULT_URL, token_file: TokenFile = None, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """GPU-hours lost by job, the worst on top: open incidents and those of the last day."""
    from app.client import Client

    for one in Client(url).get("/api/greylag/v1/losses")["items"]:
        names = ", ".join(f"{row['fault']} {row['lost_gpu_hours']:.2f} ({row['state']})" for row in one["incidents"][:4])
        typer.echo(json.dumps(one) if as_json else f"{one['lost_gpu_hours']:>9.2f}  {one['job'] or 'no job'}  {names}")


StorePath = Annotated[Path | None, typer.Option(help="the store of a stopped Greylag, in place of --url")]


@incidents_app.command("ledger")
def incidents_ledger(
    incident: Annotated[str | None, typer.Argument(help="one incident; all where it is left out")] = None,
    url: OwnerUrl = DEFAULT_URL,
    token_file: TokenFile = None,
    store: StorePath = None,
    since: Annotated[str | None, typer.Option(help="first time, RFC 3339")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="a table")] = False,
    parquet: Annotated[Path | None, typer.Option(help="the table as a Parquet file")] = None,
    seal: Annotated[bool, typer.Option("--seal", help="the hash over the whole ledger; with --store also whether it is whole")] = False,
) -> None:
    """The audit, the oldest first: who did what, why, on which evidence, and what became of it."""
    from app import ledger_command as command

    if seal:
        found = command.seal(url, store)
        typer.echo(json.dumps(found))
        raise typer.Exit(1 if found.get("broken") else 0)
    rows = command.ledger(url, store, incident, since)
    if parquet is not None:
        command.write_parquet(rows, parquet)
        typer.echo(json.dumps({"file": str(parquet), "actions": len(rows)}))
    elif as_csv:
        typer.echo(command.as_csv(rows), nl=False)
    else:
        for row in rows:
            typer.echo(json.dumps(row, ensure_ascii=False) if as_json else command.line(row))
        if not rows:
            typer.echo(f"no action {f'of {incident} ' if incident else ''}is in the ledger", err=True)


@incidents_app.command("cures")
def incidents_cures(
    fault: Annotated[str | None, typer.Argument(help="one fault; all where it is left out")] = None,
    url: OwnerUrl = DEFAULT_URL,
    token_file: TokenFile = None,
    store: StorePath = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """What cured each fault, beside how often it goes away when nobody acts."""
    from app import cures
    from app import ledger_command as command

    known = list(faults())
    if fault is not None and fault not in known:
        raise BadInput("FAULT", "", fault, f"a fault of Greylag's is needed{nearest(fault, known)}")
    answer = command.cured(url, store, fault)
    typer.echo(json.dumps(answer) if as_json else "\n".join(cures.lines(answer)))


Note = Annotated[str, typer.Option(help="a few words for the others")]


@incidents_app.command("ack")
def incidents_ack(incident: str, url: OwnerUrl = DEFAULT_URL, token_file: TokenFile = None, note: Note = "") -> None:
    """You look after it; it stays open."""
    from app.client import Client

    Client(url).post(f"/api/greylag/v1/incidents/{incident}/acknowledge", {"note": note})
    typer.echo(f"{incident} is acknowledged")


@incidents_app.command("silence")
def incidents_silence(incident: str, seconds: Annotated[float, typer.Option(help="0 ends a silence")] = 14_400,
                      url: OwnerUrl = DEFAULT_URL, token_file: TokenFile = None, note: Note = "") -> None:
    """No messages when this fault comes back on this part; its end is told."""
    from app.client import Client

    answer = Client(url).post(f"/api/greylag/v1/incidents/{incident}/silence", {"seconds": seconds, "note": note})
    typer.echo(f"{incident} is silenced until {answer['mark']['until']}")


@incidents_app.command("wrong")
def incidents_wrong(incident: str, url: OwnerUrl = DEFAULT_URL, token_file: TokenFile = None, note: Note = "") -> None:
    """It is no fault: it is closed at the next tick, and the detector is told so."""
    from app.client import Client

    Client(url).post(f"/api/greylag/v1/incidents/{incident}/wrong", {"note": note})
    typer.echo(f"{incident} is marked as wrong")


@incidents_app.command("approve")
def incidents_approve(incident: Annotated[str, typer.Argument(help="an incident, or the id of a proposed action")],
                      url: OwnerUrl = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """What Greylag proposed for it may be carried out."""
    from app.client import Client

    Client(url).post(f"/api/greylag/v1/actions/{incident}/approve")
    typer.echo(f"{incident} is approved")


@incidents_app.command("reject")
def incidents_reject(incident: Annotated[str, typer.Argument(help="an incident, or the id of a proposed action")],
                     url: OwnerUrl = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """What Greylag proposed for it is not carried out; the incident is then a person's."""
    from app.client import Client

    Client(url).post(f"/api/greylag/v1/actions/{incident}/reject")
    typer.echo(f"{incident} is rejected")


@fleet_app.command("serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def fleet_serve(context: typer.Context) -> None:
    """Serves an emulated fleet: its exporters, logs and control API (`-- --help` lists the options)."""
    from fleet.server import main as serve_main

    raise typer.Exit(serve_main(context.args))


FleetUrl = Annotated[str | None, typer.Option("--url", help="address of the fleet; else GREYLAG_FLEET_URL")]


@fleet_app.command("inject")
def fleet_inject(
    fault: Annotated[str, typer.Argument(help="a fault or a look-alike by name")],
    target: Annotated[list[str] | None, typer.Option(help="NODE, NODE/DEVICE, job=NAME, rank=N, or a switch, rack, ... by name")] = None,
    severity: Annotated[float | None, typer.Option(help="by how much the job's step is to be longer: 0.1 = 10 %")] = None,
    onset: Annotated[str | None, typer.Option(help="step, ramp or intermittent")] = None,
    seed: Annotated[int | None, typer.Option(help="draws what is not given")] = None,
    lasts: Annotated[str | None, typer.Option("--for", help="goes away by itself after so long (20m), if nothing cures it before")] = None,
    url: FleetUrl = None,
) -> None:
    """Plants a fault in a running fleet; prints its truth. The lab's token comes from GREYLAG_LAB_TOKEN."""
    from app.fleet_command import FleetClient, inject, write_lines

    write_lines(inject(FleetClient(url), fault, target or [], severity, onset, seed, lasts))


@fleet_app.command("status")
def fleet_status(url: FleetUrl = None, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Nodes and jobs of a running fleet; with the lab's token also faults and goodput."""
    from app.fleet_command import FleetClient, status, status_lines

    state = status(FleetClient(url))
    for line in [json.dumps(state, separators=(",", ":"))] if as_json else status_lines(state):
        typer.echo(line)


@fleet_app.command("run")
def fleet_run(
    scenario: Annotated[Path, typer.Argument(help="a scenario file")],
    seed: Annotated[int | None, typer.Option(min=0, help="in place of the scenario's own")] = None,
    truth_only: Annotated[bool, typer.Option("--truth-only", help="what will be true, without running")] = False,
    events: Annotated[bool, typer.Option("--events", help="event-stepped, without telemetry: for runs of weeks")] = False,
) -> None:
    """Runs a scenario in virtual time to its end; truth and goodput as JSON lines, progress on stderr."""
    from app.fleet_command import run, tell_stderr, write_lines

    write_lines(run(scenario, tell_stderr, seed, truth_only, events))


@store_app.command("stats")
def store_stats(path: Annotated[Path, typer.Argument(help="greylag.duckdb of a stopped Greylag")]) -> None:
    """Rows, segments and bytes of a store."""
    from app.store_commands import stats

    for key, value in stats(path).items():
        typer.echo(f"{key}: {value}")


@store_app.command("compact")
def store_compact(path: Annotated[Path, typer.Argument(help="greylag.duckdb of a stopped Greylag")]) -> None:
    """Seals hours that are over and puts small files together."""
    from app.store_commands import compact

    typer.echo(json.dumps(compact(path)))


@store_app.command("export")
def store_export(
    path: Annotated[Path, typer.Argument(help="greylag.duckdb of a stopped Greylag")],
    out: Annotated[Path, typer.Option(help="the Parquet file to write")],
    match: Annotated[list[str] | None, typer.Option(help="a series selector; absent = all series")] = None,
    start: Annotated[str | None, typer.Option(help="first time, RFC 3339")] = None,
    end: Annotated[str | None, typer.Option(help="last time, RFC 3339")] = None,
) -> None:
    """Writes samples as a tidy recording, which `greylag replay` reads."""
    from app.store_commands import export_to

    typer.echo(json.dumps(export_to(path, out, match or [], start, end)))


@store_app.command("import")
def store_import(
    path: Annotated[Path, typer.Argument(help="greylag.duckdb of a stopped Greylag, or a place for a new one")],
    files: Annotated[list[str], typer.Argument(help="recordings, as `greylag replay` reads them")],
    inventory: Annotated[str | None, typer.Option(help="inventory.yaml")] = None,
) -> None:
    """Reads recordings into a store; nothing is judged."""
    from app.store_commands import import_from

    typer.echo(json.dumps(import_from(path, files, inventory, lambda line: typer.echo(line, err=True))))


@store_app.command("verify")
def store_verify(path: Annotated[Path, typer.Argument(help="greylag.duckdb of a stopped Greylag")]) -> None:
    """Files, tables and catalogue against each other; one line for each problem, exit 1 where there is any."""
    from app.store_commands import problems

    found = problems(path)
    for line in found:
        typer.echo(line)
    raise typer.Exit(1 if found else 0)


@dashboards_app.command("build")
def dashboards_build(
    out: Annotated[Path, typer.Option(help="folder to write into")] = Path("grafana"),
    check_only: Annotated[bool, typer.Option("--check", help="exit 1 when the folder is stale; nothing is written")] = False,
) -> None:
    """Writes Grafana dashboards, provisioning files and a compose file."""
    from dashboards.build import stale, write_all

    if check_only:
        old = stale(out)
        for name in old:
            typer.echo(f"stale: {name}")
        raise typer.Exit(1 if old else 0)
    for path in write_all(out):
        typer.echo(str(path))


def main() -> None:
    """Runs the command and turns errors into one sentence and an exit status."""
    try:
        app(standalone_mode=True)
    except BadInput as error:
        print(f"greylag: {error}", file=sys.stderr)
        sys.exit(2)
    except GreylagError as error:
        print(f"greylag: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # a folder that may not be written, a full disk: the system's own words, with the file
        if error.filename is None:
            raise
        print(f"greylag: {os.fsdecode(error.filename)}: {error.strerror}", file=sys.stderr)
        sys.exit(2 if isinstance(error, MISTAKES) else 1)


if __name__ == "__main__":
    main()
