"""The closed list of event kinds and the fields that each carries (all JSON scalars)."""

from __future__ import annotations

KINDS: dict[str, tuple[str, ...]] = {
    # name: fields (a field may be absent)
    # source: gauge where no kernel line told it.
    "xid": ("xid", "pci", "fatal", "message", "source"),
    "link_up": (),
    "link_down": (),
    "boot": ("boot_time_seconds",),
    "exporter_restart": ("target_id",),
    "gpu_lost": ("pci",),
    "oom": ("process",),
    # What the service manager says of a unit (the part is kind service): it failed, it was stopped, it is being started, or it runs.
    "service_failed": ("unit", "result"),
    "service_stopped": ("unit",),
    "service_starting": ("unit",),
    "service_started": ("unit",),
    "kernel_error": ("subsystem", "message"),
    # One line of a collective watchdog. seq is the collective that timed out; last_enqueued and last_completed
    # come from the line that follows it. group: process group name where the line has one.
    "nccl_watchdog": ("rank", "op", "seq", "timeout_seconds", "ran_seconds", "last_enqueued", "last_completed", "group"),
    "nccl_flight_recorder": ("rank", "seq", "state", "group"),
    # A completion error of a rank's network: mostly an echo of what broke elsewhere, so no detector blames its port.
    "nccl_error": ("rank", "message"),
    "overflow": ("rank", "loss_scale"),
    "nonfinite": ("rank", "step", "what"),
    # phase: one of core.targets.PHASES, or start | end | restart. source: what said so; `slurm` also tells nodes (a hostlist),
    # their count, and as what a run ended (state, exit code, signal).
    "job_phase": ("phase", "step", "source", "nodes", "count", "state", "code", "signal"),
    # A rule of the user's over a job's log changed its state: matching | overdue | slow | stopped. what: start | recurring.
    "log_rule": ("rule", "state", "what", "limit_seconds", "value", "threshold", "operator", "points"),
    # saving | saved | failed | loaded
    "checkpoint": ("step", "state"),
    # A process of a job died by itself. step: the run's last one that the log told, absent where it told none.
    "job_exit": ("rank", "code", "step", "message"),
    # by: who changed it, absent where only the labels of an exporter show it.
    "config_change": ("what", "old", "new", "by"),
    "drain": ("by", "reason"),
    "undrain": ("by", "reason"),
    # What a worker leaves out to stay within its budgets. level 0 and no targets: nothing any more.
    "collector_shed": ("level", "reason", "targets", "shed"),
    "action": ("action_id", "action", "state", "reason", "took_seconds", "message_id"),
    # An alert of others that was handed in. status: firing | resolved. fault: what it means here, null where nothing is known.
    "alert": ("alertname", "status", "severity", "fault", "fingerprint", "summary", "by"),
}
