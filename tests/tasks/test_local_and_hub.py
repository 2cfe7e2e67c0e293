"""Through `datasets` itself, on local folders in the hub's layout; nothing here touches the network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars
import pytest

from loopscope.errors import LoopscopeError
from loopscope.tasks import load, load_task
from loopscope.tasks.known_tasks import BENCHMARKS, HubSource, _spellings, find_file, read_hub


@pytest.mark.parametrize(
    ("task", "split", "name"),
    [
        ("gsm8k", "test", "gsm8k_test.jsonl.gz"),
        ("gsm8k", "train", "gsm8k/train.jsonl"),
        ("gsm8k", "test", "openai/gsm8k/main/test-00000-of-00001.parquet"),
        ("math500", "test", "MATH-500/test.jsonl"),
        ("hellaswag", "validation", "hellaswag_val.jsonl.gz"),
        ("hellaswag", "validation", "Rowan/hellaswag/data/validation-00000-of-00001.parquet"),
        ("arc_challenge", "test", "ARC-Challenge-test.parquet"),
        ("arc_challenge", "test", "ai2_arc/ARC-Challenge/test-00000-of-00001.parquet"),
        ("boolq", "validation", "boolq-dev.jsonl"),
        ("commonsense_qa", "validation", "commonsenseqa_val.jsonl.gz"),
        ("commonsense_qa", "train", "csqa_train.jsonl"),
    ],
)
def test_a_split_is_found_under_its_usual_names(tmp_path: Path, task: str, split: str, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    assert find_file(BENCHMARKS[task], split, tmp_path) == tmp_path / name


def test_no_two_splits_share_a_name() -> None:
    names = [
        name for benchmark in BENCHMARKS.values() for split in benchmark.splits for name in _spellings(benchmark, split)
    ]
    assert len(names) == len(set(names))


def test_a_missing_file_says_what_was_expected_and_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "gsm8k_train.jsonl").touch()
    with pytest.raises(LoopscopeError, match=r"expected gsm8k_test\.jsonl\.gz.*it has gsm8k_train\.jsonl"):
        find_file(BENCHMARKS["gsm8k"], "test", tmp_path)


GSM8K = [{"question": f"What is {n}+1?", "answer": f"{n}+1=<<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}"} for n in range(6)]


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    library = pytest.importorskip("datasets", reason="needs the hub extra")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    library.disable_progress_bars()
    return library


def repository(folder: Path, config: str | None, split: str, rows: list[dict[str, Any]]) -> Path:
    """A data set repository as the hub stores it: Parquet files and a card that names the configurations."""
    data = folder / (config or "data")
    data.mkdir(parents=True)
    polars.DataFrame(rows).write_parquet(data / f"{split}-00000-of-00001.parquet")
    card = f"---\nconfigs:\n- config_name: {config or 'default'}\n  data_files:\n"
    card += f"  - split: {split}\n    path: {data.name}/{split}-*\n---\n"
    (folder / "README.md").write_text(card)
    return folder


@pytest.mark.parametrize("config", [None, "main"])
def test_rows_come_in_order_with_their_place(datasets: Any, tmp_path: Path, config: str | None) -> None:
    source = HubSource(str(repository(tmp_path / "gsm", config, "test", GSM8K)), "0" * 40, config)
    rows = list(read_hub(source, "test"))
    assert [row.fields for row in rows] == GSM8K
    assert [row.index for row in rows] == list(range(6))
    assert rows[4].where.endswith("test, row 4")


def test_a_missing_split_is_one_line(datasets: Any, tmp_path: Path) -> None:
    source = HubSource(str(repository(tmp_path / "gsm", None, "test", GSM8K)), "0" * 40)
    with pytest.raises(LoopscopeError, match=r"cannot load .* train from the hub .*data_dir=") as caught:
        list(read_hub(source, "train"))
    assert "\n" not in str(caught.value)


def test_without_the_extra_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        LoopscopeError, match=r"pip install '\.\[hub\]' in loopscope's folder, or give local files with data_dir="
    ):
        load_task("gsm8k")


def test_offline_is_one_line_that_names_the_remedy(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs the hub extra")
    code = "from loopscope.tasks import load_task\nload_task('gsm8k')"
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "loopscope.errors.LoopscopeError: cannot load openai/gsm8k@740312ad (main) test from the hub"
    )
    assert last.endswith("check the network, or give local files with data_dir=")


def test_hub_and_local_copies_give_the_same_task(
    datasets: Any, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HellaSwag's label is text on the hub and a number in the local copy."""
    local = polars.read_ndjson(data_dir / "hellaswag_val.jsonl.gz")
    hub = local.with_columns(polars.col("label").cast(polars.String))
    folder = tmp_path / "hellaswag"
    repository(folder, None, "validation", hub.to_dicts())
    stand_in = BENCHMARKS["hellaswag"].model_copy(update={"hub": HubSource(str(folder), "0" * 40)})
    monkeypatch.setattr(load, "find_benchmark", lambda name: stand_in)
    from_hub = load_task("hellaswag", limit=40)
    from_file = load_task("hellaswag", data_dir=data_dir, limit=40)
    assert from_hub.data_hash == from_file.data_hash
    assert from_hub.rows == from_file.rows
    assert from_hub.source_rows == 10042


def test_every_pin_is_a_commit() -> None:
    for benchmark in BENCHMARKS.values():
        for hub in (benchmark.hub, *benchmark.elsewhere.values()):
            assert len(hub.revision) == 40
            assert set(hub.revision) <= set("0123456789abcdef")
