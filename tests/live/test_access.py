"""A Greylag on every address with tokens: its own processes still hand over, people and programs need what their role allows."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from app import cli
from app.processes import free_port
from tests.live.site import Greylag, wait_for
from tests.notify.receivers import Receiver


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def command(monkeypatch: pytest.MonkeyPatch, greylag: Greylag, *words: str) -> int | str | None:
    """The exit status of `greylag incidents ...` against it, in this process."""
    monkeypatch.setattr(sys, "argv", ["greylag", "incidents", *words, "--url", greylag.url])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def site(folder: Path, exporter: str, push: int, **more: Any) -> Greylag:
    """Listening everywhere, with a viewer and a sender."""
    port = free_port()
    return Greylag(folder, port, listen=f"0.0.0.0:{port}", push_listen=f"0.0.0.0:{push}",
                   tokens=[{"name": name, "role": role, "sha256": digest(name)} for name, role in (("eve", "viewer"), ("am", "sender"))],
                   scrape_configs=[{"job_name": "node", "scrape_interval": "1s", "scrape_timeout": "1s", "static_configs": [{"targets": [exporter]}]}], **more)


@pytest.mark.chaos
def test_tokens_over_real_processes(tmp_path: Path, exporter_address: str, monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    """Samples of a real exporter arrive although nobody may hand over without the secret; a push and a command pass with the token
    that they need, and not without."""
    push = free_port()
    greylag = site(tmp_path, exporter_address, push)
    (tmp_path / "token").write_text("eve\n")
    line = json.dumps({"streams": [{"stream": {"host": "n1"}, "values": [["1", "x"]]}]})
    try:
        greylag.start()
        assert greylag.http.get("/api/greylag/v1/incidents").status_code == 401
        greylag.http.headers["Authorization"] = "Bearer eve"
        wait_for(lambda: greylag.query('up{job="node"}'), 40, "the first scrape")
        pushed = [httpx.post(f"http://127.0.0.1:{push}/loki/api/v1/push", content=line, headers={"Content-Type": "application/json", **head}).status_code
                  for head in ({}, {"Authorization": "Bearer eve"}, {"Authorization": "Bearer am"})]
        for name in ("GREYLAG_TOKEN", "GREYLAG_TOKEN_FILE"):
            monkeypatch.setenv(name, "")
        nobody = command(monkeypatch, greylag, "list")
        listed = command(monkeypatch, greylag, "list", "--token-file", str(tmp_path / "token"))
        monkeypatch.setenv("GREYLAG_TOKEN", "eve")
        refused = command(monkeypatch, greylag, "ack", "inc-1")
    finally:
        greylag.close()
    assert (pushed[:2], pushed[2] not in (401, 403)) == ([401, 403], True)
    assert (nobody, listed, refused) == (2, 0, 2)
    said = capsys.readouterr().err
    assert ("a token is needed" in said, "the role viewer of eve does not allow POST" in said) == (True, True)
    assert oct((tmp_path / "data" / "internal.secret").stat().st_mode)[-3:] == "600"


@pytest.mark.chaos
def test_the_heartbeat_stops_with_its_collectors(tmp_path: Path, exporter_address: str) -> None:
    """It comes while all is well; collectors that hang stop it, and it comes again once they go on."""
    beat = Receiver()
    greylag = site(tmp_path, exporter_address, free_port(), heartbeat={"url": beat.url + "/alive", "interval_seconds": 1, "limits": {"ingest_seconds": 30}})
    try:
        greylag.start()
        wait_for(lambda: beat.got, 60, "a heartbeat")
        pid, before = greylag.child("collector"), greylag.log().count("no heartbeat: ")
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: greylag.log().count("no heartbeat: ") > before, 90, "the end of the heartbeat")
        seen = len(beat.got)
        time.sleep(5)
        assert len(beat.got) == seen
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: len(beat.got) > seen, 90, "the next heartbeat")
    finally:
        greylag.close()
        beat.close()
