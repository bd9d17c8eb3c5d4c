"""Which log a file is of, by its path: a kernel's of a node, a trainer's of a job, or none.

Without patterns these are known, each also rotated (`.1`, `-20261101`) and packed:
- `kernel.<node>.log`, `trainer.<job>.log`, as in a recording;
- `kern.log`, `kernel.log`, `dmesg`, `kmsg` (a kernel's alone), `messages`, `syslog`, `journal` (of many programs: only the
  kernel's lines count), with the node before it (`n17.kern.log`, `n17-dmesg.txt`), as the nearest folder that is no usual one
  (`n17/var/log/messages`), else told by each line;
- `slurm-<job>.out`, `.err`, `.log`: what a job of Slurm printed.

A pattern is a regular expression that is looked for in the path; its group `node` names the node of a kernel's log, its group
`job` the job of a trainer's. With both, each line of the trainer's log is of that node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import BadInput

_PACKED = re.compile(r"\.(?:gz|bz2|xz|zst)$", re.IGNORECASE)
_ROTATED = re.compile(r"(?:[.-](?P<date>(?:19|20)\d{6})(?:-?\d{0,10})?|\.(?P<number>\d{1,4}))$")
_OWN = re.compile(r"(?P<kind>kernel|trainer)\.(?P<subject>.+)\.log")
_WORDS = r"(?P<word>kern(?:el)?|dmesg|kmsg|messages|syslog|journal(?:ctl)?)"
_KERNEL = re.compile(rf"(?:(?P<node>[\w][\w.-]*?)[._-])?{_WORDS}(?:[._-](?:log|txt|json|export|out))?(?:\.(?:log|txt|json|export))?",
                     re.IGNORECASE)
_SLURM = re.compile(r"slurm-(?P<job>\d+(?:_\d+)?)\.(?:out|err|log)")
_KERNEL_ALONE = frozenset({"kern", "kernel", "dmesg", "kmsg"})
_USUAL = frozenset({"", ".", "..", "var", "log", "logs", "journal", "archive", "archives", "kernel", "kern", "host", "hosts", "node", "nodes",
                    "old", "tmp", "root", "home", "data", "backup", "rotated", "system", "messages", "syslog", "sos_commands", "run", "mnt"})


@dataclass(frozen=True, slots=True)
class Named:
    """kind: kernel or trainer. subject: the node or job, None = each line says it. node: of a trainer's log whose path names both.
    mixed: other programs write into it too. order: of its rotated parts, the oldest first. guess: the subject is a folder's name,
    and a host that a line names counts more."""

    kind: str
    subject: str | None
    node: str | None
    mixed: bool
    order: tuple[int, int, int]
    guess: bool = False


class LogNames:
    """patterns: the caller's own; the first that is found in a path counts, and where there are any, no other name does."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = [_pattern(text) for text in patterns]

    @property
    def given(self) -> bool:
        """Whether there are patterns of the caller's."""
        return bool(self._patterns)

    def of(self, path: str) -> Named | None:
        """What a path names, None for no log."""
        bare = _PACKED.sub("", path.replace("\\", "/"))
        order, stem = _rotation(bare)
        for pattern in self._patterns:
            if (match := pattern.search(path)) is not None:
                groups = match.groupdict()
                if groups.get("job"):
                    return Named("trainer", groups["job"], groups.get("node"), False, order)
                if groups.get("node"):
                    word = _KERNEL.fullmatch(stem.rpartition("/")[2])
                    return Named("kernel", groups["node"], None, word is None or word["word"].lower() not in _KERNEL_ALONE, order)
        return None if self._patterns else _usual(stem, order)

    def of_labels(self, labels: str) -> Named | None:
        """What a stream's labels, written as a selector, name by the patterns; None where none is found."""
        return self.of(labels) if self._patterns else None


def _pattern(text: str) -> re.Pattern[str]:
    try:
        found = re.compile(text)
    except re.error as error:
        raise BadInput("--log-names", "", text, f"a regular expression is needed ({error})") from None
    if not {"node", "job"} & set(found.groupindex):
        raise BadInput("--log-names", "", text, "a group (?P<node>...) or (?P<job>...) is needed")
    return found


def _rotation(path: str) -> tuple[tuple[int, int, int], str]:
    """(place in time, path without it): parts with a date by the date, then by falling number, the newest without either."""
    match = _ROTATED.search(path)
    if match is None:
        return (1, 0, 0), path
    stem = path[: match.start()]
    if match["date"] is not None:
        return (0, int(match["date"]), 0), stem
    return (0, 99_999_999, -int(match["number"])), stem


def _usual(stem: str, order: tuple[int, int, int]) -> Named | None:
    folder, _, name = stem.rpartition("/")
    if (match := _OWN.fullmatch(name)) is not None:
        return Named(match["kind"], match["subject"], None, False, order)
    if (match := _SLURM.fullmatch(name)) is not None:
        return Named("trainer", match["job"], None, False, order)
    if (match := _KERNEL.fullmatch(name)) is not None:
        node = match["node"] or next((one for one in reversed(folder.split("/")) if _is_node(one)), None)
        mixed = match["word"].lower() not in _KERNEL_ALONE
        return Named("kernel", node, None, mixed, order, guess=match["node"] is None)
    return None


def _is_node(folder: str) -> bool:
    return folder.lower() not in _USUAL and not re.fullmatch(r"[\d._-]+", folder)
