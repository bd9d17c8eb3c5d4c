"""The catalogue of node types: what it holds, how it refuses, and the identities of the parts of each node."""

from __future__ import annotations

import numpy as np
import pytest

from core.errors import BadInput, ConfigError
from fleet.hardware import CATALOGUE, NODE_TYPES, build_nodes, kind_named, load_catalogue

START = 1_767_225_600_000

# facts/signals.md §1 and AWS's documentation: GPUs, NICs, Gb/s of all NICs, board power limit, fabric, NVLink nodes.
KINDS = [
    ("h100-8x-roce", 8, 8, 3200, 700, "roce", 1),
    ("p4d.24xlarge", 8, 4, 400, 400, "efa", 1),
    ("p4de.24xlarge", 8, 4, 400, 400, "efa", 1),
    ("p5.48xlarge", 8, 32, 3200, 700, "efa", 1),
    ("p5e.48xlarge", 8, 32, 3200, 700, "efa", 1),
    ("p5en.48xlarge", 8, 16, 3200, 700, "efa", 1),
    ("p6-b200.48xlarge", 8, 8, 3200, 1000, "efa", 1),
    ("gb200-ultraserver", 4, 4, 1600, 1200, "efa", 18),
    ("trn2.48xlarge", 16, 16, 3200, 500, "efa", 1),
]


@pytest.mark.parametrize(("name", "gpus", "nics", "gigabits", "limit", "fabric", "domain"), KINDS)
def test_each_kind_has_the_parts_of_the_real_one(name, gpus, nics, gigabits, limit, fabric, domain):
    """GPUs, NICs, their rate, the power limit, the fabric and the size of the NVLink domain are those of the real machine."""
    kind = NODE_TYPES[name]
    found = (kind.gpus, kind.nics, kind.nics * kind.nic_bytes_per_second * 8e-9, kind.limit_watts, kind.fabric, kind.nvlink_nodes)
    assert found == (gpus, nics, gigabits, limit, fabric, domain)


def test_the_catalogue_has_no_kind_that_is_not_tested_here():
    """Whoever adds a kind says here what it is made of."""
    assert [k[0] for k in KINDS] == list(NODE_TYPES)


@pytest.mark.parametrize("kind", NODE_TYPES.values(), ids=lambda k: k.name)
def test_words_of_a_kind_are_words_that_faults_may_need(kind):
    """What a kind has is said in the words of `FaultPlugin.needs`, its vendor's and its fabric's among them."""
    words = {"roce", "infiniband", "efa", "nvlink", "nvlink3", "nvlink4", "nvlink5", "neuronlink", "lustre", "hbm", "nvidia",
             "neuron", "trainer", "inference"}
    assert {kind.vendor, kind.fabric} < kind.has <= words


@pytest.mark.parametrize("kind", NODE_TYPES.values(), ids=lambda k: k.name)
def test_exporters_are_those_of_the_vendor(kind):
    """NVIDIA's parts have dcgm-exporter, Neuron's have its monitor, EFA has its exporter, RoCE has not."""
    assert ("dcgm" in kind.exporters) == (kind.vendor == "nvidia")
    assert ("neuron" in kind.exporters) == (kind.vendor == "neuron")
    assert ("efa" in kind.exporters) == (kind.fabric == "efa")


def _changed(tmp_path, old, new):
    text = CATALOGUE.read_text()
    assert old in text
    path = tmp_path / "catalogue.yaml"
    path.write_text(text.replace(old, new, 1))
    return path


BAD = [
    ("  cpus: 4\n", "  cpus: four\n", "cpus"),
    ("  cpus: 4\n", "  cpus: 4\n  colour: red\n", "colour"),
    ("  cpus: 4\n", "", "cpus"),
    ("  cpus: 4\n", "  cpus: 0\n", "above 0"),
    ("  fabric: roce\n", "  fabric: token-ring\n", "allowed are: roce, infiniband, efa"),
    ("  vendor: nvidia\n", "  vendor: acme\n", "allowed are: nvidia, neuron"),
    ('  buses: ["53", "64",', '  buses: ["53", "53",', "an address of its own"),
    ("  nic_names: [mlx5_0, mlx5_1,", "  nic_names: [mlx5_0, mlx5_0,", "a name of its own"),
    ('  nic_buses: ["18", "28",', '  nic_buses: ["28",', "8 are needed, as many as nic_names"),
    ("  least_watts: 200.0", "  least_watts: 900.0", "between idle_watts and limit_watts"),
    ("  idle_clock_mhz: 345", "  idle_clock_mhz: 3450", "below max_clock_mhz"),
    ("  like: h100-8x-roce\n", "  like: p9\n", "kinds above it are: h100-8x-roce"),
    ("h100-8x-roce:\n", "h100-8x-roce: 3\nother:\n", "a mapping is needed"),
]


@pytest.mark.parametrize(("old", "new", "says"), BAD)
def test_a_bad_catalogue_is_refused_in_one_sentence(tmp_path, old, new, says):
    """Unknown keys, missing keys, wrong types and impossible values name the file and say what is allowed."""
    path = _changed(tmp_path, old, new)
    with pytest.raises(ConfigError) as caught:
        load_catalogue(path)
    text = str(caught.value)
    assert says in text
    assert "catalogue.yaml" in text
    assert "\n" not in text


def test_an_empty_catalogue_is_refused(tmp_path):
    """A catalogue without a kind is no catalogue."""
    path = tmp_path / "catalogue.yaml"
    path.write_text("[]\n")
    with pytest.raises(ConfigError, match="a mapping of kinds of node is needed"):
        load_catalogue(path)


def test_an_unknown_kind_is_one_sentence_with_the_nearest_name():
    """A mistyped kind is refused with the kinds that there are."""
    with pytest.raises(BadInput, match=r"p5en\.48xlarge.*did you mean"):
        kind_named("p5n.48xlarge")


def _nodes(kind, nodes=40, spares=2, seed=3):
    return build_nodes(kind, nodes, spares, START, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", NODE_TYPES.values(), ids=lambda k: k.name)
def test_every_part_has_an_identity_that_no_other_part_has(kind):
    """UUIDs, serials, GUIDs and PCI addresses are unique, over the fleet or in their node."""
    made = _nodes(kind)
    for parts in ("uuids", "serials", "nic_guids"):
        every = [one for node in made for one in getattr(node, parts)]
        assert len(set(every)) == len(every) > 0
    assert len({node.serial for node in made}) == len(made)
    addresses = [*(kind.pci(g) for g in range(kind.gpus)), *(kind.nic_pci(n) for n in range(kind.nics))]
    assert len(set(addresses)) == len(addresses)


def test_gb200_nodes_share_nvlink_domains_of_eighteen():
    """Nodes fill their rack, which is one NVLink domain; other kinds share none."""
    made = _nodes(NODE_TYPES["gb200-ultraserver"], 36, 4)
    assert [sum(n.nvlink_domain == d for n in made) for d in ("nvl-1", "nvl-2", "nvl-3")] == [18, 18, 4]
    assert all(n.rack == f"rack-{n.nvlink_domain[4:]}" for n in made)
    assert all(n.nvlink_domain is None for n in _nodes(NODE_TYPES["p5.48xlarge"]))


@pytest.mark.parametrize(("total", "racks"), [(1, 1), (2, 2), (3, 2), (4, 2), (18, 2), (66, 5)])
def test_nodes_are_spread_over_racks(total, racks):
    """Small fleets have two racks, large ones as many as the nodes need."""
    made = build_nodes(NODE_TYPES["h100-8x-roce"], total, 0, START, np.random.default_rng(1))
    assert len({n.rack for n in made}) == racks


def test_settings_name_what_configuration_drift_can_change():
    """The keys are those of the knobs, with a value for each kind."""
    kind = NODE_TYPES["h100-8x-roce"]
    assert kind.settings["power_limit_watts"] == "700"
    assert set(kind.settings) == {"driver", "vbios", "firmware", "kernel", "mtu", "governor", "ecc", "persistence",
                                  "power_limit_watts", "locked_clock_mhz", "nccl"}
