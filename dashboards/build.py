"""Writes the dashboards, Grafana's provisioning files and a compose file into a folder, or says which are stale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import fleet_glance

SOURCE_UID = "greylag"
GREYLAG_URL = "http://127.0.0.1:9470"
GRAFANA_IMAGE = "grafana/grafana:12.2.0"
HOME = "/etc/grafana/dashboards/greylag-fleet.json"


def _yaml(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False)


def documents(greylag_url: str = GREYLAG_URL) -> dict[str, str]:
    """Relative path → content of every file. greylag_url: where Grafana finds Greylag's API."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    source = {"name": "Greylag", "uid": SOURCE_UID, "type": "prometheus", "access": "proxy", "url": greylag_url,
              "isDefault": True, "editable": True, "jsonData": {"timeInterval": "15s", "httpMethod": "POST"}}
    provider = {"name": "greylag", "folder": "Greylag", "type": "file", "disableDeletion": True,
                "options": {"path": "/etc/grafana/dashboards"}}
    return {
        "dashboards/greylag-fleet.json": encoder.encode(fleet_glance.model()) + "\n",
        "provisioning/datasources/greylag.yaml": _yaml({"apiVersion": 1, "datasources": [source]}),
        "provisioning/dashboards/greylag.yaml": _yaml({"apiVersion": 1, "providers": [provider]}),
        "compose.yaml": _yaml(_compose()),
    }


def _compose() -> dict[str, Any]:
    """Grafana on the host's own network: Greylag listens on loopback alone, which no bridged container reaches."""
    return {"services": {"grafana": {
        "image": GRAFANA_IMAGE,
        "network_mode": "host",
        "environment": {
            "GF_SERVER_HTTP_ADDR": "127.0.0.1",
            "GF_SERVER_HTTP_PORT": "3000",
            "GF_AUTH_ANONYMOUS_ENABLED": "true",
            "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
            "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": HOME,
            "GF_ANALYTICS_REPORTING_ENABLED": "false",
            "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        },
        "volumes": ["./provisioning:/etc/grafana/provisioning:ro", "./dashboards:/etc/grafana/dashboards:ro"],
    }}}


def write_all(folder: Path, greylag_url: str = GREYLAG_URL) -> list[Path]:
    """Writes all files; gives their paths."""
    written = []
    for name, text in documents(greylag_url).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def stale(folder: Path) -> list[str]:
    """Names of files that are missing or differ from what would be written."""
    return [name for name, text in documents().items()
            if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text]
