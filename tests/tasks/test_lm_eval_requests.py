"""`lm_eval:NAME` against lm-evaluation-harness itself: the same requests, log-likelihoods and scores on one tiny model.

Its own Hugging Face model class runs a tiny Llama of transformers; our `loop:` family runs the same checkpoint with all
layers looped once, which is the same model. Data and YAML are local: nothing is fetched.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import loopscope as ls
from loopscope.api import measure_with
from loopscope.models.registry import EMBEDDED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
DOCS = [
    {"question": f"Tom has {n} pens and buys {n + 1} more. How many?",
     "choices": [str(2 * n + 1), f"{n} pens", "none at all", "é"],
     "answer": n % 4, "passage": f"{n} and {n} are", "ending": f" {2 * n} in all"}
    for n in range(3, 9)
]  # fmt: skip
YAMLS = {
    "choices": """
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer: "
doc_to_target: answer
doc_to_choice: choices
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
""",
    "inputs": """
output_type: multiple_choice
doc_to_text: "{{answer % 2}}"
doc_to_choice: "{{[question + ' ' + choices[0], question + ' ' + choices[1]]}}"
doc_to_target: "{{ending}}"
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
""",
    "endings": """
output_type: loglikelihood
doc_to_text: "{{passage}}"
doc_to_target: "{{ending}}"
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
""",
    "empty": """
output_type: loglikelihood
doc_to_text: ""
doc_to_target: "{{ending}}"
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
""",
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A tiny Llama of transformers with the toys' tokenizer, which puts a token before every text or does not."""
    return {begins: write_llama(tmp_path_factory.mktemp("llama"), begins) for begins in (False, True)}


def write_llama(folder: Path, begins: bool) -> Path:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=1100, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).float().save_pretrained(folder)
    backend = Backend.from_file(str(EMBEDDED / "toy-ouro" / "tokenizer.json"))
    backend.add_special_tokens(["<s>", "</s>"])
    if begins:
        begin = backend.token_to_id("<s>")
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=CHAT)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for split, docs in (("test", DOCS), ("train", [{**doc, "question": "Old: " + doc["question"]} for doc in DOCS])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    for name, text in YAMLS.items():
        head = f"""task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {folder}/test.jsonl, train: {folder}/train.jsonl}}
  cache_dir: {folder}/cache
test_split: test
training_split: train
fewshot_split: train
"""
        (folder / f"{name}.yaml").write_text(head + text)
    return folder


def theirs(checkpoint: Path, task: Path, **options: Any) -> dict[str, Any]:
    """Log-likelihoods of every document and the scores, by lm-evaluation-harness's own evaluation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
        plain = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        model = HFLM(pretrained=plain, tokenizer=tokenizer, batch_size=1)
        found = lm_eval.simple_evaluate(
            model, tasks=[str(task)], task_manager=TaskManager(include_defaults=False), bootstrap_iters=0, **options
        )
    samples = sorted(found["samples"][task.stem], key=lambda sample: sample["doc_id"])
    return {
        "logliks": [[response[0][0] for response in sample["resps"]] for sample in samples],
        "arguments": [sample["arguments"] for sample in samples],
        "scores": {name.partition(",")[0]: value for name, value in found["results"][task.stem].items()},
    }


def ours(checkpoint: Path, task: Path, output: Path, **options: Any) -> tuple[ls.Run, list[list[float]]]:
    """The same of a run with every layer looped once."""
    run = measure_with(
        checkpoint, f"lm_eval:{task}", output=output, depths=[1], device="cpu", dtype="float32",
        readout_dtype="float64", model_args="loop=0-1", **options,
    )  # fmt: skip
    table = run.depths.filter(pl.col("depth") == 1).sort("row")
    if run.manifest.tasks[0].kind == "options":
        return run, table["option_logliks"].to_list()
    return run, [[value] for value in (table["utility"] * run.examples.sort("row")["n_tokens"]).to_list()]


SHOTS: dict[str, Any] = {"num_fewshot": 2}
AS_CHAT: dict[str, Any] = {**SHOTS, "apply_chat_template": True}


@pytest.mark.parametrize(
    ("name", "begins", "options"),
    [
        ("choices", False, {}), ("choices", True, SHOTS), ("choices", True, AS_CHAT), ("choices", False, AS_CHAT),
        ("inputs", True, {}), ("inputs", False, AS_CHAT), ("endings", False, SHOTS), ("endings", True, AS_CHAT),
        ("empty", True, {}), ("empty", False, {}),
    ],
)  # fmt: skip
def test_log_likelihoods_are_those_of_lm_eval(
    checkpoints: dict[bool, Path], tasks: Path, tmp_path: Path, name: str, begins: bool, options: dict[str, Any]
) -> None:
    checkpoint = checkpoints[begins]
    expected = theirs(checkpoint, tasks / f"{name}.yaml", **options)
    run, found = ours(checkpoint, tasks / f"{name}.yaml", tmp_path / "run", **options)
    for mine, other in zip(found, expected["logliks"], strict=True):
        assert mine == pytest.approx(other, rel=0, abs=5e-5)
    scores = ls.lm_eval_scores(run, f"lm_eval:{tasks}/{name}.yaml").filter(pl.col("depth") == 1)
    by_metric = dict(scores.select("metric", "value").iter_rows())
    for metric, value in by_metric.items():
        assert value == pytest.approx(expected["scores"][metric], rel=1e-4), metric
    assert set(by_metric) == set(re.findall(r"metric: (\w+)", YAMLS[name]))


def test_rows_and_limits_are_chosen_as_elsewhere(tasks: Path) -> None:
    spec = f"lm_eval:{tasks}/choices.yaml"
    task = ls.load_task(spec, ids=[1, 4])
    assert [row.id for row in task.rows] == ["test-1", "test-4"]
    assert [row.answer for row in task.rows] == [DOCS[1]["answer"], DOCS[4]["answer"]]
    assert (task.name, task.source_rows, task.kind, task.encoding) == ("lm_eval:choices", 6, "options", "harness")
    assert [row.source_row for row in ls.load_task(spec, limit=2).rows] == [0, 1]
    assert ls.load_task(spec, num_fewshot=1).data_hash != ls.load_task(spec).data_hash
    inputs = ls.load_task(f"lm_eval:{tasks}/inputs.yaml", limit=1).rows[0]
    assert inputs.texts == ["7 6 in all", "3 pens 6 in all"]


def test_a_run_resumes_is_verified_and_shown(checkpoints: dict[bool, Path], tasks: Path, tmp_path: Path) -> None:
    from loopscope.measuring.verify import Named, measure_again

    given: dict[str, Any] = {"transitions": [1], "tokens": True, "device": "cpu", "level": "quick", "num_fewshot": 1,
                             "model_args": "loop=0-1"}  # fmt: skip
    spec, model = f"lm_eval:{tasks}/inputs.yaml", str(checkpoints[True])
    run = measure_with(model, spec, output=tmp_path / "run", **given)
    assert measure_with(model, spec, output=tmp_path / "run", **given).manifest == run.manifest
    assert "comes from a file, which is followed only where you name it" in measure_again(run).findings[0].message
    assert measure_again(run, Named(tasks=(spec,))).findings == ()
    with pytest.raises(ls.LoopscopeError, match="lm-evaluation-harness has no task 'inputs'"):
        ls.lm_eval_scores(run)  # the file that the log names is not read
    with pytest.raises(ls.LoopscopeError, match=r"num_fewshot was 1, is 2"):
        measure_with(model, spec, output=tmp_path / "run", **given | {"num_fewshot": 2})
    places = run.tokens.collect().filter(pl.col("row") == 0, pl.col("option") == 1).sort("token")
    text = run.examples.sort("row")["options"][0][1]
    shown = [text[a:b] for a, b in places.select("text_start", "text_end").iter_rows()]
    assert "".join(shown).strip() == DOCS[0]["ending"].strip()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("arc_eazy", "did you mean arc_easy", marks=pytest.mark.slow),
        pytest.param("mmlu", "is a group of tasks", marks=pytest.mark.slow),
        pytest.param("hellaswag", "cannot prepare lm_eval:hellaswag.*is there a network", marks=pytest.mark.slow),
        ("nothing.yaml", "the file nothing.yaml does not exist"),
        ("{}/generating.yaml", "output type generate_until"),
        ("{}/broken.yaml", "cannot prepare"),
        ("{}/two_right.yaml", "question test-0 has 2 right options"),
        ("{}/none_right.yaml", "question test-0 has no right option among its 4"),
        ("{}/out_of_range.yaml", "cannot prepare.*IndexError"),
        ("{}/no_shots.yaml", r"says itself that it takes no examples: leave out num_fewshot=1"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(
    tasks: Path, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its own index are slow: it reads thousands of files first."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    choices = (tasks / "choices.yaml").read_text()
    (tasks / "generating.yaml").write_text(choices.replace("multiple_choice", "generate_until"))
    (tasks / "broken.yaml").write_text(choices.replace("test.jsonl", "missing.jsonl"))
    (tasks / "two_right.yaml").write_text(choices.replace("target: answer", 'target: "{{[0, 1]}}"'))
    (tasks / "none_right.yaml").write_text(choices.replace("target: answer", 'target: "{{question}}"'))
    (tasks / "out_of_range.yaml").write_text(choices.replace("target: answer", 'target: "{{9}}"'))
    (tasks / "no_shots.yaml").write_text(choices + "num_fewshot: 0\n")
    with pytest.raises(ls.LoopscopeError, match=said) as caught:
        ls.load_task(f"lm_eval:{name.format(tasks)}", num_fewshot=1 if "shots" in name else None)
    assert "\n" not in str(caught.value)


def test_without_lm_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    with pytest.raises(ls.LoopscopeError, match=r"pip install '\.\[lm-eval\]'"):
        ls.load_task("lm_eval:arc_easy")
