"""Couriers of these tests look often, so that no test waits for a pause that is of no matter to it."""

from __future__ import annotations

import pytest

from app import lanes, outbox


@pytest.fixture(autouse=True)
def quick_couriers(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Short looks; short pauses too where real threads deliver to real receivers."""
    monkeypatch.setattr(outbox, "LOOK_SECONDS", 0.05)
    if request.path.name == "test_alertmanager_webhook.py":
        monkeypatch.setattr(lanes, "FIRST_PAUSE_SECONDS", 0.05)
