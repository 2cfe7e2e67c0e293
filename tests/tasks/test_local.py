from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from loopscope.errors import LoopscopeError
from loopscope.tasks.benchmarks import BENCHMARKS
from loopscope.tasks.sources import candidates, find_file


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
        name
        for benchmark in BENCHMARKS.values()
        for split in benchmark.splits
        for name in set(candidates(benchmark, split))
    ]
    assert len(names) == len(set(names))


def test_a_missing_file_says_what_was_expected_and_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "gsm8k_train.jsonl").touch()
    with pytest.raises(LoopscopeError, match=r"expected gsm8k_test\.jsonl\.gz.*it has gsm8k_train\.jsonl"):
        find_file(BENCHMARKS["gsm8k"], "test", tmp_path)


def test_a_missing_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(LoopscopeError, match="does not exist"):
        find_file(BENCHMARKS["gsm8k"], "test", tmp_path / "nowhere")


def test_a_file_that_is_not_the_listed_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "piqa_val.jsonl").write_bytes(b"{}\n")
    digest = hashlib.sha256(b"{}\n").hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  other.jsonl\n{digest}  piqa_val.jsonl\n")
    assert find_file(BENCHMARKS["piqa"], "validation", tmp_path).name == "piqa_val.jsonl"
    (tmp_path / "piqa_val.jsonl").write_bytes(b"{ }\n")
    with pytest.raises(LoopscopeError, match=r"is not the file that .*SHA256SUMS lists"):
        find_file(BENCHMARKS["piqa"], "validation", tmp_path)
