"""What the parts of the Kubernetes backend are told, and the words they use among each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from core.errors import GreylagError
from remediation.backends.kubernetes_nodes import Entry, Obj


@dataclass(frozen=True, slots=True)
class Probe:
    """Jobs of our own that run on one node.

    image, namespace: what they run and where. commands: by test (a name of `remediation.diagnose_output.TOOLS`), for a reset
    of a GPU the one `reset`; `{level}`, `{device}`, `{gpus}` (one, all) and `{pause_monitoring}` (true, false) in a word are
    filled in. need: the least main number of a test. servers: tests between two nodes, with what a spare runs meanwhile; the test's own
    command gets the spare's address as `{partner}`. host_network: their pods stand in the node's own network, where the RDMA ports are.
    gpus: GPUs that they ask for, -1 = all of the node; gpu_resource: as the device plug-in names them. tolerate: further
    taint keys. service_account, privileged: as the pod's.
    """

    image: str = ""
    namespace: str = "greylag"
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    need: Mapping[str, float] = field(default_factory=dict)
    servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    host_network: bool = False
    gpus: int = -1
    gpu_resource: str = "nvidia.com/gpu"
    tolerate: tuple[str, ...] = ()
    service_account: str | None = None
    privileged: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """The backend's parameters after their check; see KubernetesParams."""

    namespaces: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    opt_in_label: str = "greylag.io/remediate"
    opted_in_namespaces: frozenset[str] = frozenset()
    spare_label: str = "greylag.io/spare"
    taint: str = "greylag.io/held"
    hyperpod: str = "auto"
    other_hands: Mapping[str, str] = field(default_factory=dict)
    checkpoint_wait_seconds: float = 900.0
    monitoring_labels: Mapping[str, str] = field(default_factory=dict)
    diagnose: Probe = field(default_factory=Probe)
    reset: Probe = field(default_factory=Probe)


class Refuse(GreylagError):
    """Nothing was done, and why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an action is. state: RUNNING, DONE or FAILED. changes: a patch of its object that goes with it; more: what
    its entry has to remember from now on (None = as it was). repeat: look again at once, the
    next step is due. detail: for people."""

    state: str
    reason: str
    changes: Obj | None = None
    more: Mapping[str, Any] | None = None
    repeat: bool = False
    detail: str | None = None


def with_more(entry: Entry, **more: Any) -> dict[str, Any]:
    """The entry's memory with something added."""
    return {**entry.more, **more}
