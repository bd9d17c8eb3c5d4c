"""Writes the dashboards, Grafana's provisioning files and a compose file into a folder, or says which are stale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import fleet_glance

SOURCE_UID = "greylag"
GREYLAG_URL = "http://host.docker.internal:9470"


def _yaml(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False)


def documents() -> dict[str, str]:
    """Relative path → content of every file."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    source = {"name": "Greylag", "uid": SOURCE_UID, "type": "prometheus", "access": "proxy", "url": GREYLAG_URL,
              "isDefault": True, "editable": True, "jsonData": {"timeInterval": "15s", "httpMethod": "POST"}}
    provider = {"name": "greylag", "folder": "Greylag", "type": "file", "disableDeletion": True,
                "options": {"path": "/etc/grafana/dashboards"}}
    compose = {"services": {"grafana": {
        "image": "grafana/grafana:12.2.0",
        "ports": ["127.0.0.1:3000:3000"],
        "extra_hosts": ["host.docker.internal:host-gateway"],
        "volumes": ["./provisioning:/etc/grafana/provisioning:ro", "./dashboards:/etc/grafana/dashboards:ro"],
    }}}
    return {
        "dashboards/greylag-fleet.json": encoder.encode(fleet_glance.model()) + "\n",
        "provisioning/datasources/greylag.yaml": _yaml({"apiVersion": 1, "datasources": [source]}),
        "provisioning/dashboards/greylag.yaml": _yaml({"apiVersion": 1, "providers": [provider]}),
        "compose.yaml": _yaml(compose),
    }


def write_all(folder: Path) -> list[Path]:
    """Writes all files; gives their paths."""
    written = []
    for name, text in documents().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def stale(folder: Path) -> list[str]:
    """Names of files that are missing or differ from what would be written."""
    return [name for name, text in documents().items()
            if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text]
