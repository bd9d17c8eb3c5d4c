"""A made-up past with a thermal throttle in it, as a recording and inside real servers, once for the folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.import_command import ImportOptions, import_history
from app.processes import free_port
from app.replay import ReplayOptions, replay
from tests.evaluate.plan import draw
from tests.evaluate.recordings import Truth, write
from tests.history.servers import Past, exposition, odd_series, past_of, prometheus, victoria


@dataclass(frozen=True)
class Made:
    """folder: the recording. open_metrics, text: the same samples with times in s and in ms. start, end: ms."""

    folder: Path
    open_metrics: str
    text: str
    past: Past
    truth: Truth
    start: int
    end: int

    def options(self, out: Path, url: str | None = None, **more: object) -> ImportOptions:
        """An import of all of it."""
        more = {"start": str(self.start - 60_000), "end": str(self.end + 60_000), **more}
        return ImportOptions(str(out), url, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The past: 2 nodes of 2 GPUs that are read every 30 s, one hot GPU, a target that is silent for a while, odd series."""
    folder = tmp_path_factory.mktemp("recording")
    plan = draw(213, "thermal_throttle", form="om", address="host", gpus=2, used=2, seconds=1500, outage=(1, 300.0, 200.0))
    truth = write(plan, folder)
    assert truth is not None
    odd = odd_series(plan.start_ms)
    body = (folder / "all.om").read_text().removesuffix("# EOF\n")
    lines = body.splitlines() + exposition(odd, True)
    text = "\n".join(f"{head} {round(float(at) * 1000)}" for head, _, at in (line.rpartition(" ") for line in lines)) + "\n"
    (folder / "odd.prom").write_text("\n".join(exposition(odd, False)) + "\n")
    open_metrics = "\n".join(lines) + "\n# EOF\n"
    return Made(folder, open_metrics, text, past_of(text, 1), truth, plan.start_ms, plan.start_ms + plan.seconds * 1000)


@pytest.fixture(scope="session")
def prometheus_url(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prometheus that holds the past."""
    with prometheus(tmp_path_factory.mktemp("prometheus"), free_port(), made.open_metrics) as url:
        yield url


@pytest.fixture(scope="session")
def victoria_url(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real VictoriaMetrics that holds the past."""
    with victoria(tmp_path_factory.mktemp("victoria"), free_port(), made.text) as url:
        yield url


def story(*paths: Path, **more: object) -> list[str]:
    """The lines of a replay."""
    lines: list[str] = []
    replay(ReplayOptions(tuple(str(p) for p in paths), **more), lines.append)  # type: ignore[arg-type]
    return lines


def judged_lines(lines: list[str]) -> list[str]:
    """Those of incidents and findings."""
    return [line for line in lines if line.startswith(('{"type":"incident"', '{"type":"finding"'))]


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the replay of the recording keeps its store."""
    return tmp_path_factory.mktemp("kept") / "store"


@pytest.fixture(scope="session")
def told(made: Made, kept: Path) -> list[str]:
    """The replay of the recording; it keeps its store in `kept`."""
    return story(made.folder, keep=str(kept))


def imported(options: ImportOptions) -> Path:
    """The folder of a finished import."""
    import_history(options)
    return Path(options.out)
