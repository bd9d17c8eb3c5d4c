"""Memory does not grow with a recording."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHILD = """
import resource, sys
sys.path[:0] = [sys.argv[2], sys.argv[2] + "/tests/recording"]
from recordings import opened
from pathlib import Path
recording = opened(Path(sys.argv[1]))
samples = 0
at = recording.first_at
while at < recording.last_at + 15000:
    for batch in recording.advance(at):
        samples += sum(len(s.values) for s in batch.scrapes)
    at += 15000
print(samples, recording.counts.samples, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def peak_mib(path: Path) -> tuple[int, int]:
    """Samples and peak memory (MiB) of a process that reads the recording."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(path), str(ROOT)], capture_output=True, text=True, check=True)
    out, read, peak = map(int, done.stdout.split())
    assert out == read
    return read, peak


def make(path: Path, scrapes: int) -> None:
    """16 GPUs x 20 metrics, every 15 s, in time order."""
    series = [f'DCGM_FI_X{m}{{gpu="{g}",UUID="GPU-{g}",Hostname="n{g // 8}",job="dcgm",instance="n{g // 8}:9400"}} '
              for g in range(16) for m in range(20)]
    with path.open("w") as file:
        for i in range(scrapes):
            at = 1_780_000_000_000 + i * 15_000
            file.write("".join(f"{one}{i % 97}.5 {at}\n" for one in series))


def test_a_recording_of_thirty_times_the_length_takes_no_more_memory(tmp_path) -> None:
    """1 MB against 28 MB of exposition: the difference is noise of the allocator, not the file."""
    make(tmp_path / "short.prom", 30)
    make(tmp_path / "long.prom", 900)
    short, long = peak_mib(tmp_path / "short.prom"), peak_mib(tmp_path / "long.prom")
    assert long[0] == 30 * short[0]
    assert long[1] - short[1] < 12


def test_more_files_than_may_be_open(tmp_path) -> None:
    """One file for each of many nodes, read side by side."""
    for n in range(120):
        line = f'a{{job="j",instance="n{n}:1"}}'
        (tmp_path / f"n{n}.prom").write_text(f"{line} 1 1780000005000\n{line} 2 1780000020000\n")
    limited = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n" + CHILD
    done = subprocess.run([sys.executable, "-c", limited, str(tmp_path), str(ROOT)], capture_output=True, text=True, check=True)
    assert done.stdout.split()[:2] == ["240", "240"]
