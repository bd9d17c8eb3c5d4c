"""Slurm's own programs, called with lists of arguments: never a shell, always with a time-out, in an environment of their own.

What they answer becomes one of three errors: Unavailable (nothing is known, another try is worth it), Refused (Slurm said
no; its reason is named), or a document.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from core.errors import Refused, Unavailable
from remediation.backends import slurm_json as read

T = TypeVar("T")
# Variables that change what the programs print or whom they ask are not passed on.
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH", "TZ", "KRB5CCNAME", "SLURM_CONF", "SLURM_JWT")
_AWAY = ("unable to contact slurm controller", "connection refused", "socket timed out", "zero bytes were transmitted",
         "unexpected message received", "unable to establish control", "slurm backup controller in standby", "transport endpoint",
         "connection timed out", "no route to host", "fetch_config", "configuration source", "name or service not known",
         "protocol authentication error", "munge encode failed", "failed to access munge", "resource temporarily unavailable",
         "slurmctld is rebooting", "slurm temporarily unable", "broken pipe", "connection reset")
_REFUSALS = (
    ("not_permitted", ("invalid user id", "access denied", "access/permission denied", "permission denied", "not authorized",
                       "a password is required", "not allowed", "not in the sudoers", "operation not permitted")),
    ("node_unknown", ("invalid node name",)),
    ("job_unknown", ("invalid job id", "invalid job array")),
    ("job_ended", ("job/step already completing or completed", "already completed")),
    ("not_requeueable", ("requested operation is presently disabled", "requeue is disabled", "job cannot be requeued",
                         "only batch jobs", "only batch job")),
)
NO_OPTION = ("unrecognized option", "unknown option", "invalid option", "unrecognised option", "not supported", "no plugin")


class NoSuchOption(Exception):
    """This version of the program does not know an option of the command."""


@dataclass(frozen=True, slots=True)
class Runner:
    """How programs are run. folder: where they lie, empty = by PATH. conf: SLURM_CONF, empty = the machine's own.

    prefix: words before each command that changes something (`sudo -n -u slurm`). seconds: wall time that an answer may take.
    """

    folder: str = ""
    conf: str = ""
    prefix: tuple[str, ...] = ()
    seconds: float = 10.0

    def look(self, program: str, *args: str) -> str:
        """What a program that only shows something printed, as the user that Greylag runs as. Raises as `run`."""
        return replace(self, prefix=()).run(program, *args)

    def run(self, program: str, *args: str, text: str | None = None, cwd: str | None = None) -> str:
        """What the program printed. text: its standard input; cwd: where it runs. Raises Unavailable, Refused or NoSuchOption."""
        path = os.path.join(self.folder, program) if self.folder else program
        code, out, said = call((*self.prefix, path, *args), self._environment(), self.seconds, text, cwd)
        if code == 0:
            return out
        raise _error(program, said or out, code)

    def _environment(self) -> dict[str, str]:
        env = {key: os.environ[key] for key in _KEPT if key in os.environ}
        env |= {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}
        if self.conf:
            env["SLURM_CONF"] = self.conf
        return env


def call(words: Sequence[str], env: Mapping[str, str], seconds: float, text: str | None = None,
         cwd: str | None = None) -> tuple[int, str, str]:
    """(exit status, output, error output) of a command. One that takes longer is ended with all that it started. Raises
    Unavailable for one that cannot be started, does not end, or prints what is no UTF-8."""
    try:
        process = subprocess.Popen(words, env=dict(env), stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, cwd=cwd)
    except OSError as error:
        raise Unavailable(f"{words[0]} cannot be started ({error.strerror})") from None
    except ValueError:
        raise Refused("backend_refused", "an argument with a NUL byte in it") from None
    with process:
        try:
            out, said = process.communicate(text.encode() if text is not None else None, timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            raise Unavailable(f"{words[0]} did not answer within {seconds:g} s") from None
    try:
        return process.returncode, out.decode(), said.decode(errors="replace").strip()
    except UnicodeDecodeError:
        raise Unavailable(f"the answer of {words[0]} is no UTF-8") from None


def _error(program: str, said: str, code: int) -> Exception:
    lower = said.lower()
    line = next((one.strip() for one in said.splitlines() if one.strip()), f"exit status {code}")[:160]
    if any(mark in lower for mark in _AWAY):
        return Unavailable(f"{program}: {line}")
    for reason, marks in _REFUSALS:
        if any(mark in lower for mark in marks):
            return Refused(reason, line)
    if any(mark in lower for mark in NO_OPTION):
        return NoSuchOption(line)
    if code < 0 or code in (126, 127):
        return Unavailable(f"{program}: {line}")
    return Refused("backend_refused", line)


class Scheduler:
    """What is asked of Slurm and told to it. Names are given as Slurm listed them: they are checked by the caller."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._forms: dict[str, int] = {}  # which form of an answer this version has, learnt at the first question

    # --- asking -------------------------------------------------------------------------------------------------------
    def cluster(self) -> read.Cluster:
        """Nodes, jobs and reservations. Raises Unavailable."""
        return read.Cluster(self.nodes(), self.jobs(), self.reservations())

    def nodes(self) -> dict[str, read.SlurmNode]:
        """All nodes by name. Raises Unavailable."""
        return self._asked("nodes", (
            (("scontrol", "show", "nodes", "--json"), read.nodes_of),
            (("sinfo", "--json"), read.nodes_of),
            (("scontrol", "show", "nodes", "-o"), read.nodes_of_text),
        ))

    def jobs(self) -> tuple[read.SlurmJob, ...]:
        """All jobs that Slurm still knows. Raises Unavailable."""
        return self._asked("jobs", (
            (("squeue", "--json"), read.jobs_of),
            (("scontrol", "show", "jobs", "-o"), read.jobs_of_text),
        ))

    def reservations(self) -> dict[str, read.Reservation]:
        """All reservations by name. Raises Unavailable."""
        return self._asked("reservations", (
            (("scontrol", "show", "reservations", "--json"), read.reservations_of),
            (("scontrol", "show", "reservations", "-o"), read.reservations_of_text),
        ))

    def _asked(self, what: str, forms: Sequence[tuple[tuple[str, ...], Callable[[str], T]]]) -> T:
        """The answer in the best form that this Slurm has. Raises Unavailable where none can be read."""
        problem = ""
        for number in range(self._forms.get(what, 0), len(forms)):
            words, reader = forms[number]
            try:
                found = reader(self.runner.look(*words))
            except NoSuchOption as error:
                problem = str(error)
                continue
            except Refused as error:
                raise Unavailable(f"Slurm does not show its {what} ({error})") from None
            except ValueError as error:
                # A form that has worked before is cut off or broken now: another form could tell another moment's story.
                if what in self._forms:
                    raise Unavailable(str(error)) from None
                problem = str(error)
                continue
            self._forms[what] = number
            return found
        raise Unavailable(problem)

    # --- nodes --------------------------------------------------------------------------------------------------------
    def drain(self, node: str, reason: str) -> None:
        """No new work for the node; what runs there goes on."""
        self.runner.run("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        """Takes the node back."""
        self.runner.run("scontrol", "update", f"nodename={node}", "state=resume")

    def reboot(self, node: str, reason: str) -> None:
        """Boots the node as soon as it is idle; it stays down afterwards."""
        self.runner.run("scontrol", "reboot", "asap", "nextstate=down", f"reason={reason}", node)

    # --- reservations ---------------------------------------------------------------------------------------------------
    def reserve(self, name: str, nodes: str, user: str, flags: str, duration: str) -> None:
        """A reservation that starts now."""
        self.runner.run("scontrol", "create", "reservation", f"reservationname={name}", f"nodes={nodes}", f"users={user}",
                        f"flags={flags}", "starttime=now", f"duration={duration}")

    def set_reservation(self, name: str, *words: str) -> None:
        """Changes one: `nodes=…`, `endtime=…`."""
        self.runner.run("scontrol", "update", f"reservationname={name}", *words)

    def free_reservation(self, name: str) -> None:
        """Deletes one. Refused while a job runs in it."""
        self.runner.run("scontrol", "delete", f"reservationname={name}")

    # --- jobs ---------------------------------------------------------------------------------------------------------
    def note(self, job: int, text: str) -> None:
        """The administrators' comment of a job."""
        self.runner.run("scontrol", "update", f"jobid={job}", f"admincomment={text}")

    def stop(self, job: int) -> None:
        """Back into the queue, held: it does not start before `release`."""
        self.runner.run("scontrol", "requeuehold", str(job))

    def set_job(self, job: int, *words: str) -> None:
        """Changes a job that waits."""
        self.runner.run("scontrol", "update", f"jobid={job}", *words)

    def shrink(self, job: int, nodes: str) -> None:
        """A running job goes on with these of its nodes. scontrol leaves a script for the job's shell where it runs: it is not ours
        to hand on, and goes with the folder."""
        with tempfile.TemporaryDirectory(prefix="greylag-shrink-") as folder:
            self.runner.run("scontrol", "update", f"jobid={job}", f"nodelist={nodes}", cwd=folder)

    def release(self, job: int) -> None:
        """Lets a held job start."""
        self.runner.run("scontrol", "release", str(job))

    def signal(self, job: int, name: str) -> None:
        """Sends a signal to the job's batch script."""
        self.runner.run("scancel", f"--signal={name}", "--batch", str(job))

    def submit(self, *options: str, script: str) -> int:
        """The number of a new batch job."""
        told = self.runner.run("sbatch", "--parsable", *options, text=script)
        number = told.strip().partition(";")[0]
        if not number.isdigit():
            raise Unavailable("sbatch did not say the number of the job")
        return int(number)
