"""What a tired person gets wrong at the command line: one sentence that names what it is about, what was given and what is allowed, a
status that is not 0, and no traceback."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app import cli, run, supervise
from app.run import check_config
from tests.pages import Pages

NOBODY = "http://127.0.0.1:9"  # the port of discard, at which nothing listens
RECORDING = str(Path(__file__).resolve().parents[2] / "sample_data" / "recordings" / "h200")

# files of the folder that the command runs in (a value None = a folder), the command's words, status, words of the sentence
FILES: dict[str, str | None] = {
    "empty.yaml": "", "folder": None, "file": "x", "note.txt": "hello", "bad.prom": "hello world this is\n",
    "bare.prom": 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n', "columns.csv": "a,b\n1,2\n", "messages": "x\n",
    "policy.yaml": "version: 1\nmode: actt\n", "held.yaml": "version: 1\nmode: act\nrules:\n- {name: a, match: {fault: [termal_throttle]}, attempts: [{do: [drain]}]}\n",
    "verb.yaml": "version: 1\nmode: act\nrules:\n- {name: a, match: {fault: [thermal_throttle]}, attempts: [{do: [dran]}]}\n",
    "scenario.yaml": "seed: 1\nfleat: {}\n", "data_dir.yaml": "data_dir: file\nlogs: [{kind: kernel, path: /x}]\n",
    "clock.yaml": "clock: fleet\n", "port.yaml": "scrape_configs:\n- {job_name: dcgm, static_configs: [{targets: ['gpu-001:94oo']}]}\n",
    "notify.yaml": "data_dir: x\nnotify:\n- name: alertmanager\n  url: alertmanager:9093\n", "log.yaml": "logs: [{kind: kernel}]\n",
    "backend.yaml": "backend:\n  name: webhook\n  secret_file: file\n  url: hands.example\n",
}
MISTAKES = [
    ("check -c none.yaml", 2, ("none.yaml: got no such file",)),
    ("check -c folder", 2, ("folder: got a folder", "UTF-8 file is needed")),
    ("check -c empty.yaml", 2, ("empty.yaml: got nothing", "scrape_configs")),
    ("check -c data_dir.yaml", 2, ("data_dir.yaml: data_dir: got 'file'", "a folder")),
    ("check -c clock.yaml", 2, ("clock.yaml: clock: got 'fleet'", "http://")),
    ("check -c port.yaml", 2, ("port.yaml:2: scrape_configs[0].static_configs[0].targets: got 'gpu-001:94oo'", "port of 1 to 65535")),
    ("check -c notify.yaml", 2, ("notify.yaml:4: notify[0].url: got 'alertmanager:9093'", "http://")),
    ("check -c backend.yaml", 2, ("backend.yaml:4: backend.url: got 'hands.example'", "http://")),
    ("check -c log.yaml", 2, ("log.yaml: logs[0]: got nothing of path and url", "exactly one")),
    ("run -c none.yaml", 2, ("none.yaml: got no such file",)),
    ("run -c empty.yaml --role colector", 2, ("--role: got 'colector'", "all, owner, collector")),
    ("run -c empty.yaml --role collector --worker 1", 2, ("--worker: got '1'", "collector-0")),
    ("demo --fault therml", 2, ("--fault: got 'therml'", "thermal_throttle", "none")),
    ("replay none", 2, ("none: got no file or directory",)),
    ("replay folder", 2, ("folder: got a directory without a recording", "*.prom")),
    ("replay note.txt", 2, ("got 'note.txt'", "*.prom")),
    ("replay bad.prom", 2, ("bad.prom:1: got 'hello world this is'",)),
    ("replay bare.prom", 2, ("bare.prom:1", "needs a timestamp")),
    ("replay columns.csv", 2, ("columns.csv", "metric, timestamp, value")),
    (f"replay {RECORDING} --policy none.yaml", 2, ("none.yaml: got no such file",)),
    (f"replay {RECORDING} --inventory none.yaml", 2, ("none.yaml: got no such file",)),
    ("replay note.txt --fail-on finding", 2, ("--fail-on: got 'finding'", "incident")),
    (f"why train-1 --url {NOBODY}", 1, (NOBODY, "greylag run -c", "--url", "--store DIR")),
    ("why train-1 --url 127.0.0.1:9470", 2, ("--url: got '127.0.0.1:9470'", "http://127.0.0.1:9470")),
    ("why train-1 --store none", 2, ("none: got no store", "greylag.duckdb")),
    (f"doctor --url {NOBODY}", 1, (NOBODY, "greylag run -c", "--url")),
    (f"incidents list --url {NOBODY}", 1, (NOBODY, "greylag run -c", "--url")),
    ("incidents list --token-file none", 2, ("--token-file: got 'none'", "readable file")),
    (f"incidents ledger --since yesterday --url {NOBODY}", 2, ("--since: got 'yesterday'", "RFC 3339")),
    (f"policy plan --url {NOBODY}", 1, (NOBODY, "running Greylag")),
    ("policy lint none.yaml", 2, ("none.yaml: got no such file",)),
    ("policy lint policy.yaml", 2, ("policy.yaml:2: mode: got 'actt'", "observe", "did you mean 'act'")),
    ("policy lint verb.yaml", 2, ("verb.yaml:4", "'dran'", "did you mean 'drain'")),
    ("incidents cures termal_throttle", 2, ("FAULT: got 'termal_throttle'", "did you mean 'thermal_throttle'")),
    ("store stats none.duckdb", 2, ("none.duckdb: got no store",)),
    ("store export none --out x.csv", 2, ("--out: got 'x.csv'", ".parquet")),
    ("store export none --out x.parquet --start 10am", 2, ("--start: got '10am'", "RFC 3339")),
    ("import --from prometheus:9090 --out new", 2, ("--from: got 'prometheus:9090'", "http://prometheus:9090")),
    ("import --out new", 2, ("neither --from nor files",)),
    ("import messages --start 30days --out new", 2, ("--start: got '30days'", "30d")),
    ("import messages --zone Berlin --out new", 2, ("--zone: got 'Berlin'", "Europe/Berlin")),
    ("import messages --out file", 2, ("--out: got 'file'", "a folder")),
    ("bench storage", 2, ("bench: got 'storage'", "store")),
    ("evaluate --suite fast", 2, ("--suite: got 'fast'", "quick, standard, full")),
    ("evaluate --only thermal_throtle", 2, ("--only: got 'thermal_throtle'", "did you mean 'thermal_throttle'")),
    ("fleet inject thermal_throttle", 2, ("--url: got nothing", "GREYLAG_FLEET_URL")),
    (f"fleet status --url {NOBODY}", 1, (NOBODY,)),
    ("fleet run none.yaml", 2, ("none.yaml: got no such file",)),
    ("fleet run scenario.yaml", 2, ("scenario.yaml:2: fleat: got an unknown key", "did you mean 'fleet'")),
    ("cases check none", 2, ("none: got no case",)),
    ("rules test none.yaml none.log", 2, ("none.yaml: got no such file",)),
    ("drift --data-dir none", 2, ("none: got no store",)),
    ("train", 2, ("--config", "--data-dir")),
    ("dashboards build --out file", 2, ("file/dashboards: Not a directory",)),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder with all files; no address or token from outside."""
    for name, text in FILES.items():
        (tmp_path / name).mkdir() if text is None else (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    for name in ("GREYLAG_TOKEN", "GREYLAG_TOKEN_FILE", "GREYLAG_FLEET_URL"):
        monkeypatch.setenv(name, "")  # so that what --token-file sets ends with the test
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def greylag(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[object, str, str]]:
    """A function that runs a command in this process: its status, standard output and standard error."""

    def run(words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["greylag", *words.split()])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    return run


@pytest.mark.parametrize(("words", "status", "said"), MISTAKES, ids=[words for words, _, _ in MISTAKES])
def test_a_mistake_is_answered_in_one_sentence(words, status, said, greylag):
    """One line on standard error, nothing else said, no traceback."""
    code, out, err = greylag(words)
    assert (code, out, err.count("\n")) == (status, "", 1), err
    assert err.startswith("greylag: ")
    assert [word for word in said if word not in err] == []


@pytest.mark.parametrize(("words", "said"), [
    ("incident list", "Did you mean 'incidents'"), ("check --conf x", "--config"), ("demo --nodes 1", "greater than or equal to 2"),
    ("incidents show", "Missing argument")])
def test_the_shape_of_a_command_is_checked_by_its_parser(words, said, greylag):
    """Status 2, where to read on, and what is wrong."""
    code, out, err = greylag(words)
    assert (code, out) == (2, "")
    assert said in err
    assert "--help" in err


def test_a_file_that_may_not_be_read(greylag, folder, monkeypatch):
    """Said as such: a missing right is no missing file."""
    def denied(path: Path, *args: object, **more: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", denied)
    assert greylag("check -c port.yaml")[::2] == (2, "greylag: port.yaml: got a file that this user may not read, a readable UTF-8 file is needed\n")


@pytest.mark.parametrize("key", ["listen", "push_listen", "syslog_listen"])
def test_an_address_where_something_listens(key, greylag, folder, monkeypatch):
    """The key and the address are named before anything starts."""
    monkeypatch.setattr(run, "ADDRESS_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(supervise, "become", lambda path: 77)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        (folder / "busy.yaml").write_text(f"{{listen: '127.0.0.1:0', {key}: '{address}', logs: [{{kind: kernel, path: /x}}]}}"
                                          if key != "listen" else f"{{listen: '{address}', logs: [{{kind: kernel, path: /x}}]}}")
        code, _, err = greylag("run -c busy.yaml")
    assert code == 2
    assert f"busy.yaml: {key}: got '{address}', an address at which nothing listens yet is needed: Address already in use" in err
    assert greylag("run -c busy.yaml")[0] == 77


def test_a_configuration_that_sees_nothing_is_said(folder):
    """It is taken (an owner may run without collectors of its own), and `check` says so."""
    (folder / "blind.yaml").write_text("data_dir: data\n")
    assert check_config(folder / "blind.yaml")[-1].startswith("nothing will be seen")


@pytest.fixture
def api() -> Iterator[str]:
    """An address that answers every question: 404 in Greylag's form, and something else below /other."""

    def answer(path: str) -> tuple[int, bytes]:
        if path.startswith("/other"):
            return 200, b"<html>"
        return 404, json.dumps({"status": "error", "error": "incident inc-1 is not known"}).encode()

    pages = Pages(answer)
    yield f"http://{pages.address}"
    pages.close()


@pytest.mark.parametrize(("words", "said"), [
    ("incidents show inc-1 --url {api}", "got an answer of HTTP 404, incident inc-1 is not known"),
    ("incidents list --url {api}/other", "got an answer that is no JSON, the address of a running Greylag is needed")])
def test_what_the_api_answers_is_said_plainly(words, said, greylag, api):
    """The API's own sentence, not its JSON; another server at the address is said to be one."""
    code, out, err = greylag(words.format(api=api))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert said in err
