"""The whole path over the bundled fleet: a hot GPU is reset, tested, found bad and replaced by a spare that was tested."""

from __future__ import annotations

import json

import pytest

from app.virtual import VirtualSite
from core.types import Target
from remediation.policy import parse_policy

POLICY = """
version: 1
mode: act
limits: {concurrent_nodes: 2, pool_nodes: 3, pool_ratio: 0.1, per_hour: 20, per_job_per_day: 20, spare_floor: 0, cooldown_seconds: 600}
spares: {diagnose_every_seconds: 900, unchecked_max_seconds: 7200}
rules:
- name: hot
  match: {fault: [thermal_throttle], scope: [device, node], confidence_min: 0.7, duration_seconds_min: 60}
  attempts:
  - do: [drain, reset_gpu, diagnose, undrain, {resume_job: {mode: full}}]
  - do: [drain, replace, {resume_job: {mode: full}}]
  verify: {quiet_seconds: 120, step_time_ratio_max: 1.05, deadline_seconds: 600}
  finally: escalate
  weigh: false  # 30 % of a job of four nodes is waited for; this test is about the tests
"""
HEALTHY_MS, MOST_MS = 1_200_000, 3_000_000  # both spares were tested before the fault


@pytest.mark.evaluate
def test_a_hot_gpu_is_diagnosed_and_a_tested_spare_takes_its_place() -> None:
    """The detector is confirmed, the silence of the reset opens nothing, spares are tested one by one, and the job is back."""
    site = VirtualSite(nodes=4, spares=2, seed=3)
    assert site.brain.engine is not None
    site.brain.engine.policy = parse_policy(POLICY)
    start = site.world.now_ms
    site.run_until(start + HEALTHY_MS)
    site.world.inject("thermal_throttle", Target("gpu", "n03", "2"), 0.3)
    site.run_until(start + MOST_MS, lambda: any('"event":"resolved"' in line for line in site.lines[-20:]))
    told = [json.loads(line) for line in site.lines]
    opened = [r["incident"]["fault"] for r in told if r["type"] == "incident" and r["event"] == "opened"]
    assert opened == ["thermal_throttle"]
    ends = [(r["action"], r["outcome"]) for r in told if r["type"] == "action" and r["outcome"]["state"] in ("DONE", "FAILED")]
    [accused] = [o for a, o in ends if a["kind"] == "diagnose" and a["args"]["fault"] == "thermal_throttle"]
    assert accused["reason"] == "diagnose_confirmed"
    assert accused["detail"] == "gpu_pressure: throttled by heat on GPU 2"
    assert site.brain.telemetry.get("greylag_diagnoses_total", fault="thermal_throttle", result="confirmed") == 1
    tested = [a["target"]["node"] for a, o in ends if a["incident"].startswith("spare-") and o["state"] == "DONE"]
    assert tested[:2] == ["n05", "n06"]
    assert [r["incident"]["state"] for r in told if r["type"] == "incident" and r["event"] == "resolved"] == ["resolved"]
    assert site.door.nodes()["n03"].state != "in_service"
