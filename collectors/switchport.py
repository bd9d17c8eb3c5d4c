"""What the sources of switch ports share: which ports carry the fleet's traffic."""

from __future__ import annotations

import re

from core.types import Target

# Ports without a cable of their own, and those of management.
_NO_CABLE = re.compile(
    r"(?:vlan|vl\d|lo\d*$|loopback|null|nu\d|po\d|port-?channel|ae\d|bond|bridge|br\d*$|bvi|irb|tunnel|tu\d|nve|vxlan|vtep|"
    r"mgmt|management|ma\d|me\d|fxp|em\d|cpu|eth0$|peerlink|stack|in-?band|system|docker|veth).*", re.IGNORECASE)


def port_of(switch: str | None, port: str | None) -> Target | None:
    """The port as a part: kind link, node = the switch; None for what is no cabled port of the fabric."""
    if not port or _NO_CABLE.fullmatch(port):
        return None
    return Target("link", switch, port)
