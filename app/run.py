"""`greylag run`, `check` and `store stats`."""

from __future__ import annotations

import errno
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app import supervise
from app.processes import bind
from core.clock import monotonic_seconds
from core.config import GreylagConfig, read_config
from core.errors import BadInput, ConfigError, Unavailable
from core.signing import read_secret
from core.yamlfile import Node

ROLES = ("all", "owner", "collector")
SECRETS = ("secret_file", "url_file", "token_file", "routing_key_file")
ADDRESS_WAIT_SECONDS = 12.0  # as long as an owner waits for its store: one that was told to end has ten
WORKER_NAME = re.compile(r"collector-(0|[1-9][0-9]{0,2})")


def run_role(path: Path, role: str, worker: str = "collector-0") -> int:
    """Runs the role until SIGTERM or SIGINT. Raises BadInput."""
    if role not in ROLES:
        raise BadInput("--role", "", role, f"allowed are: {', '.join(ROLES)}")
    if WORKER_NAME.fullmatch(worker) is None:
        raise BadInput("--worker", "", worker, "collector-0 to collector-999 is needed")
    config = read_config(path)
    if role != "all":
        from app.supervisor import end_with_parent

        end_with_parent()
    if role == "owner":
        from app.owner import run_owner

        return run_owner(config)
    if role == "collector":
        from app.collector import run_collector

        return run_collector(config, worker)
    check_config(path)
    await_addresses(config)
    return supervise.become(path)


def await_addresses(config: GreylagConfig) -> None:
    """Sees before anything starts that this machine can listen where the configuration says, and waits a little where a Greylag that
    ends still does. Raises ConfigError with the key."""
    deadline, told = monotonic_seconds() + ADDRESS_WAIT_SECONDS, False
    for key in ("listen", "push_listen", "syslog_listen"):
        given = getattr(config, key)
        host, _, port = (given or "").rpartition(":")
        while given is not None and ":" not in host and (problem := _cannot_listen(host, int(port))) is not None:
            if problem.errno != errno.EADDRINUSE or monotonic_seconds() > deadline:
                raise ConfigError(config.file, key, given, f"an address at which nothing listens yet is needed: {problem.strerror}")
            if not told:
                print(f"greylag: something listens at {given}; waiting up to {ADDRESS_WAIT_SECONDS:g} s for it to end", file=sys.stderr, flush=True)
            told = True
            time.sleep(0.2)


def _cannot_listen(host: str, port: int) -> OSError | None:
    try:
        bind(host, port).close()
    except OSError as error:
        return error
    return None


def check_config(path: Path) -> list[str]:
    """Reads everything that the configuration names. Raises ConfigError; else says what was found."""
    from app import wiring  # a collector needs none of what it brings: 30 MB
    from app.verdict import counted
    from collectors.log_rules import read_rules
    from collectors.scrape_config import read_scrape_configs
    from pipeline.store.samples import retention_ms

    config: GreylagConfig = read_config(path)
    jobs = read_scrape_configs(config)
    for log in config.logs:
        if log.rules is not None:
            read_rules(config.resolve(log.rules))
    plugins, _ = wiring.detectors(config.detectors, config.file)
    check_secrets(config)
    routes, _ = wiring.notifiers(config)
    hands = wiring.hands(config)
    for key in ("raw", "rollup_1m", "rollup_1h"):
        retention_ms(getattr(config.retention, key), config.file, f"retention.{key}")
    lines = [
        f"{path}: {counted(len(jobs), 'scrape job')}, {counted(len(config.logs), 'log')}, {counted(len(plugins), 'detector')},"
        f" {counted(len(routes), 'notifier')}",
        f"policy mode {hands.policy.mode}, backend {hands.backend}",
    ]
    if config.inventory.file:
        lines.append(f"inventory: {len(wiring.inventory_reader(config)().nodes)} nodes")
    data_dir = Path(config.resolve(config.data_dir))
    if data_dir.exists() and not data_dir.is_dir():
        raise ConfigError(config.file, "data_dir", config.data_dir, "a folder, or a path where nothing is yet, is needed")
    if not (jobs or config.logs or config.push_listen or config.syslog_listen):
        lines.append("nothing will be seen: there are no scrape_configs, logs, push_listen or syslog_listen")
    return lines


def check_secrets(config: GreylagConfig) -> None:
    """Raises ConfigError for a secret's file that cannot be used: at the start, not at the first page at night."""
    entries = [(f"notify[{i}]", entry) for i, entry in enumerate(config.notify)] + [("backend", config.backend)]
    entries.append(("heartbeat", {"url_file": config.heartbeat.url_file}))
    for path, entry in entries:
        for key in SECRETS if isinstance(entry, Mapping) else ():
            if isinstance(entry.get(key), str):
                try:
                    read_secret(str(config.resolve(entry[key])))
                except Unavailable as error:
                    where = entry.where(key) if isinstance(entry, Node) else config.file
                    raise ConfigError(where, f"{path}.{key}", entry[key], f"a readable file is needed: {error}") from None


def stats(path: Path) -> dict[str, Any]:
    """What a store holds. Raises BadInput where there is none."""
    from pipeline.store.duck import DuckStore

    if not path.exists():
        raise BadInput(str(path), "", "no such file", "the path of a greylag.duckdb is needed")
    store = DuckStore(path)
    try:
        return dict(store.stats())
    finally:
        store.close()
