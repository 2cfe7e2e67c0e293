"""The README's Python runs as it stands, on two stories instead of 32."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


def test_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("matplotlib")
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in [*blocks, *blocks]:  # the second time the finished runs are opened
        exec(compile(block.replace("limit=32", "limit=2"), "README.md", "exec"), names)
    assert "toy-ouro" in capsys.readouterr().out
    assert (tmp_path / "runs" / "direction.pdf").stat().st_size > 0
    assert names["run"].finished  # type: ignore[attr-defined]
