"""The pages that `greylag bench ingest` serves, and the server that serves them: one emulated 8-GPU node a path.

A page has about 2,570 series in 230 kB (91 bytes a line): 8 GPUs with 42 DCGM fields and the usual seven labels, 96 CPUs
with 8 modes, 32 interfaces, 32 InfiniBand ports, 8 disks, file systems with escaped labels, scalars, one histogram, a NaN
and an infinity; big counters are printed as Go prints them (1.234e+09). About 40 % of the lines change from a page to the
next. Counters climb over `VARIANTS` pages and then start anew: each system under test sees the same pages.

The nodes are well: error counters stand, gauges are in the range of a busy H100. In a `storm` every counter climbs and every
gauge is arbitrary, so that a hundred nodes report all that can be wrong at once.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from core.clock import monotonic_seconds, wall_ms
from core.types import Floats

VARIANTS = 24
# What a node that is well says: a constant, or a middle and a spread. The first pattern that a name matches counts.
STANDS = re.compile(r"XID|ECC|RETIRED|REMAP|VIOLATION|REPLAY|REASONS|PSTATE|LICENSE|_drop_|_errs_|_fifo_|_frame_|_colls_|_carrier_total"
                    r"|errors_received|link_downed|symbol_error|transmit_wait|node_filesystem_|node_boot_time|discards")
GAUGES: dict[str, tuple[float, float]] = {
    "DCGM_FI_DEV_SM_CLOCK": (1980, 0), "DCGM_FI_DEV_MEM_CLOCK": (2619, 0), "DCGM_FI_DEV_VIDEO_CLOCK": (1545, 0),
    "DCGM_FI_DEV_GPU_TEMP": (58, 2), "DCGM_FI_DEV_MEMORY_TEMP": (68, 2), "DCGM_FI_DEV_POWER_USAGE": (640, 25),
    "DCGM_FI_DEV_GPU_UTIL": (99, 1), "DCGM_FI_DEV_MEM_COPY_UTIL": (60, 5), "DCGM_FI_DEV_ENC_UTIL": (0, 0),
    "DCGM_FI_DEV_DEC_UTIL": (0, 0), "DCGM_FI_DEV_FB_FREE": (9000, 0), "DCGM_FI_DEV_FB_USED": (71000, 0),
    "DCGM_FI_DEV_FB_RESERVED": (600, 0), "DCGM_FI_DEV_FAN_SPEED": (0, 0), "DCGM_FI_DEV_SLOWDOWN_TEMP": (87, 0),
    "DCGM_FI_DEV_SHUTDOWN_TEMP": (92, 0), "DCGM_FI_DEV_POWER_MGMT_LIMIT": (700, 0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.5, 0.02), "DCGM_FI_PROF_DRAM_ACTIVE": (0.4, 0.02),
    **{f"node_network_{name}": (1, 0) for name in ("up", "carrier", "iface_id", "flags", "device_id", "dormant")},
    "node_network_mtu_bytes": (4200, 0), "node_network_speed_bytes": (1.25e10, 0),
    "node_filesystem_avail_bytes": (3e12, 0), "node_filesystem_size_bytes": (4e12, 0), "node_filesystem_files": (4e8, 0),
    "node_filesystem_files_free": (3.9e8, 0), "node_filesystem_readonly": (0, 0), "node_boot_time_seconds": (1.79e9, 0),
}


def _words(text: str) -> list[str]:
    return text.split()


GPU_MARK = "ffffffff"
GPU_UUID = f"GPU-{GPU_MARK}".encode()
PLACEHOLDER = "node-0000000"  # as long as every node's name, so that a page is made once and only renamed
DCGM = _words("""SM_CLOCK MEM_CLOCK VIDEO_CLOCK GPU_TEMP MEMORY_TEMP POWER_USAGE PCIE_REPLAY_COUNTER GPU_UTIL MEM_COPY_UTIL ENC_UTIL
DEC_UTIL XID_ERRORS FB_FREE FB_USED FB_RESERVED ECC_SBE_VOL_TOTAL ECC_DBE_VOL_TOTAL ECC_SBE_AGG_TOTAL ECC_DBE_AGG_TOTAL
RETIRED_SBE RETIRED_DBE RETIRED_PENDING UNCORRECTABLE_REMAPPED_ROWS CORRECTABLE_REMAPPED_ROWS ROW_REMAP_FAILURE
NVLINK_BANDWIDTH_TOTAL VGPU_LICENSE_STATUS POWER_VIOLATION THERMAL_VIOLATION SYNC_BOOST_VIOLATION BOARD_LIMIT_VIOLATION
LOW_UTIL_VIOLATION RELIABILITY_VIOLATION CLOCKS_EVENT_REASONS PSTATE FAN_SPEED SLOWDOWN_TEMP SHUTDOWN_TEMP
POWER_MGMT_LIMIT""")
DCGM_NAMES = ["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", *(f"DCGM_FI_DEV_{one}" for one in DCGM),
              "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE"]
NET = _words("""receive_bytes receive_compressed receive_drop receive_errs receive_fifo receive_frame receive_multicast
receive_nohandler receive_packets transmit_bytes transmit_carrier transmit_colls transmit_compressed transmit_drop
transmit_errs transmit_fifo transmit_packets""")
NET_GAUGES = _words("address_assign_type carrier device_id dormant flags iface_id iface_link mtu_bytes speed_bytes up")
IB = _words("""port_data_received_bytes_total port_data_transmitted_bytes_total port_packets_received_total
port_packets_transmitted_total port_errors_received_total link_downed_total symbol_error_total
port_transmit_wait_total""")
DISK = _words("""reads_completed reads_merged read_bytes read_time_seconds writes_completed writes_merged written_bytes
write_time_seconds io_time_seconds io_time_weighted_seconds discards_completed""")
MODES = _words("user nice system idle iowait irq softirq steal")
Row = tuple[str, str, str]


def go_number(value: float) -> str:
    """A number as Go's exporters print it: whole below 1e6 plain, larger ones with an exponent."""
    if math.isnan(value):
        return "NaN"
    if value in (np.inf, -np.inf):
        return "+Inf" if value > 0 else "-Inf"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    text = repr(float(value))
    if abs(value) >= 1e21 or "e" in text or abs(value) < 1e6:
        return text
    mantissa, exponent = text.split(".")[0], len(text.split(".")[0]) - 1
    digits = (mantissa + text.split(".")[1]).rstrip("0")
    return f"{digits[0]}{'.' + digits[1:] if len(digits) > 1 else ''}e+{exponent:02d}"


def _families(extra: int) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """(family, type, [(sample name, label block)]) of one node. extra: families that only some nodes have."""
    gpus = [f'{{gpu="{g}",UUID="GPU-{GPU_MARK}-0000-4000-8000-{g:012d}",pci_bus_id="00000000:{g:02X}:00.0",'
            f'device="nvidia{g}",modelName="NVIDIA H100 80GB HBM3",Hostname="{PLACEHOLDER}",DCGM_FI_DRIVER_VERSION="550.54.15"}}'
            for g in range(8)]
    for name in DCGM_NAMES:
        counter = "VIOLATION" in name or name.endswith(("TOTAL", "COUNTER", "CONSUMPTION"))
        yield name, "counter" if counter else "gauge", [(name, block) for block in gpus]
    cpus = [f'{{cpu="{c}",mode="{mode}"}}' for c in range(96) for mode in MODES]
    yield "node_cpu_seconds_total", "counter", [("node_cpu_seconds_total", block) for block in cpus]
    for names, kind, prefix, end in ((NET, "counter", "node_network_", "_total"), (NET_GAUGES, "gauge", "node_network_", "")):
        for one in names:
            name = prefix + one + end
            yield name, kind, [(name, f'{{device="eth{d}"}}') for d in range(32)]
    for one in IB:
        name = f"node_infiniband_{one}"
        yield name, "counter", [(name, f'{{device="mlx5_{d}",port="1"}}') for d in range(32)]
    for one in DISK:
        name = f"node_disk_{one}_total"
        yield name, "counter", [(name, f'{{device="nvme{d}n1"}}') for d in range(8)]
    mounts = [f'{{device="/dev/nvme{d}n1",fstype="ext4",mountpoint="/data/\\"set {d}\\""}}' for d in range(5)]
    for one in ("avail_bytes", "size_bytes", "files", "files_free", "readonly"):
        yield f"node_filesystem_{one}", "gauge", [(f"node_filesystem_{one}", block) for block in mounts]
    for i in range(50):
        yield f"node_memory_Field{i}_bytes", "gauge", [(f"node_memory_Field{i}_bytes", "")]
    for i in range(60):
        yield f"node_netstat_Tcp_Field{i}", "untyped", [(f"node_netstat_Tcp_Field{i}", "")]
    for name in ("node_boot_time_seconds", "node_load1", "node_time_seconds", "bench_not_a_number", "bench_infinite"):
        yield name, "gauge", [(name, "")]
    for i in range(0, extra, 50):
        name = f"bench_extra_{i // 50}"
        yield name, "gauge", [(name, f'{{queue="{j}"}}') for j in range(min(50, extra - i))]
    edges = [f'{{le="{edge}"}}' for edge in ("0.01", "0.1", "1", "10", "+Inf")]
    sums = [("bench_seconds_sum", ""), ("bench_seconds_count", "")]
    yield "bench_seconds", "histogram", [*(("bench_seconds_bucket", edge) for edge in edges), *sums]


def _healthy(rows: Sequence[Row], counter: NDArray[np.bool_], values: Floats, rng: np.random.Generator) -> Floats:
    """float64[row]: the values of a node that is well, from arbitrary ones, and which of them stand still (NaN), move by a
    normal step (their spread) or climb (-1)."""
    moves = np.where(counter, -1.0, 30.0)
    for i, (name, block, _) in enumerate(rows):
        known = GAUGES.get(name)
        if known is not None:
            values[i], moves[i] = round(known[0] + known[1] * rng.normal(), 3), known[1] or np.nan
        elif STANDS.search(name) or 'mode="steal"' in block:
            values[i], moves[i] = (0.0 if name.startswith("DCGM") else values[i]), np.nan
    return moves


def node_pages(rank: int = 0, variants: int = VARIANTS, extra: int = 0, storm: bool = False) -> list[bytes]:
    """`variants` pages of one node in time order, with PLACEHOLDER as its name. rank: seeds labels and values."""
    rng = np.random.default_rng(rank + 1)
    rows: list[Row] = []
    heads: dict[int, str] = {}
    for family, kind, samples in _families(extra):
        heads[len(rows)] = f"# HELP {family} What {family} means.\n# TYPE {family} {kind}\n"
        rows += [(name, block, kind) for name, block in samples]
    n = len(rows)
    counter = np.array([kind in ("counter", "histogram") for _, _, kind in rows])
    whole = rng.random(n) < 0.78
    changes = rng.random(n) < 0.4
    values = np.where(counter, rng.integers(0, 10**10, n), rng.integers(0, 4000, n)) * np.where(rng.random(n) < 0.3, 0, 1.0)
    values = np.where(whole, np.floor(values), values + rng.random(n).round(3))
    moves = np.where(counter, -1.0, 30.0) if storm else _healthy(rows, counter, values, rng)
    changes &= ~np.isnan(moves)
    if not storm:  # as many lines change: those that may
        changes = ~np.isnan(moves) & (rng.random(n) < 0.4 * n / max(1, int((~np.isnan(moves)).sum())))
    odd = {name: i for i, (name, _, _) in enumerate(rows) if name.startswith("bench_")}
    middle, out = values, []
    for _ in range(variants):
        step = np.where(moves < 0, rng.integers(1, 10**6, n), rng.normal(0, 1, n) * np.nan_to_num(np.maximum(moves, 0)))
        step = np.where(whole & (values >= 10), np.floor(step), step.round(3))
        after = values + step if storm else np.where(moves < 0, values + step, middle + step)
        values = np.where(changes, np.abs(after), values)
        values[odd["bench_not_a_number"]], values[odd["bench_infinite"]] = np.nan, np.inf
        lines = [f"{heads.get(i, '')}{name}{block} {go_number(v)}"
                 for i, ((name, block, _), v) in enumerate(zip(rows, values.tolist(), strict=True))]
        out.append(("\n".join(lines) + "\n").encode())
    return out


def node_name(i: int) -> str:
    """As long as PLACEHOLDER."""
    return f"node-{i:07d}"


NODE_SERIES = 2459


@dataclass(frozen=True, slots=True)
class Serving:
    """What a page server serves. structures: different page shapes among the targets; extra: series that each page has
    beside the 2,500 of a node; variants: pages of a target in turn; storm: all that can be wrong is; stamped: one sample of each
    page carries its own time, as cAdvisor's and a Pushgateway's do, so that Greylag reads each page by its strict parser.
    Every `job_seconds` a job starts on the first `job_targets` nodes, and all their DCGM series carry its number."""

    targets: int = 100
    structures: int = 1
    extra: int = 0
    variants: int = VARIANTS
    storm: bool = False
    stamped: bool = False
    job_targets: int = 0
    job_seconds: float = 600.0

    @property
    def series(self) -> int:
        """Of one target."""
        return NODE_SERIES + self.extra + self.stamped


class PageServer(asyncio.Protocol):
    """HTTP/1.1 with keep-alive for `GET /nodes/<i>`; nothing else. Pages are made before the first request: those of
    one structure share all bytes, and the GPUs' are renamed as they are asked for, so that a thousand targets of 5,000 series
    fit in memory."""

    serving = Serving()
    gpus: Sequence[Sequence[bytes]] = ()
    rest: Sequence[Sequence[bytes]] = ()
    turns: ClassVar[list[int]] = []

    def connection_made(self, transport: Any) -> None:
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (cut := self.data.find(b"\r\n\r\n")) >= 0:
            path = self.data[:self.data.find(b"\r\n")].split(b" ")[1]
            self.data = self.data[cut + 4:]
            self.answer(int(path.rpartition(b"/")[2]))

    def answer(self, i: int) -> None:
        """The target's next page."""
        turn = self.turns[i] = self.turns[i] + 1
        gpus = self.gpus[i % self.serving.structures][turn % self.serving.variants]
        gpus = gpus.replace(PLACEHOLDER.encode(), node_name(i).encode()).replace(GPU_UUID, b"GPU-%08x" % i)
        rest = self.rest[i % self.serving.structures][turn % self.serving.variants]
        if i < self.serving.job_targets:
            job = b'DCGM_FI_DRIVER_VERSION="550.54.15",hpc_job="%d"' % (monotonic_seconds() // self.serving.job_seconds)
            gpus = gpus.replace(b'DCGM_FI_DRIVER_VERSION="550.54.15"', job)
        more = b"bench_stamped 1 %d\n" % wall_ms() if self.serving.stamped else b""
        self.transport.writelines([HEAD % (len(gpus) + len(rest) + len(more)), gpus, rest, more])


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n"


def serve_pages(port: Any, serving: Serving) -> None:
    """Serves; sends its port number through `port`; runs until it is terminated."""
    made = [node_pages(s, serving.variants, serving.extra + s, serving.storm) for s in range(serving.structures)]
    cut = [[page.index(b"# HELP node_cpu_seconds_total") for page in pages] for pages in made]
    PageServer.serving = serving
    PageServer.rest = [[page[at:] for page, at in zip(pages, cuts, strict=True)] for pages, cuts in zip(made, cut, strict=True)]
    PageServer.gpus = [[page[:at] for page, at in zip(pages, cuts, strict=True)] for pages, cuts in zip(made, cut, strict=True)]
    PageServer.turns = list(range(serving.targets))

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(PageServer, "127.0.0.1", 0, backlog=4096)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())
