"""Receives what a site pushes: Prometheus remote write, OTLP, Loki, syslog. `PushReceiver` is the way in (see its module)."""

from collectors.push.receiver import Mark, PushReceiver

__all__ = ["Mark", "PushReceiver"]
