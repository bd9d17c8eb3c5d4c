"""Where the owner listens: a fixed port, or with port 0 the one that a crashed owner had."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from app.owner import bound
from app.processes import free_port
from core.errors import Refused

BEFORE = [
    ("no owner before", None, False),
    ("an owner before", "http://127.0.0.1:{port}", True),
    ("a file that is none", "nothing", False),
    ("a port that is none", "http://127.0.0.1:x", False),
]


@pytest.mark.parametrize(("url", "same"), [row[1:] for row in BEFORE], ids=[row[0] for row in BEFORE])
def test_port_0_takes_the_port_of_the_owner_before(tmp_path: Path, url: str | None, same: bool) -> None:
    """Living collectors know that address; without it any free port will do."""
    port = free_port()
    file = tmp_path / "owner.json"
    if url is not None:
        file.write_text(json.dumps({"url": url.format(port=port), "pid": 1}))
    with bound("127.0.0.1", 0, file) as listener:
        got = listener.getsockname()[1]
    assert got > 0
    assert (got == port) is same


def test_a_port_that_another_took_is_left(tmp_path: Path) -> None:
    """The owner listens elsewhere; a fixed port that is taken is refused."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        (tmp_path / "owner.json").write_text(json.dumps({"url": f"http://127.0.0.1:{port}"}))
        with bound("127.0.0.1", 0, tmp_path / "owner.json") as listener:
            assert listener.getsockname()[1] != port
        with pytest.raises(Refused, match="address_in_use"):
            bound("127.0.0.1", port, tmp_path / "owner.json")
