"""The `greylag policy` commands: lint, translate, plan, simulate. Their bodies are in `app.policy_*` and `remediation`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from core.errors import BadInput

policy_app = typer.Typer(no_args_is_help=True, help="Policies: what Greylag may do.")

ConfigFile = Annotated[Path | None, typer.Option("-c", "--config", help="greylag.yaml")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object")]


@policy_app.command("lint")
def policy_lint(
    path: Annotated[Path | None, typer.Argument(help="a policy; the configuration's, or the shipped observe.yaml, where it is left out")] = None,
    backend: Annotated[list[str] | None, typer.Option(help="a backend that would act, or `all`; may be repeated")] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Dead ends, unreachable rules, missing recovery, no bounds, kinds that the backend lacks; exit 1 when there is any."""
    from app.policy_lint import lint_command

    raise typer.Exit(lint_command(path, backend or [], config, as_json, typer.echo))


@policy_app.command("translate")
def policy_translate(
    path: Annotated[Path, typer.Argument(help="a HyperPodPyTorchJob's manifest, or its runPolicy")],
    out: Annotated[Path | None, typer.Option(help="the policy's file; stdout where it is left out")] = None,
    mode: Annotated[str, typer.Option(help="observe, propose or act")] = "observe",
) -> None:
    """A HyperPod job's own recovery policy as a policy of Greylag; what has no counterpart is said in a line each."""
    from app.policy_lint import translate_command

    translate_command(path, out, mode, typer.echo, tell)


@policy_app.command("plan")
def policy_plan(
    url: Annotated[str | None, typer.Option("--url", help="address of the running Greylag")] = None,
    config: ConfigFile = None,
    policy: Annotated[Path | None, typer.Option(help="a policy that is not in force yet, in place of the running one's")] = None,
    as_json: AsJson = False,
) -> None:
    """What would happen to each open incident now, and why; nothing is changed by asking."""
    from app.policy_plan import plan_command

    plan_command(url, config, policy, as_json, typer.echo)


@policy_app.command("simulate")
def policy_simulate(
    recording: Annotated[list[str], typer.Argument(help="a recording as `greylag replay` reads it, or one fleet scenario (YAML)")],
    policy: Annotated[str | None, typer.Option(help="the policy; the shipped act.yaml where it is left out")] = None,
    against: Annotated[str | None, typer.Option(help="a second policy: where they differ is shown incident by incident")] = None,
    inventory: Annotated[str | None, typer.Option(help="inventory.yaml")] = None,
    truth: Annotated[str | None, typer.Option(help="NAME.truth.jsonl, or labels (.yaml, .json), where they are not beside the recording")] = None,
    log_rules: Annotated[str | None, typer.Option(help="rules over trainers' logs, as HyperPod has them")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="of a scenario, in place of its own")] = None,
    as_json: AsJson = False,
) -> None:
    """What a policy would have done: actions, how many on healthy nodes, GPU-hours saved."""
    from app.policy_simulate import SimulateOptions, is_scenario, simulate_command

    if seed is not None and not any(map(is_scenario, recording)):
        raise BadInput("--seed", "", seed, "it goes with a fleet scenario only")
    options = SimulateOptions(tuple(recording), policy, against, inventory, truth, log_rules, seed)
    raise typer.Exit(simulate_command(options, as_json, typer.echo, tell))


def tell(line: str) -> None:
    """Progress and notes, for people."""
    print(line, file=sys.stderr, flush=True)
