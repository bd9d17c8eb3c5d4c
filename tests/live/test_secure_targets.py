"""`greylag run` against a page behind TLS and a password: trusted by its authority alone, relabelled as Prometheus does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.processes import free_port
from tests.collect.secure_site import SERVER_NAME, Page, authority, basic, site
from tests.live.site import Greylag, wait_for

PAGE = b"""# TYPE node_load1 gauge
node_load1 0.5
# TYPE secret_tokens gauge
secret_tokens{user="eve"} 1
# TYPE node_network_up gauge
node_network_up{device="eth0"} 1
"""


@pytest.fixture
def greylag(tmp_path: Path) -> Iterator[Greylag]:
    """Three jobs on one page: as it should be, without the authority, and with a wrong password."""
    authority(tmp_path)
    (tmp_path / "password").write_text("s3cret\n")
    with site({"/metrics": Page(PAGE, authorization=basic("prom", "s3cret"))}, tmp_path) as server:
        login = {"username": "prom", "password_file": "password"}
        trusted = {"ca_file": "ca.pem", "server_name": SERVER_NAME}
        rules = [{"source_labels": ["__name__"], "regex": "secret_.*", "action": "drop"},
                 {"source_labels": ["device"], "regex": "(eth.*)", "target_label": "nic", "replacement": "if-$1"}]
        often = {"scheme": "https", "scrape_interval": "1s", "scrape_timeout": "1s",
                 "static_configs": [{"targets": [server.address]}], "metric_relabel_configs": rules}
        one = Greylag(tmp_path, free_port(), scrape_configs=[
            {"job_name": "trusted", **often, "tls_config": trusted, "basic_auth": login},
            {"job_name": "unknown-authority", **often, "tls_config": {"server_name": SERVER_NAME}, "basic_auth": login},
            {"job_name": "wrong-password", **often, "tls_config": trusted, "basic_auth": {**login, "password_file": "ca.pem"}},
        ])
        try:
            one.start()
            yield one
        finally:
            one.close()


def ups(greylag: Greylag) -> dict[str, str]:
    """`up` of each job, once all three have been tried and the trusted page has been read."""
    found = {row["metric"]["job"]: row["value"][1] for row in greylag.query("up")}
    return found if len(found) == 3 and found["trusted"] == "1" else {}


def test_a_page_behind_tls_and_a_password(greylag):
    """Its series are there, relabelled and without what is dropped; who cannot prove or be trusted is down, and no more."""
    up = wait_for(lambda: ups(greylag), 60, "the first scrape over TLS")
    seen = {(row["metric"]["job"], row["metric"]["__name__"], row["metric"].get("nic")): row["value"][1]
            for row in greylag.query('{job!="", __name__!~"up|scrape_.*|greylag_.*"}')}
    assert up == {"trusted": "1", "unknown-authority": "0", "wrong-password": "0"}
    assert seen == {("trusted", "node_load1", None): "0.5", ("trusted", "node_network_up", "if-eth0"): "1"}
