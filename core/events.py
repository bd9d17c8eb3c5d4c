"""The closed list of event kinds and the fields that each carries (all JSON scalars)."""

from __future__ import annotations

KINDS: dict[str, tuple[str, ...]] = {
    # name: fields (a field may be absent)
    "xid": ("xid", "pci", "fatal", "message"),
    "link_up": (),
    "link_down": (),
    "boot": ("boot_time_seconds",),
    "exporter_restart": ("target_id",),
    "gpu_lost": ("pci",),
    "oom": ("process",),
    "kernel_error": ("subsystem", "message"),
    # One line of a collective watchdog. seq is the collective that timed out; last_enqueued and last_completed
    # come from the line that follows it. group: process group name where the line has one.
    "nccl_watchdog": ("rank", "op", "seq", "timeout_seconds", "ran_seconds", "last_enqueued", "last_completed", "group"),
    "nccl_flight_recorder": ("rank", "seq", "state", "group"),
    "overflow": ("rank", "loss_scale"),
    "nonfinite": ("rank", "step", "what"),
    # phase: one of core.targets.PHASES, or start | end | restart. source: what said so.
    "job_phase": ("phase", "step", "source"),
    "checkpoint": ("step", "state"),
    "config_change": ("what", "old", "new"),
    "drain": ("by", "reason"),
    "undrain": ("by", "reason"),
    # What a worker leaves out to stay within its budgets. level 0 and no targets: nothing any more.
    "collector_shed": ("level", "reason", "targets", "shed"),
    "action": ("action_id", "action", "state", "reason"),
}
