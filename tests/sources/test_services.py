"""Schedulers, inference servers and switches: pages to (signal, node, part, value, counter), traps included."""

from __future__ import annotations

import pytest

from collectors.sources.slurm import state_of
from core.protocols import TargetInfo
from tests import needs
from tests.sources.captured import TARGET, page, told

SWITCH = TargetInfo("snmp/leaf1", {"job": "snmp", "instance": "leaf1"}, "leaf1")
P = 'ifIndex="7",ifName="Ethernet7",ifDescr="Eth 7",ifAlias="n3"'
V = 'engine="0",model_name="llama"'
PAGES = [
    # Slurm: the status is a label, the node another than the exporter's; a partition's counts overlap
    ('slurm_node_status{node="n3",partition="gpu",status="drained"} 1\nslurm_node_status{node="n4",partition="gpu",status="mixed"} 1\n'
     'slurm_node_status{exported_node="n5",node="head",partition="gpu",status="idle*"} 1\n', TARGET,
     [("node.scheduler_state", "n3", None, 1, False), ("node.scheduler_state", "n4", None, 0, False),
      ("node.scheduler_state", "n5", None, 2, False)]),
    ('slurm_nodes_drain 3\nslurm_nodes_down_total 1\nslurm_nodes_maint 0\nslurm_nodes_drain{partition="gpu"} 3\nslurm_nodes_idle 9\n',
     TARGET,
     [("fleet.nodes_down", None, "slurm", 1, False), ("fleet.nodes_drained", None, "slurm", 3, False),
      ("fleet.nodes_in_maintenance", None, "slurm", 0, False)]),
    # Kubernetes: cordoned is 1, not ready is 2, the row that is 1 while all is well says nothing
    ('kube_node_spec_unschedulable{node="n3"} 1\nkube_node_status_condition{node="n3",condition="Ready",status="true"} 0\n'
     'kube_node_status_condition{node="n3",condition="Ready",status="false"} 0\n'
     'kube_node_status_condition{node="n3",condition="Ready",status="unknown"} 1\n'
     'kube_node_status_condition{node="n3",condition="MemoryPressure",status="true"} 1\n', TARGET,
     [("node.scheduler_state", "n3", None, 0, False), ("node.scheduler_state", "n3", None, 1, False),
      ("node.scheduler_state", "n3", None, 2, False)]),
    # pods of a training job; others and the scrape's own pod label are not looked at
    ('kube_pod_status_phase{namespace="t",pod="llama-worker-0",phase="Running"} 1\n'
     'kube_pod_status_phase{namespace="t",pod="llama-worker-1",phase="Running"} 1\n'
     'kube_pod_status_phase{namespace="t",pod="llama-worker-1",phase="Succeeded"} 0\n'
     'kube_pod_status_phase{namespace="t",pod="web-7d9f-abcde",phase="Running"} 1\n'
     'kube_pod_container_status_restarts_total{exported_pod="bert-node-0-1-x7k2p",pod="ksm-0",container="a"} 4\n', TARGET,
     [("job.pods_running", None, "llama", 1, False), ("job.pods_running", None, "llama", 1, False),
      ("job.restarts_per_second", None, "bert", 4, True)]),
    # vLLM: sum and count of histograms, both generations of names, buckets left out
    (f'vllm:time_to_first_token_seconds_sum{{{V}}} 45.5\nvllm:time_to_first_token_seconds_count{{{V}}} 100\n'
     f'vllm:time_to_first_token_seconds_bucket{{{V},le="0.5"}} 8\nvllm:num_requests_waiting{{{V}}} 2\n', TARGET,
     [("job.first_token_time_ratio", "n1", "llama@n1:9400", 45.5, True), ("job.first_tokens_per_second", "n1", "llama@n1:9400", 100, True),
      ("job.requests_waiting", "n1", "llama@n1:9400", 2, False)]),
    (f'vllm:inter_token_latency_seconds_sum{{{V}}} 2\nvllm:time_per_output_token_seconds_sum{{{V}}} 99\n', TARGET,
     [("job.token_time_ratio", "n1", "llama@n1:9400", 2, True)]),
    (f'vllm:time_per_output_token_seconds_sum{{{V}}} 99\nvllm_gpu_cache_usage_perc{{{V},pod="llama-0"}} 0.4\n', TARGET,
     [("job.kv_cache_ratio", "n1", "llama@llama-0", 0.4, False), ("job.token_time_ratio", "n1", "llama@n1:9400", 99, True)]),
    ("tgi_queue_size 3\ntgi_request_queue_duration_sum 1.5\ntgi_request_success 7\ntgi_request_duration_count 7\n", TARGET,
     [("job.queue_time_ratio", "n1", "n1:9400", 1.5, True), ("job.requests_per_second", "n1", "n1:9400", 7, True),
      ("job.requests_waiting", "n1", "n1:9400", 3, False)]),
    # Triton: microseconds and milliseconds; its GPU metrics are dcgm-exporter's business
    ('nv_inference_request_duration_us{model="m",version="1"} 11110\nnv_inference_first_response_histogram_ms_sum{model="m",version="1"} 10771\n'
     'nv_inference_first_response_histogram_ms{model="m",version="1",le="100"} 8\nnv_gpu_power_usage{gpu_uuid="GPU-1"} 300\n'
     'nv_inference_request_summary_us_sum{model="m",version="1"} 11110\n', TARGET,
     [("job.first_token_time_ratio", "n1", "m@n1:9400", 10.771, True), ("job.request_time_ratio", "n1", "m@n1:9400", 0.01111, True)]),
    # switch ports by SNMP: up is 1, down is 2 to 7; 32-bit counters and ports without a cable are left out
    (f"ifHCInOctets{{{P}}} 5\nifInOctets{{{P}}} 5\nifInErrors{{{P}}} 1\nifOutDiscards{{{P}}} 2\nifHighSpeed{{{P}}} 400000\nifOperStatus{{{P}}} 2\n"
     'ifHCInOctets{ifName="Vlan10"} 5\nifHCInOctets{ifName="lo0"} 5\nifHCInOctets{ifName="Port-Channel3"} 5\nifHCInOctets{ifName="Management1"} 5\n',
     SWITCH,
     [("link.discards_per_second", "leaf1", "Ethernet7", 2, True), ("link.errors_per_second", "leaf1", "Ethernet7", 1, True),
      ("link.rate_bytes_per_second", "leaf1", "Ethernet7", 5e10, False), ("link.received_bytes_per_second", "leaf1", "Ethernet7", 5, True),
      ("link.up", "leaf1", "Ethernet7", 0, False)]),
    (f"ifOperStatus{{{P}}} 1\n", SWITCH, [("link.up", "leaf1", "Ethernet7", 1, False)]),
    (f'ifOperStatus{{{P},ifOperStatus="up"}} 0\nifOperStatus{{{P},ifOperStatus="down"}} 1\n', SWITCH,
     [("link.up", "leaf1", "Ethernet7", 0, False)]),
    # gnmic: gauges that count, prefixes, the switch in a label, states as labels
    ('# TYPE interfaces_interface_state_counters_in_octets gauge\n'
     'interfaces_interface_state_counters_in_octets{interface_name="ethernet-1/1",source="leaf2:57400"} 350\n'
     'gnmic_ports_openconfig_interfaces_interfaces_interface_state_counters_in_errors{interface_name="ethernet-1/1",source="leaf2:57400"} 1\n'
     'gnmic_interfaces_interface_ethernet_state_counters_in_mac_pause_frames{interface_name="ethernet-1/1",source="leaf2"} 9\n'
     'interfaces_interface_state_counters_in_octets{interface_name="mgmt0",source="leaf2:57400"} 350\n'
     'interfaces_interface_state_counters_in_unicast_pkts{interface_name="ethernet-1/1",source="leaf2"} 4\n', TARGET,
     [("link.errors_per_second", "leaf2", "ethernet-1/1", 1, True), ("link.pause_received_per_second", "leaf2", "ethernet-1/1", 9, True),
      ("link.received_bytes_per_second", "leaf2", "ethernet-1/1", 350, True)]),
    ('interfaces_interface_state_oper_status{interface_name="swp1",oper_status="UP",source="leaf2"} 1\n'
     'interfaces_interface_state_oper_status{interface_name="swp2",oper_status="LOWER_LAYER_DOWN",source="leaf2"} 1\n', TARGET,
     [("link.up", "leaf2", "swp1", 1, False), ("link.up", "leaf2", "swp2", 0, False)]),
    # the fabric: names come from series of their own; without them the GUID says which
    ('infiniband_switch_port_symbol_error_total{guid="0x1",port="7"} 2\ninfiniband_switch_info{guid="0x1",lid="4",switch="ib-1"} 1\n'
     'infiniband_switch_port_symbol_error_total{guid="0x2",port="7"} 3\ninfiniband_hca_port_link_downed_total{guid="0x3",port="1"} 1\n'
     'infiniband_hca_info{guid="0x3",hca="n3 HCA-1",lid="5"} 1\ninfiniband_switch_port_receive_switch_relay_errors_total{guid="0x1",port="7"} 7\n',
     TARGET,
     [("link.downed_per_second", "n3", "HCA-1/1", 1, True), ("link.errors_per_second", "ib-1", "7", 2, True),
      ("link.errors_per_second", None, "0x2/7", 3, True)]),
]


@pytest.mark.parametrize(("text", "target", "expected"), PAGES)
def test_a_page(text, target, expected) -> None:
    """Units, parts, and what only looks like something."""
    assert told(text, target) == expected


@pytest.mark.parametrize(("status", "state"), [
    ("idle", 0), ("MIXED", 0), ("alloc", 0), ("allocated+", 0), ("mixed-", 0), ("completing", 0), ("planned", 0), ("reserved", 0),
    ("drain", 1), ("drained", 1), ("drng", 1), ("draining@", 1), ("maint", 1), ("idle$", 1), ("failing", 1), ("idle@", 1), ("reboot^", 1),
    ("down", 2), ("down*", 2), ("idle*", 2), ("drained*", 2), ("unk", 2), ("idle~", 2), ("idle%", 2), ("no_respond", 2), ("inval", 2),
    ("powering_down", 2),
])
def test_slurms_states(status, state) -> None:
    """Long, short and marked words of sinfo."""
    assert state_of(status) == state


def test_engines_of_one_server_are_added() -> None:
    """Data-parallel engines report one by one; the endpoint is their sum."""
    layout, _ = page("".join(f'vllm:num_requests_running{{engine="{e}",model_name="m"}} 4\n' for e in (0, 1)))
    assert [(r.signal, r.target.job) for r in layout.signals] == [("job.requests_running", "m@n1:9400")] * 2


def test_both_ends_of_a_cable_in_a_real_fabric() -> None:
    """Switch ports under their switch's name, adapters under their host's, each known by GUID and port."""
    layout, _ = page(needs.shared("samples/infiniband/expected_infiniband_exporter_test.prom").read_text())
    rates = {(r.target.node, r.target.device, r.target.id) for r in layout.signals if r.signal == "link.rate_bytes_per_second"}
    assert ("ib-i1l1s01", "10", "0x7cfe9003009ce5b0/10") in rates
    assert ("o0001", "HCA-1/1", "0x7cfe9003003b4bde/1") in rates
    assert len(rates) == 7
