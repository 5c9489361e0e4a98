"""A test whose need is not met is skipped with the reason; in CI it fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
NEEDY = """
import pytest

@pytest.mark.needs_tshark
def test_needy() -> None:
    pass
"""


@pytest.mark.parametrize(
    ("in_ci", "code", "outcome"),
    [("", 0, "1 skipped"), ("1", 1, "1 error")],
)
def test_a_missing_need(tmp_path: Path, in_ci: str, code: int, outcome: str) -> None:
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_needy.py").write_text(NEEDY)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-rsE", "-o", "markers=needs_tshark", "test_needy.py"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "ROCEMU_CI": in_ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == code, run.stdout
    assert outcome in run.stdout
    assert "needs_tshark: tshark is not installed" in run.stdout
