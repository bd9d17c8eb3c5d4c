"""What has a page and is no node: the head node of the scheduler, and the switches."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = "head"


@dataclass(slots=True)
class Station:
    """index: its row in the values of its sheet. up: whether it answers."""

    index: int
    name: str
    up: bool = True
