"""The EFA collector of AWS's node_exporter: hw_counters of each device, in the order of their names. What a driver has not
is absent: older Nitro cards do not count what they send again. A device that is gone has no series."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core.types import Floats
from fleet.sheets.base import Family, Get, Sheet
from fleet.sheets.node_nics import devices, in_order
from fleet.telemetry import Telemetry
from fleet.transports import Srd

if TYPE_CHECKING:
    from fleet.world import World

PREFIX = "node_amazonefa_"
# name, help; newer Nitro cards only
COUNTS: tuple[tuple[str, str, bool], ...] = (
    ("impaired_remote_conn_events", "Number of times a connection to a remote device was impaired", True),
    ("lifespan", "Lifespan of the port", False),
    ("rdma_read_bytes", "Number of bytes read with RDMA", False),
    ("rdma_read_resp_bytes", "Number of read reponses bytes with RDMA", False),
    ("rdma_read_wr_err", "Number of read write errors with RDMA", False),
    ("rdma_read_wrs", "Number of read rs with RDMA", False),
    ("rdma_write_bytes", "Number of bytes wrote with RDMA", False),
    ("rdma_write_recv_bytes", "Number of bytes wrote and received with RDMA", False),
    ("rdma_write_wr_err", "Number of bytes wrote wr with error RDMA", False),
    ("rdma_write_wrs", "Number of bytes wrote wrs RDMA", False),
    ("recv_bytes", "Number of bytes recv bytes", False),
    ("recv_wrs", "Number of bytes recv wrs", False),
    ("retrans_bytes", "Number of bytes retransmitted", True),
    ("retrans_pkts", "Number of packets retransmitted", True),
    ("retrans_timeout_events", "Number of retransmission timeouts", True),
    ("rx_bytes", "Number of bytes received", False),
    ("rx_drops", "Number of packets droped", False),
    ("rx_pkts", "Number of packets received", False),
    ("send_bytes", "Number of bytes send", False),
    ("send_wrs", "Number of wrs send", False),
    ("tx_bytes", "Number of bytes transmitted", False),
    ("tx_pkts", "Number of packets transmitted", False),
    ("unresponsive_remote_events", "Number of times a remote device did not answer", True),
)


class EfaSheet(Sheet):
    """All EFA devices of all nodes."""

    name = "efa"
    sorted = True

    def __init__(self, world: World, telemetry: Telemetry) -> None:
        ports = devices(world.nodes[0])
        order = in_order([device for device, _ in ports])
        take = np.array(order)
        bare = tuple(f'{{device="{ports[i][0]}"}}' for i in order)
        blocks = tuple(f'{{device="{ports[i][0]}",port="{ports[i][1]}"}}' for i in order)

        def there(get: Get) -> Get:
            def of_all(w: World) -> Floats:
                return np.where(w.nics.present, get(w), np.nan)[:, take]
            return of_all

        def counter(name: str) -> Get:
            return there(lambda w: w.nics.counters[name])

        transport = world.nics.transport
        writes = isinstance(transport, Srd) and transport.writes
        super().__init__(world, [
            *(Family(PREFIX + name, text, "counter", lambda node: blocks, len(blocks), counter(name))
              for name, text, newer in COUNTS if writes or not newer),
            Family(PREFIX + "info", "Non-numeric data of the device, value is always 1.", "gauge", lambda node: bare, len(bare),
                   there(lambda w: 1.0)),
        ])
