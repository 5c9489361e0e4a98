"""The wheel as users get it: built, installed in an empty environment, used far from the tree."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rocemu import __version__

PROJECT = Path(__file__).parents[2]

pytestmark = pytest.mark.needs_network


def run(*words: str | Path, cwd: Path) -> str:
    """Standard output of a command that must end with 0."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, PROJECT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a virtual environment that has the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    run(folder / "bin" / "pip", "install", "--quiet", wheel, cwd=folder)
    return folder / "bin"


def test_it_holds_both_packages_whole_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"rocemu-{__version__}.dist-info/"
    assert f"{info}licenses/LICENSE" in names
    ours = {
        str(path.relative_to(PROJECT))
        for package in ("rocemu", "layers")
        for path in (PROJECT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {"rocemu/py.typed", "layers/py.typed"} <= ours
    assert {name for name in names if not name.startswith(info)} == ours


def test_the_command_and_the_module_run(environment: Path, tmp_path: Path) -> None:
    assert run(environment / "rocemu", "--version", cwd=tmp_path) == f"rocemu {__version__}\n"
    out = run(environment / "python", "-m", "rocemu", "--version", cwd=tmp_path)
    assert out == f"rocemu {__version__}\n"


def test_both_packages_import_from_the_environment(environment: Path, tmp_path: Path) -> None:
    code = "import rocemu, layers; print(rocemu.__file__); print(layers.BTH().name)"
    path, name = run(environment / "python", "-c", code, cwd=tmp_path).splitlines()
    assert Path(path).is_relative_to(environment.parent)
    assert name == "BTH"
