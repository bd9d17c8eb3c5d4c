"""Grafana dashboards as code: `fleet_glance` is the board, `build` writes it with its provisioning."""
