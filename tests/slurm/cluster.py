"""A real Slurm on this machine: munged, slurmctld and one slurmd for each node, on free ports, in a folder of its own.

Nothing of the machine's own Slurm or munge is touched. Every daemon runs in the foreground and is ended by its pid.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from app.processes import free_port
from tests import needs

CONF = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmdSpoolDir={folder}/spool/%n
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
StateSaveLocation={folder}/spool/slurmctld
SwitchType=switch/none
ReturnToService=1
SlurmdTimeout={timeout}
JobRequeue=1
KillWait=1
CompleteWait=0
InactiveLimit=0
MessageTimeout=5
RebootProgram={folder}/reboot.sh
ResumeTimeout=60
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
TopologyPlugin=topology/tree
{nodes}
PartitionName=train Nodes={names} Default=YES State=UP MaxTime=INFINITE
PartitionName=quiet Nodes={names} State=UP MaxTime=INFINITE
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=1000 State=UNKNOWN Feature={feature}"
PROGRAMS = ("slurmctld", "slurmd", "scontrol", "munged")


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true answer; fails naming what was waited for."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.1)


class Slurm:
    """The cluster: `nodes` and `spares` by name. The spares stand in a reservation of that name."""

    def __init__(self, nodes: int = 4, spares: int = 2, timeout: int = 20) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.nodes = [f"n{i}" for i in range(1, nodes + 1)]
        self.spares = [f"spare{i}" for i in range(1, spares + 1)]
        self.timeout = timeout
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._steps = ExitStack()

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    # --- start and end --------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Up when all nodes answer; the spares are reserved."""
        self.folder.chmod(0o755)
        for part in ("run", "spool", "log", "munge", "out"):
            (self.folder / part).mkdir(mode=0o755)
        for name in ("slurmctld", *self.nodes, *self.spares):
            (self.folder / "spool" / name).mkdir(mode=0o755)
        self._write_conf()
        self._munge()
        self.start_controller()
        for name in (*self.nodes, *self.spares):
            self.start_node(name)
        until(lambda: self.up() >= {*self.nodes, *self.spares}, 30, f"the start of all nodes (see {self.folder}/log)")
        if self.spares:
            self.reserve_spares()

    def _write_conf(self) -> None:
        host = socket.gethostname().split(".")[0]
        names = [*self.nodes, *self.spares]
        rows = "\n".join(NODE.format(name=n, host=host, port=free_port(), feature="spare" if n in self.spares else "pool") for n in names)
        self.conf.write_text(CONF.format(folder=self.folder, host=host, port=free_port(), timeout=self.timeout, nodes=rows,
                                         names=",".join(names)))
        half = (len(names) + 1) // 2
        leaves = [part for part in (names[:half], names[half:]) if part]
        rows = "".join(f"SwitchName=leaf{i} Nodes={','.join(part)}\n" for i, part in enumerate(leaves, 1))
        (self.folder / "topology.conf").write_text(f"{rows}SwitchName=spine1 Switches=leaf[1-{len(leaves)}]\n")
        reboot = self.folder / "reboot.sh"
        reboot.write_text(f'#!/bin/sh\necho "$SLURMD_NODENAME $*" >> {self.folder}/reboots\n')
        reboot.chmod(0o755)

    def _munge(self) -> None:
        place = self.folder / "munge"
        key = place / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self.daemon("munged", needs.program("munged"), "--foreground", "--force", f"--key-file={key}", f"--socket={place}/socket",
                    f"--pid-file={place}/pid", f"--log-file={place}/log", f"--seed-file={place}/seed", "--num-threads=4")
        until((place / "socket").exists, 10, "the start of munged")

    def daemon(self, name: str, *words: str) -> None:
        """Starts a daemon in the foreground, in a session of its own."""
        with (self.folder / "daemons.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(words, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                  start_new_session=True)

    def start_controller(self) -> None:
        """slurmctld; waits until it answers."""
        self.daemon("slurmctld", needs.program("slurmctld"), "-D", "-f", str(self.conf))
        until(lambda: self.ask("scontrol", "ping").returncode == 0, 15, "the start of slurmctld")

    def start_node(self, name: str, *more: str) -> None:
        """The node's slurmd; `-b` says that the node was booted."""
        self.daemon(name, needs.program("slurmd"), "-D", "-f", str(self.conf), "-N", name, *more)

    def end(self, name: str, how: int = signal.SIGTERM) -> None:
        """Ends one daemon by its pid."""
        one = self.daemons.pop(name)
        with suppress(ProcessLookupError):
            one.send_signal(signal.SIGCONT)
            one.send_signal(how)
        try:
            one.wait(5)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait(5)

    def close(self) -> None:
        """Cancels all jobs, then ends every daemon and removes the folder."""
        with suppress(subprocess.SubprocessError):
            self.cancel_all()
            until(lambda: not self.ask("squeue", "-h", "-t", "R,CG", "-o", "%A").stdout.split(), 8, "the end of all jobs")
        for name in reversed(list(self.daemons)):
            with suppress(Exception):
                self.end(name)
        if not os.environ.get("GREYLAG_KEEP_SLURM"):
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- asking ---------------------------------------------------------------------------------------------------------
    def ask(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """A command against this cluster."""
        return subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=20, check=False, **options)

    def do(self, *words: str, **options: Any) -> str:
        """A command that must succeed; what it said."""
        told = self.ask(*words, **options)
        assert told.returncode == 0, (words, told.stdout, told.stderr)
        return told.stdout.strip()

    def up(self) -> set[str]:
        """Nodes that answer."""
        rows = self.ask("sinfo", "-h", "-N", "-o", "%N %t").stdout.split("\n")
        return {row.split()[0] for row in rows if row and row.split()[1] in ("idle", "alloc", "mix", "resv", "maint", "drain", "comp")}

    def node(self, name: str) -> dict[str, str]:
        """`scontrol show node` as words."""
        return _words(self.do("scontrol", "show", "node", name, "-o"))

    def job(self, job: str) -> dict[str, str]:
        """`scontrol show job` as words; empty where Slurm has forgotten it."""
        told = self.ask("scontrol", "show", "job", job, "-o")
        return _words(told.stdout) if told.returncode == 0 else {}

    def reservation(self, name: str) -> dict[str, str]:
        """`scontrol show res` as words; empty where there is none."""
        told = self.ask("scontrol", "show", "res", name, "-o")
        return _words(told.stdout) if told.returncode == 0 else {}

    # --- doing ----------------------------------------------------------------------------------------------------------
    def reserve_spares(self) -> None:
        """All spares in the reservation `spares`."""
        self.do("scontrol", "create", "reservation", "reservationname=spares", f"nodes={','.join(self.spares)}", "starttime=now",
                "duration=infinite", "users=root", "flags=maint,ignore_jobs")

    def sbatch(self, *options: str, script: str = "exec sleep 300", env: Mapping[str, str] | None = None) -> str:
        """The id of a new job."""
        text = f"#!/bin/sh\n{script}\n"
        words = ("sbatch", "--parsable", f"--output={self.folder}/out/%j.out", *options)
        told = subprocess.run(words, env={**self.env, **(env or {})}, input=text, capture_output=True, text=True, timeout=20, check=False)
        assert told.returncode == 0, (words, told.stderr)
        return told.stdout.strip().split(";")[0]

    def wait_job(self, job: str, state: str, seconds: float = 20) -> dict[str, str]:
        """The job once it is in the state."""
        return dict(until(lambda: (found := self.job(job)).get("JobState") == state and found, seconds, f"job {job} in state {state}"))

    def cancel_all(self) -> None:
        """SIGKILL first: Slurm gives a batch script time to end after a SIGTERM."""
        jobs = self.ask("squeue", "-h", "-o", "%A").stdout.split()
        if jobs:
            self.ask("scancel", "--signal=KILL", "--full", *jobs)
            self.ask("scancel", *jobs)

    def clean(self) -> None:
        """No job, no drain, no reservation but the spares': as after the start."""
        self.cancel_all()
        until(lambda: not self.ask("squeue", "-h", "-o", "%A").stdout.split(), 15, "the end of all jobs")
        for row in self.ask("scontrol", "show", "res", "-o").stdout.split("\n"):
            name = _words(row).get("ReservationName")
            if name:
                self.ask("scontrol", "delete", f"reservationname={name}")
        for name in (*self.nodes, *self.spares):
            if name not in self.daemons:
                self.start_node(name)
            self.ask("scontrol", "update", f"nodename={name}", "state=resume")
        until(lambda: all(self.node(n)["State"].startswith("IDLE") and "DRAIN" not in self.node(n)["State"]
                          for n in (*self.nodes, *self.spares)), 20, "all nodes idle")
        if self.spares:
            self.reserve_spares()


def _words(row: str) -> dict[str, str]:
    """`Key=value` words of a line; a value goes on until the next word with an `=`."""
    out: dict[str, str] = {}
    last = None
    for word in row.split():
        key, found, value = word.partition("=")
        if found and key.replace("_", "").replace("/", "").replace(":", "").isalnum():
            last, out[key] = key, value
        elif last is not None:
            out[last] += f" {word}"
    return out


@contextmanager
def slurm(nodes: int = 4, spares: int = 2, timeout: int = 20) -> Iterator[Slurm]:
    """A cluster that is ended whatever happens. Skips where a program is missing or this is not root."""
    import pytest

    for program in PROGRAMS:
        needs.program(program)
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")
    one = Slurm(nodes, spares, timeout)
    try:
        one.start()
        yield one
    finally:
        one.close()
