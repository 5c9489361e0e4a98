"""``rocemu responder --other-pd``: what it takes; what it does is in pcaps/pd.pcapng."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocemu.cli.main import main


@pytest.mark.parametrize(
    ("regions", "known"),
    [(["--mr", "a:64:remote_read", "--mr", "b:64:remote_read"], "a, b"), ([], "none")],
)
def test_it_names_regions_that_there_are(
    capsys: pytest.CaptureFixture[str], regions: list[str], known: str
) -> None:
    assert main(["responder", *regions, "--other-pd", "c"]) == 2
    sentence = f"Invalid value for --other-pd: no region 'c'; there are {known}"
    assert capsys.readouterr().err == f"rocemu responder: {sentence}\n"


def test_a_file_has_a_list_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "responder.toml"
    file.write_text('mr = ["a:64:remote_read"]\nother-pd = "a"\n')
    assert main(["responder", "--config", str(file)]) == 2
    sentence = "Invalid value for --other-pd: 'a': a list is needed"
    assert capsys.readouterr().err == f"rocemu responder: {sentence}\n"
