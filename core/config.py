"""`greylag.yaml` as frozen dataclasses. Sections that belong to one room are kept as data and read by that room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import ConfigError
from core.yamlfile import build, read_yaml, require


@dataclass(frozen=True, slots=True)
class InventoryConfig:
    """Where the inventory comes from: a file, or the control API of the bundled fleet."""

    file: str | None = None
    fleet: str | None = None


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A log to follow. kind: kernel | trainer. Exactly one of path (glob) and url.

    url: the fleet's door `…/logs/kernel/{node}` with `?from=` offsets; `{node}` and `{job}` are filled from targets.
    """

    kind: str
    path: str | None = None
    url: str | None = None
    node: str | None = None
    job: str | None = None


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """How long samples are kept. Only `raw` is used today: rollups do not exist yet."""

    raw: str = "15d"


@dataclass(frozen=True, slots=True)
class GreylagConfig:
    """All of `greylag.yaml`. Relative paths are relative to the file.

    clock: URL of a fleet whose clock Greylag runs on; absent = the wall clock.
    """

    data_dir: str = "./greylag-data"
    listen: str = "127.0.0.1:9470"
    external_url: str | None = None
    explorer_url: str | None = None
    scrape_configs: tuple[Any, ...] = ()
    scrape_config_files: tuple[str, ...] = ()
    global_defaults: Mapping[str, Any] = field(default_factory=dict)
    inventory: InventoryConfig = InventoryConfig()
    logs: tuple[LogConfig, ...] = ()
    detectors: Mapping[str, Any] = field(default_factory=dict)
    policy: str | None = None
    backend: Mapping[str, Any] = field(default_factory=lambda: {"name": "observe"})
    notify: tuple[Any, ...] = ()
    retention: RetentionConfig = RetentionConfig()
    clock: str | None = None
    file: str = field(default="", init=False)

    def resolve(self, path: str) -> Path:
        """`path` relative to the configuration file."""
        return Path(self.file).parent / path if self.file else Path(path)


LATER = {
    "push_listen": "push receivers (remote write, OTLP, Loki, syslog)",
    "tokens": "tokens and roles",
    "rule_files": "rule files",
    "budgets": "collector budgets",
    "workers": "worker scaling",
}


def read_config(path: str | Path) -> GreylagConfig:
    """Reads and checks the file. Raises ConfigError."""
    data = read_yaml(path)
    file = str(path)
    if isinstance(data, Mapping):
        for key, what in LATER.items():
            if key in data:
                where = data.where(key) if hasattr(data, "where") else file
                raise ConfigError(where, key, "a key of a later version", f"{what} are not built yet: remove it")
    config = build(GreylagConfig, data, file)
    check_listen(file, config.listen)
    for i, log in enumerate(config.logs):
        key = f"logs[{i}]"
        require(log.kind in ("kernel", "trainer"), file, f"{key}.kind", log.kind, "allowed are: kernel, trainer")
        require((log.path is None) != (log.url is None), file, key, "path and url", "exactly one of them is needed")
    object.__setattr__(config, "file", file)
    return config


def check_listen(where: str, listen: str) -> tuple[str, int]:
    """Host and port of `host:port`; only loopback is allowed while tokens are not built. Raises ConfigError."""
    host, _, port = listen.rpartition(":")
    require(port.isdigit() and int(port) < 65536 and bool(host), where, "listen", listen, "host:port is needed")
    require(host in ("127.0.0.1", "localhost", "[::1]"), where, "listen", listen,
            "only loopback is allowed: tokens are not built yet")
    return host.strip("[]"), int(port)
