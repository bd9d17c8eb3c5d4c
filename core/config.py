"""`greylag.yaml` as frozen dataclasses. Sections that belong to one room are kept as data and read by that room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import ConfigError, nearest
from core.xids import OURS, POLICIES, XidPolicy
from core.yamlfile import build, read_yaml, require


@dataclass(frozen=True, slots=True)
class InventoryConfig:
    """Where the inventory comes from: a file, the control API of the bundled fleet, a Kubernetes cluster or Slurm (their keys
    are read by the inventory's own reader)."""

    file: str | None = None
    fleet: str | None = None
    kubernetes: Mapping[str, Any] | None = None
    slurm: Any = None  # true, or a mapping that its own reader reads


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A log to follow. kind: kernel | trainer. Exactly one of path (glob) and url.

    url: the fleet's door `…/logs/kernel/{node}` with `?from=` offsets; `{node}` and `{job}` are filled from targets.
    rules: of a trainer's log, a file of rules as the HyperPod training operator has them.
    """

    kind: str
    path: str | None = None
    url: str | None = None
    node: str | None = None
    job: str | None = None
    rules: str | None = None


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """How long samples are kept: as they came, and as 1-minute and 1-hour rollups."""

    raw: str = "15d"
    rollup_1m: str = "90d"
    rollup_1h: str = "730d"


@dataclass(frozen=True, slots=True)
class WorkersConfig:
    """How many collector processes there may be. max 0 = as many as the machine has CPUs.

    One more is started when one uses more than `cpu_high` of a CPU (or lags, or misses slots) for two looks; one is ended
    when for `quiet_seconds` the others would have stayed below `cpu_low`. A look is every `look_seconds`, wall time.
    """

    min: int = 1
    max: int = 0
    cpu_high: float = 0.7
    cpu_low: float = 0.5
    quiet_seconds: float = 300.0
    look_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class TargetBudget:
    """What one scrape target may cost. 0 = no limit of this kind.

    label_value_bytes and labels bound one series; new_series_per_hour bounds churn; the target's own scrape
    configuration (`sample_limit`, `body_size_limit`, `scrape_timeout`) holds as well, the smaller one wins.
    """

    series: int = 100_000
    new_series_per_hour: int = 200_000
    body_bytes: int = 64 * 1024 * 1024
    labels: int = 64
    label_name_bytes: int = 512
    label_value_bytes: int = 8192


@dataclass(frozen=True, slots=True)
class ProcessBudget:
    """What one Greylag process may cost. cpu_ratio: of one CPU, averaged over a minute; memory_bytes: resident set;
    disk_free_ratio_min: of the file system of data_dir, below which retention tightens; at half of it raw samples stop.
    spool_bytes: of pushes that the owner has not committed yet; when it is used up, senders are told to come again."""

    cpu_ratio: float = 0.9
    memory_bytes: int = 4 * 1024 * 1024 * 1024
    disk_free_ratio_min: float = 0.1
    spool_bytes: int = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BudgetsConfig:
    """Bounds on what watching may cost."""

    target: TargetBudget = TargetBudget()
    process: ProcessBudget = ProcessBudget()


@dataclass(frozen=True, slots=True)
class TokenConfig:
    """Who may ask. role: viewer (reads), operator (reads, approves, silences, freezes), or sender (hands in alerts, changes and
    pushes, and reads nothing). sha256: of the token, 64 hex digits; the token itself stands nowhere here."""

    name: str
    role: str
    sha256: str


@dataclass(frozen=True, slots=True)
class LagLimits:
    """How far behind each part may be before the heartbeat stops, in seconds: ingest and detect of cluster time (eight ticks), notify
    of wall time since the oldest message waits."""

    ingest_seconds: float = 120.0
    detect_seconds: float = 120.0
    notify_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class HeartbeatConfig:
    """url, or url_file where the address is a secret: asked at each interval while ingest, detect and notify keep their limits."""

    url: str | None = None
    url_file: str | None = None
    interval_seconds: float = 60.0
    limits: LagLimits = LagLimits()


@dataclass(frozen=True, slots=True)
class GreylagConfig:
    """All of `greylag.yaml`. Relative paths are relative to the file.

    tokens: who may ask; required to listen on anything but loopback, asked for everywhere once there is one.
    heartbeat: a sign of life that stops when Greylag is behind.
    xids: whose list of fatal XIDs counts, for all detectors, and the codes on which the site says otherwise.
    clock: URL of a fleet whose clock Greylag runs on; absent = the wall clock.
    push_listen: host:port at which collectors take pushes (remote write, OTLP, Loki); absent = none are taken.
    syslog_listen: host:port at which collectors take syslog (TCP and UDP); absent = none is taken.
    runbook_url: where alerts link the pages of faults, as `<runbook_url>/<fault>`; absent = Greylag's own, at external_url.
    flush_seconds: the longest that a sample waits in its collector before it is handed over.
    """

    data_dir: str = "./greylag-data"
    listen: str = "127.0.0.1:9470"
    external_url: str | None = None
    explorer_url: str | None = None
    runbook_url: str | None = None
    scrape_configs: tuple[Any, ...] = ()
    scrape_config_files: tuple[str, ...] = ()
    global_defaults: Mapping[str, Any] = field(default_factory=dict)
    inventory: InventoryConfig = InventoryConfig()
    logs: tuple[LogConfig, ...] = ()
    detectors: Mapping[str, Any] = field(default_factory=dict)
    xids: XidPolicy = OURS
    policy: str | None = None
    backend: Mapping[str, Any] = field(default_factory=lambda: {"name": "observe"})
    notify: tuple[Any, ...] = ()
    retention: RetentionConfig = RetentionConfig()
    push_listen: str | None = None
    syslog_listen: str | None = None
    workers: WorkersConfig = WorkersConfig()
    budgets: BudgetsConfig = BudgetsConfig()
    flush_seconds: float = 5.0
    clock: str | None = None
    tokens: tuple[TokenConfig, ...] = ()
    heartbeat: HeartbeatConfig = HeartbeatConfig()
    file: str = field(default="", init=False)

    def resolve(self, path: str) -> Path:
        """`path` relative to the configuration file."""
        return Path(self.file).parent / path if self.file else Path(path)


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
ROLES = ("viewer", "operator", "sender")
LATER = {
    "rule_files": "rule files",
}


def read_config(path: str | Path) -> GreylagConfig:
    """Reads and checks the file. Raises ConfigError."""
    data = read_yaml(path)
    file = str(path)
    require(data is not None and data != {}, file, "", "nothing", "at least scrape_configs, logs or push_listen is needed")
    if isinstance(data, Mapping):
        for key, what in LATER.items():
            if key in data:
                where = data.where(key) if hasattr(data, "where") else file
                raise ConfigError(where, key, "a key of a later version", f"{what} are not built yet: remove it")
    config = build(GreylagConfig, data, file)
    _check_tokens(config, file)
    check_listen(file, config.listen, tokens=bool(config.tokens))
    for name in ("clock", "external_url", "explorer_url", "runbook_url"):
        given = getattr(config, name)
        require(given is None or given.startswith(("http://", "https://")), file, name, given, "an http:// or https:// address is needed")
    if config.push_listen is not None:
        check_listen(file, config.push_listen, "push_listen", bool(config.tokens))
    if config.syslog_listen is not None:
        check_listen(file, config.syslog_listen, "syslog_listen")
    _check_bounds(config, file)
    _check_xids(config.xids, file)
    for i, log in enumerate(config.logs):
        key = f"logs[{i}]"
        require(log.kind in ("kernel", "trainer"), file, f"{key}.kind", log.kind, "allowed are: kernel, trainer")
        given = "nothing of path and url" if log.path is None else "a path and a url"
        require((log.path is None) != (log.url is None), file, key, given, "exactly one of them is needed")
        require(log.rules is None or log.kind == "trainer", file, f"{key}.rules", log.rules, "rules are for logs of kind trainer")
    object.__setattr__(config, "file", file)
    return config


def _check_bounds(config: GreylagConfig, file: str) -> None:
    """Raises ConfigError for numbers that cannot be meant."""
    workers, process = config.workers, config.budgets.process
    require(1 <= workers.min <= 256, file, "workers.min", workers.min, "1 to 256 is allowed")
    require(workers.max == 0 or workers.min <= workers.max <= 256, file, "workers.max", workers.max,
            "0 (as many as CPUs) or workers.min to 256 is allowed")
    require(0 < workers.cpu_low < workers.cpu_high <= 1, file, "workers.cpu_low", workers.cpu_low,
            "more than 0 and less than workers.cpu_high is needed, which is at most 1")
    require(0.2 <= workers.look_seconds <= workers.quiet_seconds, file, "workers.look_seconds", workers.look_seconds,
            "at least 0.2 and at most workers.quiet_seconds is needed")
    require(0 < process.cpu_ratio <= 64, file, "budgets.process.cpu_ratio", process.cpu_ratio, "more than 0 is needed")
    require(0 <= process.disk_free_ratio_min < 1, file, "budgets.process.disk_free_ratio_min", process.disk_free_ratio_min,
            "0 or more and less than 1 is allowed")
    require(process.memory_bytes >= 64 * 1024 * 1024, file, "budgets.process.memory_bytes", process.memory_bytes,
            "at least 67108864 (64 MiB) is needed")
    require(process.spool_bytes >= 16 * 1024 * 1024, file, "budgets.process.spool_bytes", process.spool_bytes,
            "at least 16777216 (16 MiB) is needed")
    for name in ("series", "new_series_per_hour", "body_bytes", "labels", "label_name_bytes", "label_value_bytes"):
        given = getattr(config.budgets.target, name)
        require(given >= 0, file, f"budgets.target.{name}", given, "0 (no limit) or more is allowed")
    require(0.1 <= config.flush_seconds <= 15, file, "flush_seconds", config.flush_seconds, "0.1 to 15 is allowed")


def _check_xids(xids: XidPolicy, file: str) -> None:
    require(xids.policy in POLICIES, file, "xids.policy", xids.policy, f"allowed are: {', '.join(POLICIES)}{nearest(xids.policy, POLICIES)}")
    for name in ("fatal", "not_fatal"):
        for i, code in enumerate(getattr(xids, name)):
            require(1 <= code <= 999_999, file, f"xids.{name}[{i}]", code, "the number of an XID is needed, 1 to 999999")
    both = sorted(set(xids.fatal) & set(xids.not_fatal))
    require(not both, file, "xids", f"{both[0] if both else ''} as fatal and as not fatal", "a code can be one of them")


def _check_tokens(config: GreylagConfig, file: str) -> None:
    names = set()
    for i, one in enumerate(config.tokens):
        key = f"tokens[{i}]"
        require(bool(one.name.strip()) and len(one.name) <= 64 and one.name.isprintable(), file, f"{key}.name", one.name, "a name of 1 to 64 characters is needed")
        require(one.name not in names, file, f"{key}.name", one.name, "another token has this name")
        require(one.role in ROLES, file, f"{key}.role", one.role, f"allowed are: {', '.join(ROLES)}")
        hexed = len(one.sha256) == 64 and all(c in "0123456789abcdef" for c in one.sha256.lower())
        require(hexed, file, f"{key}.sha256", "text that is no SHA-256", "64 hex digits are needed, as `printf %s TOKEN | sha256sum` prints them")
        names.add(one.name)
    beat = config.heartbeat
    require(beat.url is None or beat.url_file is None, file, "heartbeat", "url and url_file", "one of them is allowed")
    require(beat.url is None or beat.url.startswith(("http://", "https://")), file, "heartbeat.url", beat.url, "an http:// or https:// address is needed")
    require(1 <= beat.interval_seconds <= 86_400, file, "heartbeat.interval_seconds", beat.interval_seconds, "1 to 86400 is allowed")
    for part in ("ingest", "detect", "notify"):
        given = getattr(beat.limits, f"{part}_seconds")
        require(given >= 30, file, f"heartbeat.limits.{part}_seconds", given, "at least 30 (two ticks) is needed")


def check_listen(where: str, listen: str, key: str = "listen", tokens: bool = False) -> tuple[str, int]:
    """Host and port of `host:port`; without tokens only loopback is allowed. Raises ConfigError."""
    host, _, port = listen.rpartition(":")
    require(port.isdigit() and int(port) < 65536 and bool(host), where, key, listen, "host:port is needed, with a port of at most 65535")
    why = "only loopback is allowed: syslog knows no tokens" if key == "syslog_listen" else "only loopback is allowed without tokens"
    require(tokens or host in LOOPBACK, where, key, listen, why)
    return host.strip("[]"), int(port)
