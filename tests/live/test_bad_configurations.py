"""A configuration that is wrong: exit status 2 and one sentence with file, line, key, what was given, what is allowed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app import cli, supervise
from tests import needs

JOB = "scrape_configs:\n- job_name: node\n  static_configs: [{targets: ['127.0.0.1:9100']}]\n"

# text of greylag.yaml, the line that the sentence names (None = the file alone), words that it must hold
BAD = [
    pytest.param(JOB + "  kubernetes_sd_configs: []\n", 4, ("scrape_configs[0].kubernetes_sd_configs", "file_sd_configs"),
                 id="not_supported"),
    pytest.param(JOB + "  relabel_configs:\n  - {action: keeep}\n", 5, ("relabel_configs[0].action", "'keeep'"), id="relabel"),
    pytest.param(JOB + "  relabel_configs:\n  - regex: '(?=x)'\n    action: drop\n", 5, ("relabel_configs[0].regex", "RE2"),
                 id="regex"),
    pytest.param(JOB + "  tls_config:\n    min_version: 1.3\n", 5, ("tls_config.min_version",), id="tls"),
    pytest.param(JOB + "  basic_auth: {password: a, password_file: b}\n", 4, ("basic_auth.password_file", "one of them"), id="auth"),
    pytest.param(JOB + "  scrape_intervall: 15s\n", 4, ("scrape_intervall", "did you mean 'scrape_interval'"), id="misspelt"),
    pytest.param(JOB + "  scrape_interval: soon\n", 4, ("scrape_interval", "'soon'"), id="interval"),
    pytest.param(JOB + "  scrape_interval: 5s\n  scrape_timeout: 10s\n", 5, ("scrape_timeout", "at most scrape_interval"),
                 id="timeout"),
    pytest.param(JOB + "- job_name: node\n", 4, ("job_name", "once"), id="job_twice"),
    pytest.param("data_dri: x\n", 1, ("data_dri", "did you mean 'data_dir'"), id="unknown_key"),
    pytest.param("data_dir: x\ntokens: [{name: a, role: admin, sha256: ab}]\n", None, ("tokens[0].role", "viewer, operator"), id="tokens"),
    pytest.param("data_dir: x\nlisten: 0.0.0.0:9470\n", None, ("listen", "'0.0.0.0:9470'", "only loopback"), id="listen_open"),
    pytest.param("listen: here\n", None, ("listen", "'here'", "host:port"), id="listen"),
    pytest.param("listen: 127.0.0.1:99999\n", None, ("listen", "host:port"), id="listen_port"),
    pytest.param("\n\npolicy: none.yaml\n", None, ("none.yaml", "got no such file"), id="no_policy"),
    pytest.param("inventory: {file: none.yaml}\n", None, ("none.yaml", "got no such file"), id="no_inventory"),
    pytest.param("scrape_config_files: [none.yaml]\n", None, ("none.yaml", "got no such file"), id="no_scrape_file"),
    pytest.param("backend: {name: nomad}\n", 1, ("backend.name", "'nomad'", "fleet, kubernetes, observe"), id="backend"),
    pytest.param("backend:\n  name: fleet\n  urll: x\n", 3, ("backend.urll",), id="backend_key"),
    pytest.param("detectors:\n  thermal: {}\n", 2, ("detectors.thermal", "thermal_throttle"), id="detector"),
    pytest.param("detectors:\n  thermal_throttle:\n    marginn: 1\n", 3, ("detectors.thermal_throttle.marginn",), id="parameter"),
    pytest.param("notify:\n- {name: pager}\n", 2, ("notify[0].name", "'pager'"), id="notifier"),
    pytest.param("notify:\n- {name: slack, url_file: none}\n", 2, ("notify[0].url_file", "'none'", "cannot be read"), id="no_secret"),
    pytest.param("notify:\n- {name: alertmanager_webhook, url: x, match: {owners: [infra]}}\n", 2, ("notify[0].match.owners", "did you mean 'owner'"), id="route"),
    pytest.param("heartbeat: {limits: {ingest_seconds: 1}}\n", None, ("heartbeat.limits.ingest_seconds", "30"), id="heartbeat"),
    pytest.param("logs:\n- {kind: kernel}\n", None, ("logs[0]", "exactly one"), id="log"),
    pytest.param("data_dir: [\n", 2, ("does not parse",), id="not_yaml"),
    pytest.param("retention: {raw: long}\n", None, ("retention.raw", "'long'"), id="retention"),
    pytest.param("- a\n", None, ("a mapping is needed",), id="a_list"),
]


def greylag(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    """The exit status of the command, in this process; a configuration that is taken would start nothing."""
    monkeypatch.setattr(sys, "argv", ["greylag", *words])
    monkeypatch.setattr(supervise, "become", lambda path: 77)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(("text", "line", "words"), BAD)
def test_one_sentence_and_status_2(text, line, words, command, tmp_path, monkeypatch, capsys):
    """File, line and key are named; nothing is printed but the sentence; `run` starts nothing."""
    file = tmp_path / "greylag.yaml"
    file.write_text(text)
    assert greylag(monkeypatch, command, "-c", str(file)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("greylag: ")
    for word in (*words, *([f"{file}:{line}: "] if line else [])):
        assert word in shown.err
    assert str(tmp_path) in shown.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["greylag.yaml"]


def test_a_good_configuration_is_taken(tmp_path, monkeypatch, capsys):
    """The table's beginning without its mistakes starts (77 is the stand-in's status), and `check` says what it found."""
    file = tmp_path / "greylag.yaml"
    file.write_text(JOB)
    assert greylag(monkeypatch, "run", "-c", str(file)) == 77
    assert greylag(monkeypatch, "check", "-c", str(file)) == 0
    assert "1 scrape job, 0 logs" in capsys.readouterr().out


def test_a_missing_file(tmp_path, monkeypatch, capsys):
    """The path is named."""
    assert greylag(monkeypatch, "run", "-c", str(tmp_path / "none.yaml")) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_an_unknown_role(tmp_path, monkeypatch, capsys):
    """Roles are a closed list."""
    assert greylag(monkeypatch, "run", "-c", str(tmp_path / "none.yaml"), "--role", "king") == 2
    assert "all, owner, collector" in capsys.readouterr().err


def test_the_real_command(tmp_path):
    """The same as a process: the status, one line on standard error, no traceback."""
    file = tmp_path / "greylag.yaml"
    file.write_text(JOB + "  kubernetes_sd_configs: []\n")
    ended = subprocess.run([sys.executable, "-m", "app.cli", "run", "-c", str(file)], capture_output=True, text=True,
                           cwd=needs.ROOT, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert f"{file}:4: scrape_configs[0].kubernetes_sd_configs" in ended.stderr
