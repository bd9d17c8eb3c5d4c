"""A node's BMC by the two common spellings of redfish exporters: inlet temperature and fans.

`redfish_chassis_…` names a sensor by `sensor` or `fan`, `redfish_thermal_…` by `name`. The target is the node, as for
ipmi_exporter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from collectors.meaning import Meaning, Row, gauge, labels_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

PREFIX = "redfish_"
_INLET_NAME = re.compile(r"inlet|ambient", re.IGNORECASE)
TEMPERATURES = dict.fromkeys(("redfish_chassis_temperature_celsius", "redfish_thermal_temperatures_reading_celsius"),
                             gauge("node.inlet_temperature_celsius"))
FANS: dict[str, Meaning] = {
    "redfish_chassis_fan_rpm": gauge("cooling.fan_rpm"),
    "redfish_thermal_fans_reading_rpm": gauge("cooling.fan_rpm"),
    "redfish_chassis_fan_rpm_percentage": gauge("cooling.fan_ratio", 0.01),
}


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a redfish exporter's series."""
    labels = labels_of(series)
    if series.name in TEMPERATURES:
        named = _INLET_NAME.search(labels.get("sensor") or labels.get("name", ""))
        return TEMPERATURES[series.name].ref(Target("node", target.node)) if named else None
    fan = labels.get("fan") or labels.get("name") or labels.get("fan_id")
    meaning = FANS.get(series.name)
    return meaning.ref(Target("cooling", target.node, fan)) if meaning and fan else None


def described() -> Iterator[Row]:
    """The rows for the docs."""
    yield from (Row(f'{name}{{sensor|name=~".*(inlet|ambient).*"}}', meaning, "node") for name, meaning in TEMPERATURES.items())
    yield from (Row(name, meaning, "fan (`fan` or `name`)") for name, meaning in FANS.items())


PLUGIN = SourcePlugin("redfish", map_series=map_series, prefixes=(PREFIX,))
