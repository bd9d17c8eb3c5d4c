"""The closed lists that name parts and scopes."""

from __future__ import annotations

KINDS = (
    "gpu", "nic", "link", "disk", "mount", "node", "switch", "rack", "pdu", "cooling", "storage", "rank", "job",
    "collector", "label", "fleet", "exporter", "service",
)
SCOPES = ("device", "node", "switch", "rack", "storage", "job", "fleet", "collector")
INCIDENT_STATES = (
    "open", "holding", "proposed", "approved", "acting", "verifying", "resolved", "escalated", "abandoned", "merged",
)
CLOSED_STATES = ("resolved", "abandoned", "merged")
PHASES = ("init", "warmup", "train", "eval", "checkpoint", "done")
ACTION_KINDS = (
    "notify", "restart_process", "reset_gpu", "drain", "undrain", "reboot", "replace", "diagnose", "exclude_node",
    "resume_job", "shrink_job", "escalate",
)
OUTCOME_STATES = ("PENDING", "RUNNING", "DONE", "FAILED", "REFUSED", "SIMULATED")
MODES = ("observe", "propose", "act")
