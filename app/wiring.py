"""Builds the parts from the configuration. The only place that knows which implementation stands behind which protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import httpx

from app.brain import Brain
from core.config import GreylagConfig
from core.errors import ConfigError, nearest
from core.inventory import Inventory, inventory_from, read_inventory
from core.plugins import load_plugins
from core.protocols import (
    BackendPlugin,
    ControlDoor,
    DetectorPlugin,
    Notifier,
    NotifierPlugin,
    SourcePlugin,
    WorldView,
)
from core.telemetry import Telemetry
from core.xids import XidPolicy
from core.yamlfile import Node, build
from pipeline.herald import NotifyRoute, RouteRules
from remediation.engine import Engine
from remediation.policy import Policy, read_policy

FREEZE_FILE = "FREEZE"


def sources() -> dict[str, SourcePlugin]:
    """All exporters and logs that Greylag reads."""
    return load_plugins("collectors.sources")


def detectors(config: Mapping[str, Any], file: str, xids: XidPolicy | None = None) -> tuple[dict[str, DetectorPlugin], dict[str, Any]]:
    """The detectors and their parameters. xids: the site's choice, which those that read XIDs share. Raises ConfigError for an
    unknown detector or parameter."""
    plugins: dict[str, DetectorPlugin] = load_plugins("detectors")
    for name in config:
        if name not in plugins:
            where = config.where(name) if isinstance(config, Node) else file
            raise ConfigError(where, f"detectors.{name}", "an unknown detector",
                              f"there are: {', '.join(plugins)}{nearest(name, plugins)}")
        _no_choice_of_its_own(config[name], name, file)
    params: dict[str, Any] = {name: build(p.params, config.get(name) or {}, file, f"detectors.{name}") for name, p in plugins.items()}
    if xids is not None:
        params = {name: replace(p, xids=xids) if hasattr(p, "xids") else p for name, p in params.items()}
    return plugins, params


def _no_choice_of_its_own(entry: Any, name: str, file: str) -> None:
    """Raises ConfigError where a detector is given its own list of fatal XIDs: one code would be fatal to one and not to another."""
    for key in ("xids", "fatal_by"):
        if isinstance(entry, Mapping) and key in entry:
            where = entry.where(key) if isinstance(entry, Node) else file
            raise ConfigError(where, f"detectors.{name}.{key}", entry[key], "it is set once for all detectors: xids: {policy: eks}, at the top")


def plugin_entry(plugins: Mapping[str, Any], entry: Any, file: str, path: str) -> tuple[Any, Any]:
    """The plug-in that `entry` (a mapping with `name`) asks for, and its parameters. Raises ConfigError."""
    where = entry.where() if isinstance(entry, Node) else file
    name = entry.get("name") if isinstance(entry, Mapping) else None
    if name not in plugins:
        raise ConfigError(where, f"{path}.name", name, f"allowed are: {', '.join(plugins)}")
    plugin = plugins[str(name)]
    own: Mapping[str, Any] = {k: v for k, v in entry.items() if k != "name"}
    own = entry.holding(own) if isinstance(entry, Node) else own
    return plugin, build(plugin.params, own, where.rsplit(":", 1)[0], path)


def built(plugin: NotifierPlugin | BackendPlugin, params: Any, entry: Any, file: str, path: str) -> Any:
    """What the plug-in builds. A plug-in knows which of its keys is wrong, and here is known where it stands: raises ConfigError
    with file and line."""
    try:
        return plugin.build(params)
    except ConfigError as error:
        if error.where not in ("notify", "backend"):
            raise
        where = entry.where(error.key.partition(".")[0]) if isinstance(entry, Node) else file
        raise ConfigError(where, f"{path}.{error.key}" if error.key else path, error.given, error.allowed) from None


@dataclass(frozen=True, slots=True)
class Hands:
    """The control door, the view of the world and the engine that uses them."""

    door: ControlDoor
    view: WorldView
    engine: Engine
    policy: Policy
    backend: str


def default_policy() -> Path:
    """The shipped policy that only watches."""
    from importlib.resources import files

    return Path(str(files("sample_data").joinpath("policies", "observe.yaml")))


def hands(config: GreylagConfig, labels_of: Callable[[str], Mapping[str, str]] | None = None) -> Hands:
    """Backend and engine as the configuration asks. Without a policy, the shipped one that only watches.

    labels_of: a node's inventory labels, for rules that match on them. With the backend `observe` every policy observes:
    there is nothing that could act.
    """
    backends: dict[str, BackendPlugin] = load_plugins("remediation.backends")
    plugin, params = plugin_entry(backends, config.backend, config.file, "backend")
    door, view = built(plugin, placed(params, config), config.backend, config.file, "backend")
    path = config.resolve(config.policy) if config.policy else default_policy()
    policy = read_policy(path)
    if plugin.name == "observe":
        policy = replace(policy, mode="observe")
    freeze = Path(config.resolve(config.data_dir)) / FREEZE_FILE
    engine = Engine(policy, frozenset(plugin.kinds), view, freeze_file_exists=freeze.exists, labels_of=labels_of)
    return Hands(door, view, engine, policy, plugin.name)


def links(config: GreylagConfig) -> dict[str, str]:
    """The addresses that messages and answers lead to; an empty text where there is none."""
    return {"external_url": config.external_url or f"http://{config.listen}", "explorer_url": config.explorer_url or "",
            "runbook_url": config.runbook_url or ""}


def scrape_jobs(config: GreylagConfig) -> dict[str, Mapping[str, Any]]:
    """Scrape configurations that stand in the configuration itself, by job name, with the global timing where they have none."""
    timing = {key: config.global_defaults[key] for key in ("scrape_interval", "scrape_timeout") if key in config.global_defaults}
    return {str(one["job_name"]): {**timing, **one} for one in config.scrape_configs if isinstance(one, Mapping) and "job_name" in one}


def notifiers(config: GreylagConfig) -> tuple[list[NotifyRoute], dict[str, Notifier]]:
    """The configured notifiers by outbox name, with what each takes and the links that its messages carry."""
    plugins: dict[str, NotifierPlugin] = load_plugins("pipeline.notify")
    told, common = links(config), {"match", "storm", "pages_per_week", "id"}
    routes: list[NotifyRoute] = []
    doors: dict[str, Notifier] = {}
    for i, entry in enumerate(config.notify):
        shared = {key: value for key, value in entry.items() if key in common} if isinstance(entry, Mapping) else {}
        own = {key: value for key, value in entry.items() if key not in common} if isinstance(entry, Mapping) else entry
        held = isinstance(entry, Node)
        plugin, params = plugin_entry(plugins, entry.holding(own) if held else own, config.file, f"notify[{i}]")
        rules = build(RouteRules, entry.holding(shared) if held else shared, config.file, f"notify[{i}]")
        name = rules.id or f"{plugin.name}/{i}"
        if name in doors:
            raise ConfigError(entry.where("id") if held else config.file, f"notify[{i}].id", name, "another notifier has this id")
        routes.append(NotifyRoute(name, plugin, told, rules))
        doors[name] = built(plugin, placed(params, config), entry, config.file, f"notify[{i}]")
    return routes, doors


def placed(params: Any, config: GreylagConfig) -> Any:
    """The parameters with each relative `*_file` made relative to the configuration file, as all its paths are."""
    files = {f.name: str(config.resolve(value)) for f in fields(params)
             if f.name.endswith("_file") and isinstance(value := getattr(params, f.name), str)}
    return replace(params, **files) if files else params


class FleetInventory:
    """The inventory behind a fleet's control door; parsed anew only when the answer changed."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/control/v1/inventory"
        self._http = httpx.Client(timeout=5.0)
        self._text = b""
        self._known = Inventory()

    def __call__(self) -> Inventory:
        """The inventory as it is now. Raises httpx.HTTPError or ConfigError."""
        answer = self._http.get(self._url).raise_for_status()
        if answer.content != self._text:
            self._known = inventory_from(answer.json(), self._url)
            self._text = answer.content
        return self._known


def inventory_reader(config: GreylagConfig) -> Callable[[], Inventory]:
    """A function that gives the inventory as it is now: from the file, the fleet's door, Slurm, Kubernetes, or none."""
    if config.inventory.file:
        path = config.resolve(config.inventory.file)
        return lambda: read_inventory(path)
    if config.inventory.fleet:
        return FleetInventory(config.inventory.fleet)
    if config.inventory.slurm:
        from app.slurm_inventory import slurm_inventory

        return slurm_inventory(config)
    if config.inventory.kubernetes is not None:
        from app.kubernetes_inventory import kubernetes_inventory

        return kubernetes_inventory(config.inventory.kubernetes, config)
    return Inventory


def brain(config: GreylagConfig, inventory: Inventory, engine: Engine | None, telemetry: Telemetry,
          routes: list[NotifyRoute], labels_of: Callable[[str], Mapping[str, str]] | None = None) -> Brain:
    """The brain with all detectors."""
    plugins, params = detectors(config.detectors, config.file, config.xids)
    return Brain(plugins, params, inventory, engine, telemetry, routes, labels_of)
