"""A node's BMC by ipmi_exporter: inlet temperature, fans, power, event log.

The target is the node: a scrape by `?target=<BMC>` needs a relabelling that names it. Old names of the power and of the
event log are read as well. A sensor that has no value is NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from collectors.meaning import Meaning, Row, gauge
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

PREFIX = "ipmi_"
INLET = re.compile(r"inlet|ambient", re.IGNORECASE)
FANS: dict[str, Meaning] = {
    "ipmi_fan_speed_rpm": gauge("cooling.fan_rpm"),
    "ipmi_fan_speed_ratio": gauge("cooling.fan_ratio"),
    "ipmi_fan_speed_state": gauge("cooling.fan_state"),
}
NODE: dict[str, Meaning] = {
    "ipmi_dcmi_power_consumption_current_watts": gauge("node.power_watts"),
    "ipmi_dcmi_power_consumption_watts": gauge("node.power_watts"),
    "ipmi_sel_entries_count": gauge("node.event_log_entries"),
    "ipmi_sel_logs_count": gauge("node.event_log_entries"),
}
_TEMPERATURE, _INLET = "ipmi_temperature_celsius", gauge("node.inlet_temperature_celsius")


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of an ipmi_exporter series."""
    name, sensor = series.name, series.label("name")
    if name in NODE:
        return NODE[name].ref(Target("node", target.node))
    if name in FANS:
        return FANS[name].ref(Target("cooling", target.node, sensor)) if sensor else None
    if name == _TEMPERATURE and INLET.search(sensor):
        return _INLET.ref(Target("node", target.node))
    return None


def described() -> Iterator[Row]:
    """The rows for the docs."""
    yield Row(f'{_TEMPERATURE}{{name=~".*(inlet|ambient).*"}}', _INLET, "node")
    yield from (Row(name, meaning, "node") for name, meaning in NODE.items())
    yield from (Row(name, meaning, "fan (`name`)") for name, meaning in FANS.items())


PLUGIN = SourcePlugin("ipmi", map_series=map_series, prefixes=(PREFIX,))
