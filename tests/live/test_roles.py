"""A role that is run by itself, without the supervisor."""

from __future__ import annotations

import signal

import pytest

from tests.live.site import Greylag


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_an_owner_alone_ends_with_status_0(how, tmp_path, free_port):
    """A role run by itself (systemd, Kubernetes) ends in order as well, without a traceback."""
    greylag = Greylag(tmp_path, free_port())
    greylag.start("--role", "owner")
    try:
        assert greylag.stop(how) == 0
    finally:
        greylag.close()
    assert "Traceback" not in greylag.log()
    assert "Aborted" not in greylag.log()
