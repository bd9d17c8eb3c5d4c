"""The structure of DESIGN §1, held by tests: who imports whom, how large files and functions are, who asks for the time."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("collectors", "pipeline", "detectors", "remediation", "dashboards", "fleet")
OURS = {"core", "app", "sample_data", *ROOMS}
CORE_MAY_IMPORT = {"core", "numpy", "polars", "yaml"}
# package: the only places that may import it
ONLY_IN = {"duckdb": ("pipeline/store/",), "streamlit": ("app/",), "grafana_foundation_sdk": ("dashboards/",)}
LINES_MOST, FUNCTION_MOST = 600, 60


def sources() -> list[Path]:
    """All Python files of the product."""
    return sorted(p for name in OURS for p in (ROOT / name).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Top-level names of the packages that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_core_and_never_a_sibling(room: str) -> None:
    """Collectors, pipeline, detectors, remediation, dashboards and fleet know nothing of each other."""
    wrong = [f"{relative(p)} imports {name}" for p in sources() if relative(p).startswith(room + "/")
             for name in imports(p) & (OURS - {"core", room})]
    assert not wrong


def test_core_imports_the_standard_library_numpy_polars_and_yaml_only() -> None:
    """The contracts depend on nothing that a room could want to change."""
    allowed = CORE_MAY_IMPORT | set(sys.stdlib_module_names)
    wrong = [f"{relative(p)} imports {name}" for p in sources() if relative(p).startswith("core/")
             for name in imports(p) - allowed]
    assert not wrong


def test_the_product_never_imports_the_fleet() -> None:
    """Only the fleet's own commands, the benches over it, virtual time and the scorecard know the bundled fleet; nothing of the product
    does."""
    allowed = {"app/cli.py", "app/bench.py", "app/virtual.py", "app/bench_fleet.py", "app/bench_blocks.py", "app/fleet_command.py",
               "app/fleet_targets.py", "app/policy_fleet.py"}
    wrong = [relative(p) for p in sources() if "fleet" in imports(p)
             and not relative(p).startswith(("fleet/", "app/evaluate/", "app/goodput/")) and relative(p) not in allowed]
    assert not wrong


@pytest.mark.parametrize("package", ONLY_IN)
def test_a_heavy_package_is_imported_in_one_place(package: str) -> None:
    """DuckDB only in the store, Streamlit only in app, the Grafana SDK only in dashboards."""
    wrong = [relative(p) for p in sources() if package in imports(p) and not relative(p).startswith(ONLY_IN[package])]
    assert not wrong


def test_only_the_clock_asks_the_system_for_the_time() -> None:
    """Time is an argument; the sample trainers are a user's programs and have their own."""
    words = ("time.time(", "time.time_ns(", "datetime.now(", "datetime.utcnow(", "time.monotonic(")
    wrong = [f"{relative(p)}: {word}" for p in sources() for word in words
             if word in p.read_text(encoding="utf-8")
             and relative(p) != "core/clock.py" and not relative(p).startswith("sample_data/")]
    assert not wrong


def test_no_file_is_longer_than_600_lines() -> None:
    """A file has one subject."""
    long = [f"{relative(p)}: {n}" for p in sources() if (n := len(p.read_text(encoding="utf-8").splitlines())) > LINES_MOST]
    assert not long


def test_no_function_is_longer_than_60_lines() -> None:
    """A function can be read at once."""
    long = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > FUNCTION_MOST:
                    long.append(f"{relative(path)}:{node.lineno} {node.name}: {size}")
    assert not long


def test_the_contracts_document_is_current() -> None:
    """core/contracts.md equals what the types say."""
    done = subprocess.run([sys.executable, "-m", "app.contracts", "--check"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr


def test_no_text_of_the_project_names_a_path_of_a_machine() -> None:
    """What is committed speaks of the project alone."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    words = ("/" + "work/", "/" + "root/", "pypi" + "-more")
    wrong = [f"{name}: {word}" for name in files for word in words
             if (ROOT / name).is_file() and word.encode() in (ROOT / name).read_bytes()]
    assert not wrong
