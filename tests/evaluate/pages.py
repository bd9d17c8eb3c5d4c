"""The exporters' pages of the made-up cluster: one `Page` for each target, with the values of all its scrapes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from tests.evaluate.plan import Plan, rng_of
from tests.evaluate.world import COMM, DONE, IDLE, PHASE, SAVE, Gpu, Run, gpu, heat_of, severity

BUSES = ("53", "64", "75", "86", "97", "A8", "B9", "CA")
MODERN = {
    "DEV_GPU_TEMP": "DEV_GPU_TEMP_CELSIUS", "DEV_POWER_USAGE": "DEV_BOARD_POWER_WATTS", "DEV_GPU_UTIL": "DEV_GPU_UTIL_RATIO",
    "DEV_PCIE_REPLAY_COUNTER": "DEV_PCIE_REPLAY_TOTAL", "DEV_GPU_TEMP_LIMIT": "DEV_GPU_TEMP_MARGIN_CELSIUS",
    "DEV_CLOCK_THROTTLE_REASONS": "DEV_CLOCKS_EVENT_REASONS", "PROF_PIPE_TENSOR_ACTIVE": "PROF_TENSOR_UTIL_RATIO",
    "PROF_DRAM_ACTIVE": "PROF_DRAM_UTIL_RATIO", "PROF_GR_ENGINE_ACTIVE": "PROF_GR_ENGINE_UTIL_RATIO",
    "DEV_XID_ERRORS": "DEV_XID_ERROR", "DEV_NVLINK_BANDWIDTH_TOTAL": "DEV_NVLINK_THROUGHPUT_TOTAL",
}


@dataclass
class Family:
    """rows: (labels, values by scrape)."""

    name: str
    type: str
    rows: list[tuple[dict[str, str], np.ndarray]] = field(default_factory=list)


@dataclass
class Page:
    """times: ms of the scrapes that came through."""

    name: str
    node: str
    times: np.ndarray
    families: list[Family]


def scrape_times(plan: Plan, node: int, exporter: str) -> np.ndarray:
    """Seconds at which a target was read: its own offset, some slots missed, silent in an outage."""
    rng = rng_of(plan.seed, "times", node, exporter)
    offset = float(rng.uniform(0, plan.interval))
    t = np.arange(offset, plan.seconds, plan.interval)
    kept = rng.random(len(t)) >= plan.missed
    if plan.outage is not None and plan.outage[0] == node and exporter != "trainer":
        kept &= ~((t >= plan.outage[1]) & (t < plan.outage[1] + plan.outage[2]))
    if plan.trainer_outage is not None and exporter == "trainer":
        kept &= ~((t >= plan.trainer_outage[0]) & (t < plan.trainer_outage[0] + plan.trainer_outage[1]))
    return t[kept]


def address(plan: Plan, node: int, port: int, job: str) -> dict[str, str]:
    """The labels that the collector added."""
    host = plan.nodes[node]
    if plan.address == "stem":
        return {}
    if plan.address == "node":
        return {"instance": f"{host}:{port}", "job": job, "node": host}
    if plan.address == "ip":
        return {"instance": f"10.20.{node // 200}.{node % 200 + 7}:{port}", "job": job}
    return {"instance": f"{host}:{port}", "job": job}


def node_of_ports(plan: Plan, node: int) -> str:
    """How the node is called where its pages do not name it themselves."""
    return f"10.20.{node // 200}.{node % 200 + 7}" if plan.address == "ip" else plan.nodes[node]


def uuid_of(plan: Plan, node: int, index: int) -> str:
    h = hashlib.sha256(f"{plan.seed}/{node}/{index}".encode()).hexdigest()
    return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:32]}"


def _since(rate: np.ndarray, start: float) -> np.ndarray:
    return start + np.concatenate([[0.0], np.cumsum(rate[:-1])])


def _dcgm_values(plan: Plan, one: Gpu, rng: np.random.Generator, busy: np.ndarray) -> dict[str, tuple[str, np.ndarray]]:
    n = len(one.temp)
    whole = np.round
    values = {
        "DEV_SM_CLOCK": ("gauge", np.floor(one.clock / 15) * 15),
        "DEV_MEM_CLOCK": ("gauge", np.full(n, float(plan.sku.memory_clock))),
        "DEV_MEMORY_TEMP": ("gauge", whole(one.memory_temp)),
        "DEV_GPU_TEMP": ("gauge", whole(one.temp)),
        "DEV_POWER_USAGE": ("gauge", whole(one.power * 1000) / 1000),
        "DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", whole(_since(one.power * 1000, float(rng.uniform(1e8, 1e12))))),
        "DEV_PCIE_REPLAY_COUNTER": ("counter", np.full(n, float(rng.integers(0, 12)))),
        "DEV_GPU_UTIL": ("gauge", whole(one.util)),
        "DEV_MEM_COPY_UTIL": ("gauge", whole(one.util * 0.35)),
        "DEV_FB_FREE": ("gauge", plan.sku.memory_mib - 479 - whole(one.fb_used)),
        "DEV_FB_USED": ("gauge", whole(one.fb_used)),
        "DEV_UNCORRECTABLE_REMAPPED_ROWS": ("counter", np.zeros(n)),
        "DEV_CORRECTABLE_REMAPPED_ROWS": ("counter", np.zeros(n)),
        "DEV_ROW_REMAP_FAILURE": ("gauge", np.zeros(n)),
        "DEV_NVLINK_BANDWIDTH_TOTAL": ("counter", whole(_since(one.nvlink, 1e6))),
        "PROF_GR_ENGINE_ACTIVE": ("gauge", np.clip(one.util / 100 * 0.98, 0, 1)),
        "PROF_PIPE_TENSOR_ACTIVE": ("gauge", one.tensor),
        "PROF_DRAM_ACTIVE": ("gauge", one.tensor * 0.9),
        "PROF_PCIE_TX_BYTES": ("gauge", whole(1e8 + busy * 4e9)),
        "PROF_PCIE_RX_BYTES": ("gauge", whole(1e8 + busy * 3e9)),
    }
    if plan.sticky_xid is not None and rng.random() < 0.1:
        values["DEV_XID_ERRORS"] = ("gauge", np.full(n, float(plan.sticky_xid)))
    return values


def _dcgm_more(plan: Plan, one: Gpu, values: dict[str, tuple[str, np.ndarray]]) -> None:
    n = len(one.temp)
    if plan.dcgm in ("advanced", "full"):
        values["DEV_POWER_VIOLATION"] = ("counter", np.round(_since(one.power_ns, 7e12)))
        values["DEV_THERMAL_VIOLATION"] = ("counter", np.round(_since(one.thermal_ns, 3e9)))
        values["DEV_ECC_SBE_VOL_TOTAL"] = ("counter", np.zeros(n))
        values["DEV_ECC_DBE_VOL_TOTAL"] = ("counter", np.zeros(n))
    if plan.dcgm in ("full", "modern"):
        values["DEV_CLOCK_THROTTLE_REASONS"] = ("gauge", one.bits.astype(float))
        values["DEV_POWER_MGMT_LIMIT"] = ("gauge", np.full(n, plan.sku.limit))
        if plan.sku.margin_at is not None:
            values["DEV_GPU_TEMP_LIMIT"] = ("gauge", np.round(one.margin))
    if plan.dcgm == "modern":
        soft = (one.bits & 0x20) > 0
        values["DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS"] = ("counter", np.round(_since(one.thermal_ns * soft, 0)))
        values["DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS"] = ("counter", np.round(_since(one.thermal_ns * ~soft, 0)))


def dcgm_page(plan: Plan, node: int, run: Run | None, heat: np.ndarray) -> Page:
    """The page of a node's dcgm-exporter."""
    t = scrape_times(plan, node, "dcgm")
    at = t.astype(int) // plan.collect * plan.collect
    families: dict[str, Family] = {}
    extra = address(plan, node, 9400, "dcgm-exporter")
    for index in range(plan.gpus):
        rng = rng_of(plan.seed, "dcgm", node, index)
        mine = run if index < plan.used else None
        one = gpu(plan, node, index, mine, heat if mine is not None else 0 * heat, plan.fault)
        values = _dcgm_values(plan, one, rng, COMM[mine.mode] if mine is not None else np.zeros(len(one.temp)))
        _dcgm_more(plan, one, values)
        labels = {"gpu": str(index), "UUID": uuid_of(plan, node, index),
                  "pci_bus_id": f"00000000:{BUSES[index]}:00.0", "device": f"nvidia{index}",
                  "modelName": plan.sku.model, plan.host_label: plan.nodes[node],
                  "DCGM_FI_DRIVER_VERSION": "550.90.07", **extra}
        for name, (kind, series) in values.items():
            shown = MODERN.get(name, name) if plan.dcgm == "modern" else name
            row = series[at].astype(float)
            if plan.blanks and name in ("DEV_POWER_USAGE", "DEV_GPU_TEMP", "DEV_SM_CLOCK"):
                bad = rng.random(len(row)) < 0.01
                row = np.where(bad, 9223372036854775794.0, row)
            families.setdefault(name, Family("DCGM_FI_" + shown, kind)).rows.append((labels, row))
    return Page("dcgm", plan.nodes[node], t, list(families.values()))


# --- ports ------------------------------------------------------------------------------------------------------------
def ports_of(plan: Plan) -> list[str]:
    """The ports of a node as people name them (device/port, or the interface)."""
    if plan.fabric in ("roce", "ib"):
        return [f"mlx5_{i}/1" for i in range(plan.gpus)]
    if plan.fabric == "efa":
        return [f"rdmap{16 + i * 5}s{27 - (i % 2) * 27}/1" for i in range(4 if plan.sku.name != "h100" else 32)]
    return ["eth0", "eth1"]


def _rates(plan: Plan, node: int, port: int, run: Run | None, runs: list[Run]) -> dict[str, np.ndarray]:
    """Events a second of a port, Poisson by second."""
    n = plan.seconds + 1
    rng = rng_of(plan.seed, "port", node, port)
    comm = COMM[run.mode] if run is not None else np.zeros(n)
    full = {"roce": 18e9, "ib": 20e9, "efa": 3e9, "ethernet": 8e8}[plan.fabric]
    size = {"roce": 4096, "ib": 4096, "efa": 8900, "ethernet": 1400}[plan.fabric]
    bytes_ = (full * comm * rng.normal(1, 0.003) * rng.uniform(0.9, 1.1, n) + rng.uniform(1e3, 3e4, n))
    packets = bytes_ / size
    quiet = np.zeros(n)
    out = {"bytes": bytes_, "packets": packets, "lost": quiet + 0.02 * plan.background, "naks": quiet + 0.01 * plan.background,
           "resent": quiet + 0.02 * plan.background, "timeouts": quiet + 0.005 * plan.background,
           "symbols": quiet + 0.01 * plan.background, "cnp": 40 * comm, "impaired": quiet.copy(),
           "drops": quiet + 0.5 * plan.background, "icrc": quiet.copy()}
    if plan.fabric == "efa":
        out["resent"] = packets * 1e-6
    if plan.congestion is not None:
        a, b = plan.congestion[0], plan.congestion[0] + plan.congestion[1]
        inside = (np.arange(n) >= a) & (np.arange(n) < b)
        out["cnp"] = np.where(inside, out["cnp"] * rng.uniform(20, 60), out["cnp"])
        out["bytes"] = np.where(inside, out["bytes"] * 0.8, out["bytes"])
    if plan.burst is not None and (node, port) == (plan.burst[0], plan.burst[1] % len(ports_of(plan))):
        inside = (np.arange(n) >= plan.burst[2]) & (np.arange(n) < plan.burst[2] + 15)
        out["lost" if plan.fabric != "ethernet" else "drops"] = out["lost"] + 100.0 * inside
    fault = plan.fault
    if fault is not None and fault.kind == "packet_loss":
        _lose(plan, node, port, packets, run, runs, out)
    return {name: values if name in ("bytes", "packets") else rng.poisson(np.maximum(values, 0)).astype(float)
            for name, values in out.items()}


def culprit_port(plan: Plan) -> int:
    """The number of the port that the planted loss is at."""
    assert plan.fault is not None
    return plan.fault.device % len(ports_of(plan))


def _lose(plan: Plan, node: int, port: int, packets: np.ndarray, run: Run | None, runs: list[Run],
          out: dict[str, np.ndarray]) -> None:
    fault = plan.fault
    assert fault is not None
    bad = culprit_port(plan)
    mine = node == fault.node and port == bad
    same_job = run is not None and fault.node in run.job.nodes
    if not same_job:
        return
    on = severity(fault, len(packets))
    peers = [m for m in run.job.nodes if m != fault.node]
    # Packets of all ports of a job are alike, so this port's own are the culprit's.
    lost = packets * fault.size * on
    if plan.fabric == "efa":
        if mine:
            out["resent" if fault.how == "sends" else "lost"] += lost
            if fault.how == "sends":
                out["timeouts"] += lost * 0.01
        elif peers and node in peers:
            if fault.how == "sends":
                out["impaired"] += 0.05 * on / len(peers)
            elif port == bad:
                out["resent"] += lost / len(peers)
        return
    if plan.fabric == "ethernet":
        if mine:
            out["drops"] += lost
        return
    if mine:
        if fault.how == "errors":
            out["icrc"] += lost
            out["symbols"] += lost
        elif fault.how == "receives":
            out["lost"] += lost
            out["icrc"] += 0.2 * lost
        else:
            out["naks"] += lost
            out["resent"] += lost
            out["timeouts"] += 0.02 * lost
    elif peers and node in peers and port == bad and fault.how != "errors":
        if fault.how == "receives":
            out["naks"] += lost / len(peers)
            out["resent"] += lost / len(peers)
            out["timeouts"] += 0.02 * lost / len(peers)
        else:
            out["lost"] += lost / len(peers)


VERBS = {
    "port_data_transmitted_bytes_total": "bytes", "port_data_received_bytes_total": "bytes",
    "symbol_error_total": "symbols", "link_error_recovery_total": None, "link_downed_total": None,
    "port_errors_received_total": "icrc", "port_discards_transmitted_total": None, "port_transmit_wait_total": "cnp",
    "out_of_sequence_packets_received_total": "lost", "packet_sequence_errors_total": "naks",
    "local_ack_timeout_errors_total": "timeouts", "roce_adp_retransmits_total": "resent",
    "np_cnp_packets_sent_total": "cnp", "rp_cnp_packets_handled_total": "cnp",
}
EFA = {"tx_bytes": "bytes", "rx_bytes": "bytes", "tx_pkts": "packets", "rx_pkts": "packets", "rx_drops": "lost",
       "retrans_pkts": "resent", "retrans_timeout_events": "timeouts", "impaired_remote_conn_events": "impaired",
       "rdma_write_bytes": "bytes"}
NET = {"transmit_bytes_total": "bytes", "receive_bytes_total": "bytes", "transmit_packets_total": "packets",
       "receive_packets_total": "packets", "receive_drop_total": "drops", "receive_errs_total": None,
       "transmit_drop_total": None, "carrier_changes_total": None}


def _count(rates: dict[str, np.ndarray], of: str | None, rng: np.random.Generator, at: np.ndarray,
           reset: float | None) -> np.ndarray:
    start = float(rng.integers(0, 200)) if of not in ("bytes", "packets") else float(rng.integers(1e9, 1e13))
    if of is None:
        return np.full(len(at), start)
    full = _since(rates[of], start)
    values = np.floor(full[at])
    if reset is not None:
        after = at >= reset
        values = np.where(after, np.floor(full[at] - full[int(reset)]), values)
    return values


def node_page(plan: Plan, node: int, run: Run | None, runs: list[Run]) -> list[Page]:
    """The pages of a node's node_exporter, and of its EFA exporter where it has one."""
    t = scrape_times(plan, node, "node")
    at = t.astype(int)
    rng = rng_of(plan.seed, "node", node)
    extra = address(plan, node, 9100, "node")
    prefix, table = {"efa": ("node_amazonefa_", EFA), "ethernet": ("node_network_", NET)}.get(
        plan.fabric, ("node_infiniband_", VERBS))
    reset = plan.reset_at if plan.reset_at is not None and node == int(plan.seed) % len(plan.nodes) else None
    families: dict[str, Family] = {}
    for number, port in enumerate(ports_of(plan)):
        device, _, port_number = port.partition("/")
        labels = {"device": device, **({"port": port_number} if port_number else {}), **extra}
        rates = _rates(plan, node, number, run, runs)
        for name, of in table.items():
            family = families.setdefault(name, Family(prefix + name, "counter"))
            family.rows.append((labels, _count(rates, of, rng, at, reset)))
        if plan.fabric in ("roce", "ib"):
            for name, value in (("state_id", 4.0), ("physical_state_id", 5.0), ("rate_bytes_per_second", 5e10)):
                families.setdefault(name, Family(prefix + name, "gauge")).rows.append((labels, np.full(len(at), value)))
        elif plan.fabric == "ethernet":
            families.setdefault("carrier", Family(prefix + "carrier", "gauge")).rows.append((labels, np.ones(len(at))))
    more = _host(plan, node, run, at, extra)
    if plan.fabric == "efa" and plan.address in ("host", "ip"):
        own = {"instance": extra["instance"].replace(":9100", ":9109"), "job": "efa"}
        for family in families.values():
            family.rows = [({**labels, **own}, values) for labels, values in family.rows]
        return [Page("efa", plan.nodes[node], t, list(families.values())), Page("node", plan.nodes[node], t, more)]
    return [Page("node", plan.nodes[node], t, [*families.values(), *more])]


def _host(plan: Plan, node: int, run: Run | None, at: np.ndarray, extra: dict[str, str]) -> list[Family]:
    rng = rng_of(plan.seed, "host", node)
    out = [
        Family("node_boot_time_seconds", "gauge", [(extra, np.full(len(at), round(plan.start_ms / 1000) - 400_000.0))]),
        Family("node_load1", "gauge", [(extra, np.round(rng.uniform(5, 9, len(at)), 2))]),
        Family("node_memory_MemAvailable_bytes", "gauge", [(extra, np.round(rng.uniform(1.0e12, 1.1e12, len(at))))]),
        Family("node_cpu_seconds_total", "counter", [
            ({"mode": mode, "cpu": str(c), **extra}, np.round(1e5 + at * share, 2))
            for c in range(2) for mode, share in (("idle", 0.8), ("user", 0.15), ("system", 0.05))]),
    ]
    if plan.storage and run is not None:
        saving = np.where(run.mode == SAVE, 2e9, 1e6)
        out.append(Family("node_disk_written_bytes_total", "counter",
                          [({"device": "nvme1n1", **extra}, np.round(_since(saving, 1e12)[at]))]))
    return out


# --- trainers ---------------------------------------------------------------------------------------------------------
def trainer_pages(plan: Plan, run: Run) -> list[Page]:
    """The trainer's own series: of all ranks, or of rank 0."""
    job = run.job
    if job.metrics is None:
        return []
    out = []
    for place, node in enumerate(job.nodes):
        ranks = range(plan.used) if job.metrics == "all" else (range(1) if place == 0 else ())
        if len(ranks):
            out.append(_trainer(plan, run, place, node, ranks))
    return [page for page in out if len(page.times)]


def _trainer(plan: Plan, run: Run, place: int, node: int, ranks: range) -> Page:
    job = run.job
    t = scrape_times(plan, node, "trainer")
    seen = (t >= job.starts) & ((t < (job.ends + 20 if job.ends is not None else 1e18)) | job.lingers)
    if job.restart is not None:
        seen &= (run.mode[np.minimum(t.astype(int), len(run.mode) - 1)] != DONE) | (job.ends is not None and t > job.ends)
    t = t[seen]
    at = t.astype(int)
    rng = rng_of(plan.seed, "trainer", node)
    last = run.last(t)
    known = last >= 0
    pick = np.maximum(last, 0)
    extra = {k: v for k, v in address(plan, node, 8000, "trainers").items() if k != "node"}
    exported = bool(extra) and plan.seed % 2 == 0
    families: dict[str, Family] = {}

    def add(name: str, kind: str, labels: dict[str, str], values: np.ndarray) -> None:
        families.setdefault(name, Family("greylag_train_" + name, kind)).rows.append((labels, values))

    for local in ranks:
        rank = place * plan.used + local
        labels = {"rank": str(rank), "node": plan.nodes[node], "gpu": str(local), **extra}
        labels |= {"exported_job": job.name} if exported else {"job": job.name}
        nothing = np.where(known, 0.0, np.nan)
        took = run.step_took[pick] + nothing if len(run.step_took) else nothing
        add("step", "gauge", labels, np.where(known, run.step_number[pick], job.first_step if job.starts < 0 else 0))
        add("last_step_timestamp_seconds", "gauge", labels, np.round(plan.start_ms / 1000 + run.step_ends[pick], 3) + nothing)
        add("step_seconds", "gauge", labels, np.round(took, 4))
        add("loss", "gauge", labels, np.round(run.losses[pick], 6) + nothing)
        add("grad_norm", "gauge", labels, np.round(0.5 + 0.05 * rng.standard_normal(len(t)), 4))
        add("tokens_per_second", "gauge", labels, np.round(4e5 / took, 1))
        add("comm_wait_seconds", "gauge", labels, np.round(took * rng.uniform(0.1, 0.2, len(t)), 4))
        if job.seq:
            # 40 collectives a step, in time between two steps.
            begun = run.step_ends[pick] - run.step_took[pick]
            share = np.clip((t - run.step_ends[pick]) / np.maximum(run.step_took[pick], 1e-3), 0, 1) * (run.mode[at] == 3)
            seq = 40 * (last + 1) + np.floor(39 * share) + 0 * begun
            if run.hung is not None:
                stop = 40 * (int(run.last(np.array([run.hung]))[0]) + 1) + 17
                seq = np.where(t >= run.hung, stop - (rank == run.behind), np.minimum(seq, stop))
            add("collective_seq", "gauge", labels, seq + 0.0)
        if job.phases:
            for phase in ("init", "warmup", "train", "eval", "checkpoint", "done"):
                now = np.array([PHASE.get(int(m), "init") == phase and m != IDLE for m in run.mode[at]], float)
                if job.lingers:  # nobody says that it is over
                    over = run.mode[at] == DONE
                    now = np.where(over, float(phase == "train"), now)
                add("phase", "gauge", {**labels, "phase": phase}, now if job.one_hot else np.where(now > 0, 1.0, np.nan))
    return Page("trainer", plan.nodes[node], t, list(families.values()))


def all_pages(plan: Plan, runs: list[Run]) -> list[Page]:
    """All targets of the recording."""
    pages: list[Page] = []
    heats = {id(run): heat_of(plan, run) for run in runs}
    cold = heat_of(plan, None)
    for node in range(len(plan.nodes)):
        run = next((r for r in runs if node in r.job.nodes), None)
        pages.append(dcgm_page(plan, node, run, heats[id(run)] if run is not None else cold))
        pages += node_page(plan, node, run, runs)
    for run in runs:
        pages += trainer_pages(plan, run)
    return pages
