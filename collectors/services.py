"""The units of systemd whose absence a GPU node's work feels: what sources look at of the hundreds that a node has."""

from __future__ import annotations

import re

_NAMES = (
    # what GPUs, their fabric and their exporters need
    r"nvidia-(?:fabricmanager|persistenced|dcgm|imex|powerd|gridd)|nv-hostengine|dcgm|(?:nvidia-)?dcgm-exporter|neuron-monitor|amdgpu-\w+",
    # what gives a node work
    r"slurmd|munged?|kubelet|containerd|docker|cri-?o|podman|k3s(?:-agent)?|rke2-(?:agent|server)|enroot\w*",
    # what keeps its clock, its network and its file systems
    r"chronyd?|ntpd?|ntpsec|systemd-timesyncd|ptp4l|phc2sys|openibd|opensmd?|rdma-ndd|lnet|nfs-client|rpcbind|beegfs-client",
    r"(?:prometheus-)?node[_-]exporter",
)
WATCHED = re.compile(rf"(?:{'|'.join(_NAMES)})(?:@[\w.-]*)?\.service")


def watched(unit: str) -> bool:
    """Whether the unit (`slurmd.service`) is one that a GPU node's work needs."""
    return WATCHED.fullmatch(unit) is not None
