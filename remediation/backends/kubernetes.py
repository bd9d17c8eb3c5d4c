"""Kubernetes: cordon, taint, evict within disruption budgets, labels for replacement and reboot, diagnosis as a Job, and the
restart of Jobs, JobSets and PyTorchJobs.

What it may touch and why is in docs/kubernetes.md; the permissions are in sample_data/kubernetes/rbac.yaml. It needs the
extra `[k8s]`; without it this file still loads, and says so only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from core.clock import wall_ms
from core.errors import ConfigError
from core.protocols import BackendPlugin, ControlDoor, WorldView
from remediation.backends.kubernetes_api import Access, Api, connect
from remediation.backends.kubernetes_door import KubernetesDoor
from remediation.backends.kubernetes_setup import Probe, Setup
from remediation.backends.kubernetes_view import KubernetesView
from remediation.diagnose_output import TOOLS

KINDS = ("reset_gpu", "drain", "undrain", "reboot", "replace", "diagnose", "exclude_node", "resume_job", "shrink_job",
         "restart_process")


@dataclass(frozen=True, slots=True)
class KubernetesParams:
    """kubeconfig_file, context: how to log in; without them as the pod's own service account. namespaces: where jobs are looked
    for, none = in all. node_selector: labels of the nodes that Greylag may know, none = all. opt_in_label: label or
    annotation that lets a job's pods be evicted and the job be restarted, where it is `true`; opted_in_namespaces: these
    namespaces are opted in as a whole. spare_label: label, and key of the taint, of spares. taint: key of our own taint.
    hyperpod: auto (nodes that carry HyperPod's label get its values), always, never. other_hands: taint, label or
    annotation key of a controller of this site, and its name. checkpoint_wait_seconds: how long `drain: {wait_for: checkpoint}`
    waits for a save. monitoring_labels: node labels that send what watches the GPUs off a node while one of them is reset.
    timeout_seconds: wall time that an answer may take.
    diagnose, reset: how the Jobs of `diagnose` and `reset_gpu` look (Probe); without an image the kind is refused.
    """

    kubeconfig_file: str | None = None
    context: str | None = None
    namespaces: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    opt_in_label: str = "greylag.io/remediate"
    opted_in_namespaces: tuple[str, ...] = ()
    spare_label: str = "greylag.io/spare"
    taint: str = "greylag.io/held"
    hyperpod: str = "auto"
    other_hands: Mapping[str, str] = field(default_factory=dict)
    checkpoint_wait_seconds: float = 900.0
    timeout_seconds: float = 5.0
    monitoring_labels: Mapping[str, str] = field(default_factory=dict)
    diagnose: Probe = field(default_factory=Probe)
    reset: Probe = field(default_factory=Probe)


def setup_of(params: KubernetesParams) -> Setup:
    """The parameters, checked. Raises ConfigError."""
    if params.hyperpod not in ("auto", "always", "never"):
        raise ConfigError("backend", "hyperpod", params.hyperpod, "allowed are: auto, always, never")
    for key in ("opt_in_label", "spare_label", "taint"):
        if not getattr(params, key):
            raise ConfigError("backend", key, getattr(params, key), "a label key is needed")
    for key in ("diagnose", "reset"):
        one: Probe = getattr(params, key)
        if one.image and not one.commands:
            raise ConfigError("backend", f"{key}.commands", "nothing", "what the image runs is needed")
        allowed = ("reset",) if key == "reset" else tuple(TOOLS)
        for name in one.commands:
            if name not in allowed:
                raise ConfigError("backend", f"{key}.commands.{name}", "an unknown test", f"allowed are: {', '.join(allowed)}")
        for name in one.servers:
            if key == "reset" or not any("{partner}" in word for word in one.commands.get(name, ())):
                raise ConfigError("backend", f"{key}.servers.{name}", "a test that meets nobody",
                                  f"diagnose.commands.{name} with {{partner}} in it is needed")
    return Setup(params.namespaces, dict(params.node_selector), params.opt_in_label, frozenset(params.opted_in_namespaces),
                 params.spare_label, params.taint, params.hyperpod, dict(params.other_hands), params.checkpoint_wait_seconds,
                 dict(params.monitoring_labels), params.diagnose, params.reset)


def over(api: Api, setup: Setup, now_ms: Callable[[], int]) -> tuple[KubernetesDoor, KubernetesView]:
    """Door and view over one client. now_ms: the time that deadlines are measured by."""
    view = KubernetesView(api, setup)
    return KubernetesDoor(api, setup, view, now_ms), view


def build(params: KubernetesParams) -> tuple[ControlDoor, WorldView]:
    """Door and view. Raises ConfigError for a configuration that cannot be used, or where the client is not installed."""
    setup = setup_of(params)
    api = connect(Access(params.kubeconfig_file, params.context, params.timeout_seconds), "backend")
    return over(api, setup, wall_ms)


PLUGIN = BackendPlugin("kubernetes", KubernetesParams, KINDS, build)
