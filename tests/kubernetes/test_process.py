"""restart_process: one key of one ConfigMap, which a job's launchers read; and the launcher that ships, with real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import needs
from tests.kubernetes.site import Site, action
from tests.notify.receivers import wait_for

TELL = "inc-1/1/1"
LAUNCHER = needs.ROOT / "sample_data/kubernetes/launcher.sh"
KINDS = {"job": "Job", "jobset": "JobSet", "pytorch": "PyTorchJob"}


def made(kind: str = "jobset", listens: bool = True, **more) -> Site:
    site = Site()
    getattr(site, kind)(**more)
    if listens:
        site.listens(KINDS[kind])
    return site


def tell(name: str = TELL, **args):
    return action("restart_process", name=name, job="train", **args)


def said(site: Site) -> dict[str, str]:
    found = site.cluster.get("ConfigMap", "greylag-restarts", "ml")
    assert found is not None
    return dict(found["data"])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_launchers_are_told_and_no_pod_is_touched(kind):
    """The job's own key says which action it is; other jobs' keys stay, and so do all pods."""
    site = made(kind)
    pods = site.pods()
    told = site.do(tell())
    assert (told.state, told.detail) == ("DONE", "4 pods are told within two minutes")
    assert (said(site), site.pods()) == ({"other": "inc-0/1/1", "train": TELL}, pods)
    site.restart()
    assert site.door.poll(TELL).state == "DONE"
    site.do(tell("inc-1/1/2"))
    assert said(site)["train"] == "inc-1/1/2"


@pytest.mark.parametrize(("change", "reason"), [
    ("silent", "not_supported"), ("no map", "not_supported"), ("not opted in", "not_opted_in"), ("suspended", "job_held"),
    ("nan", "not_supported"), ("starting", "target_busy")])
def test_who_would_not_listen_is_not_told(change, reason):
    """It does not say that it reads, there is nothing to read, it may not be touched, it stands, or it takes an older save."""
    site = made(listens=change != "silent", opted=change != "not opted in")
    job = site.cluster.get("JobSet", "train", "ml")
    if change == "no map":
        site.cluster.objects["ConfigMap"].clear()
    if change in ("suspended", "starting"):
        site.controllers.stopped |= {"jobset"} if change == "suspended" else {"scheduler"}
        if change == "suspended":
            site.cluster.change(job, lambda o: o["spec"].update(suspend=True))
        for pod in site.cluster.all("Pod") if change == "starting" else ():
            site.cluster.remove(pod)
    told = site.door.submit(tell(**({"before": "2027-01-15T08:00:00Z"} if change == "nan" else {})))
    assert (told.state, told.reason) == ("REFUSED", reason)
    assert change in ("silent", "no map") or said(site) == {"other": "inc-0/1/1"}


def test_another_hand_on_the_map_is_not_written_over():
    """A change between our read and our write is a 409; read anew, both words stand."""
    site = made()
    inner, spoiled = site.cluster.handle, []

    def handle(request):
        if request.method == "PATCH" and request.path.endswith("greylag-restarts") and not spoiled:
            spoiled.append(1)
            site.cluster.change(site.cluster.get("ConfigMap", "greylag-restarts", "ml"), lambda o: o["data"].update(other="ada"), "kubectl")
        return inner(request)

    site.cluster.handle = handle
    assert site.do(tell()).state == "DONE"
    assert (spoiled, said(site)) == ([1], {"other": "ada", "train": TELL})


# --- the launcher -------------------------------------------------------------------------------------------------------
class Launched:
    """The launcher over a command that notes its starts and how it was ended; `write` changes the file as the kubelet does."""

    def __init__(self, folder: Path, command: str) -> None:
        self.folder, self.log = folder, folder / "log"
        self.write("before")
        self.process = subprocess.Popen(["/bin/sh", str(LAUNCHER), str(folder / "now" / "train"), "/bin/sh", "-c", command], cwd=folder,
                                        env={**os.environ, "GREYLAG_LOOK_SECONDS": "0.1", "GREYLAG_GRACE_SECONDS": "1"},
                                        stderr=subprocess.DEVNULL, start_new_session=True)

    def write(self, text: str) -> None:
        """A new folder, and a link that is set to it in one step."""
        new = self.folder / f"data-{text.replace('/', '_')}"
        new.mkdir()
        (new / "train").write_text(text)
        (self.folder / "next").symlink_to(new)
        os.replace(self.folder / "next", self.folder / "now")

    def lines(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []


@pytest.mark.parametrize(("ends", "lines"), [("trap 'echo told >> log; exit 0' TERM", ["start", "told", "start"]), ("trap '' TERM", ["start", "start"])])
def test_the_launcher_starts_its_command_anew(tmp_path, ends, lines):
    """Once for each new text: gently, and with force where the command does not listen; its own end goes through."""
    one = Launched(tmp_path, f"{ends}; echo start >> log; while :; do sleep 0.05; done")
    try:
        assert wait_for(lambda: one.lines() == ["start"])
        one.write(TELL)
        assert wait_for(lambda: one.lines() == lines)
        assert one.process.poll() is None
        one.process.send_signal(signal.SIGTERM)
        if ends.startswith("trap 'echo"):
            assert one.process.wait(10) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait(10)


def test_the_launcher_ends_as_its_command_does(tmp_path):
    """With its exit status, so that the job's own restart policy goes on to count."""
    assert Launched(tmp_path, "exit 7").process.wait(10) == 7
