"""loopscope as a model of the real lm-evaluation-harness, next to its Hugging Face class and loopscope's runs."""

from __future__ import annotations

import json
import tomllib
import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import loopscope as ls
from loopscope.cli.app import exit_code
from loopscope.models.generate import Sampler
from loopscope.models.registry import EMBEDDED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from loopscope.lm_eval_backend import LoopscopeLM

ROOT = Path(__file__).resolve().parents[1]
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PAIRS = [
    ("Tom has 3 pens and buys 4 more. How many?", " 7"),
    ("Tom has 3 pens and buys 4 more. How many?", " 8"),
    ("Tom has 3 pens and buys 4 more. How many?", " none at all"),
    ("a blank ends this ", "and goes over"),
    ("", "An empty context, then a text."),
    ("<s>It begins already", " with the token"),
    ("a long context that loses its beginning " * 12, "end"),
    ("Tom has 3 pens", " and buys 4 more. How many?"),
]
"""Context and continuation."""
TEXTS = ["One text.", "Another text of several windows: " + "they walk along the river and talk. " * 20]
CHOICES = [
    {"question": f"Tom has {n} pens and buys {n + 1} more. How many?",
     "choices": [str(2 * n + 1), f"{n} pens", "none at all", "all"], "answer": n % 4}
    for n in range(3, 9)
]  # fmt: skip


def requests(kind: str, given: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, arguments, 0, doc_id=row) for row, arguments in enumerate(given)]


def model(spec: Any = "toy-ouro", **settings: Any) -> LoopscopeLM:
    return ls.lm_eval_model(spec, device="cpu", **{"dtype": "float32", **settings})


@pytest.fixture(scope="module", params=[False, True], ids=["bare", "begins"])
def llama(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama; its tokenizer puts a token before every text, or does not."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=1100, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).float().save_pretrained(folder)
    backend = Backend.from_file(str(EMBEDDED / "toy-ouro" / "tokenizer.json"))
    backend.add_special_tokens(["<s>", "</s>"])
    if request.param:
        begin = backend.token_to_id("<s>")
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>", chat_template=CHAT
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def both(llama: Path) -> tuple[LoopscopeLM, HFLM]:
    """The checkpoint with all its layers looped once, and in lm-evaluation-harness's own class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(llama)
        plain = LlamaForCausalLM.from_pretrained(llama, dtype=torch.float32)
        return model(str(llama), loop="0-1", depth=1), HFLM(pretrained=plain, tokenizer=tokenizer, batch_size=1)


@pytest.fixture
def choices(tmp_path: Path) -> Path:
    """A task of local files."""
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CHOICES))
    task = tmp_path / "choices.yaml"
    task.write_text(f"""task: choices
dataset_path: json
dataset_kwargs:
  data_files: {{test: {tmp_path}/test.jsonl}}
  cache_dir: {tmp_path}/cache
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: answer
doc_to_choice: choices
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
""")
    return task


def evaluate(given: LoopscopeLM, task: Path) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        manager = TaskManager(include_defaults=False)
        return dict(lm_eval.simple_evaluate(given, tasks=[str(task)], task_manager=manager, bootstrap_iters=0))


def test_log_likelihoods_are_those_of_the_hugging_face_class(both: tuple[LoopscopeLM, HFLM]) -> None:
    ours, theirs = (one.loglikelihood(requests("loglikelihood", PAIRS), disable_tqdm=True) for one in both)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine[0] == pytest.approx(other[0], rel=1e-5)
        assert mine[1] == other[1]


def test_texts_in_windows_are_those_of_the_hugging_face_class(both: tuple[LoopscopeLM, HFLM]) -> None:
    asked = requests("loglikelihood_rolling", [(text,) for text in TEXTS])
    ours, theirs = (one.loglikelihood_rolling(asked, disable_tqdm=True) for one in both)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_generated_texts_are_those_of_the_hugging_face_class(both: tuple[LoopscopeLM, HFLM]) -> None:
    asked = [(pair[0] or "One", {"until": ["x", "\n\n"], "max_gen_toks": 12, "do_sample": False}) for pair in PAIRS]
    ours, theirs = (one.generate_until(requests("generate_until", asked), disable_tqdm=True) for one in both)
    assert ours == theirs
    assert any(len(text) > 10 for text in ours)


def test_conversations_are_those_of_the_hugging_face_class(both: tuple[LoopscopeLM, HFLM]) -> None:
    asked = [{"role": "user", "content": "How many?"}]
    begun = [*asked, {"role": "assistant", "content": "There are"}]
    for messages, prompted in ((asked, True), (begun, False)):
        ours, theirs = (one.apply_chat_template(messages, add_generation_prompt=prompted) for one in both)
        assert ours == theirs
    assert both[0].chat_template(True) == CHAT
    assert both[0].tokenizer_name != model().tokenizer_name


@pytest.mark.parametrize(("spec", "depth"), [("toy-ouro", 3), ("toy-huginn", 5)])
def test_a_task_scores_its_options_as_a_run_does(spec: str, depth: int, choices: Path, tmp_path: Path) -> None:
    """Also where the initial state is drawn: the document's number seeds it in both."""
    found = evaluate(model(spec, depth=depth), choices)
    samples = sorted(found["samples"]["choices"], key=lambda sample: sample["doc_id"])
    run = ls.measure(spec, f"lm_eval:{choices}", output=tmp_path / "run", depths=[depth], dtype="float32", device="cpu")
    for mine, stored in zip(samples, run.depths.sort("row")["option_logliks"].to_list(), strict=True):
        assert [response[0][0] for response in mine["resps"]] == pytest.approx(stored, rel=1e-5)
    scores = ls.lm_eval_scores(run, f"lm_eval:{choices}").filter(pl.col("metric") == "acc")
    assert found["results"]["choices"]["acc,none"] == scores["value"].item()
    drawn = "question, seed 20260904" if spec == "toy-huginn" else None
    recorded = {name: found["config"][name] for name in ("depth", "mean_loops_per_token", "initial_state", "policy")}
    assert recorded == {"depth": depth, "mean_loops_per_token": depth, "initial_state": drawn, "policy": None}


@pytest.mark.parametrize("spec", ["toy-ouro", "toy-huginn"])
def test_a_request_does_not_depend_on_the_others(spec: str) -> None:
    asked = requests("loglikelihood", PAIRS)
    drawn = {"max_gen_toks": 6, "do_sample": True, "temperature": 1.0, "seed": 3}
    prompts = requests("generate_until", [(pair[0] or "One", drawn) for pair in PAIRS])
    alone, some, many = (model(spec, batch_size=size) for size in (1, "3", "auto"))
    expected, texts = alone.loglikelihood(asked, disable_tqdm=True), alone.generate_until(prompts)
    for other in (some, many):
        for one, two in zip(expected, other.loglikelihood(asked, disable_tqdm=True), strict=True):
            assert one[0] == pytest.approx(two[0], rel=1e-5)
        assert other.generate_until(prompts) == texts
    assert len(set(texts)) > 4


def test_generated_texts_are_those_of_generate() -> None:
    texts = ["Problem: Tom has 3 pens and buys 4 more.", "A book about Nora", "Solution:"]
    given = {"until": [".", "\n"], "max_gen_toks": 16, "temperature": 0.7, "top_k": 20, "do_sample": True}
    lm = model(depth=3)
    for kwargs, sampler in (({**given, "do_sample": False}, Sampler()), (given, Sampler(0.7, 20))):
        made = lm.generate_until(requests("generate_until", [(text, kwargs) for text in texts]))
        expected = ls.generate(
            lm.model, texts, max_new_tokens=16, depth=3, stop=[".", "\n"], tokenizer=lm.tokenizer, sampler=sampler
        )
        assert made == expected.texts


def test_options_of_a_context_are_packed_and_equal_sequences_run_once() -> None:
    lm, seen = model(), []
    embed: Callable[..., Any] = lm.model.embed
    lm.model.embed = lambda batch: (seen.append(int(batch.attention_mask.sum())), embed(batch))[1]
    context, options = "Tom has 3 pens and buys 4 more. How many?", [" 7", " 8", " none at all"]
    lm.loglikelihood([Instance("loglikelihood", {}, (context, option), 0, doc_id=0) for option in options])
    lengths = [len(lm.tok_encode(option)) for option in options]
    # The last token of a sequence is predicted and not read; the two short options then ask the same position.
    assert seen == [len(lm.tok_encode(context)) + 1 + max(lengths) - 1 - (lengths[0] == 1)]


def test_a_scale_reads_between_and_beyond_two_states() -> None:
    context, text = "A book about Nora, Tina", " and Jonas"
    asked = requests("loglikelihood", [(context, text)])

    def found(**settings: Any) -> float:
        return float(model(**settings).loglikelihood(asked, disable_tqdm=True)[0][0])

    lm = model()
    ids, start = lm.tok_encode(context + text), len(lm.tok_encode(context))
    states = lm.model.states(ls.Batch.from_rows([ids]), range(6))

    def expected(first: int, last: int, alpha: float) -> float:
        state = states[first] + alpha * (states[last] - states[first])
        log_p = lm.model.readout(state)[0].double().log_softmax(-1)
        return sum(float(log_p[place - 1, ids[place]]) for place in range(start, len(ids)))

    assert found(depth=5, scale=0.5) == pytest.approx(expected(4, 5, 0.5), rel=1e-5)
    assert found(depth=3, chord=1, omega=0.25) == pytest.approx(expected(1, 3, 1.25), rel=1e-5)
    assert found(depth=3, omega=-0.5) == pytest.approx(expected(2, 3, 0.5), rel=1e-5)
    assert found(depth=4, scale=0.0) == pytest.approx(found(depth=3), rel=1e-5)


def test_generation_reads_at_the_scale() -> None:
    asked = requests("generate_until", [("A book about Nora, Tina", {"max_gen_toks": 8})])
    assert model(depth=4, scale=0.0).generate_until(asked) == model(depth=3).generate_until(asked)
    assert model(depth=4, scale=0.0).generate_until(asked) != model(depth=4).generate_until(asked)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pretrained": ""}, "no model is named"),
        ({"pretrained": "toy-ouro", "depth": -1}, "depth"),
        ({"pretrained": "toy-ouro", "depth": 2.5}, "not a whole number"),
        ({"pretrained": "toy-ouro", "dept": 2}, "dept"),
        ({"pretrained": "toy-ouro", "depth": 0, "scale": 0.5}, "depth=1 or more"),
        ({"pretrained": "toy-ouro", "scale": 0.5, "omega": 0.5}, "give one of them"),
        ({"pretrained": "toy-ouro", "chord": 1}, "give omega="),
        ({"pretrained": "toy-ouro", "chord": 4, "omega": 0.5}, "chord"),
        ({"pretrained": "toy-ouro", "max_length": 100_000}, "max_length"),
        ({"pretrained": "toy-ouro", "batch_size": "many"}, "batch_size"),
    ],
)
def test_what_cannot_be_run_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ls.LoopscopeError, match=said) as caught:
        LoopscopeLM.create_from_arg_obj(settings, {"device": "cuda:0"} if not torch.cuda.is_available() else {})
    assert "\n" not in str(caught.value)


def test_requests_that_cannot_be_answered_are_refused() -> None:
    lm = model(max_length=8)
    with pytest.raises(ls.LoopscopeError, match="max_length is 8"):
        lm.loglikelihood(requests("loglikelihood", [("a", " one two three four five six seven eight nine")]))
    for given, said in (({"num_beams": 4}, "no setting num_beams"), ({"max_gen_toks": 8}, "no room for a context")):
        with pytest.raises(ls.LoopscopeError, match=said):
            lm.generate_until(requests("generate_until", [("a", given)]))
    with pytest.raises(ls.LoopscopeError, match="no chat template"):
        lm.apply_chat_template([{"role": "user", "content": "a"}])


def test_the_entry_point_names_the_class() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["lm_eval.models"]
    assert EntryPoint("loopscope", declared["loopscope"], "lm_eval.models").load() is LoopscopeLM
    assert lm_eval.api.registry.get_model("loopscope") is LoopscopeLM


EXAMPLE = ["--tasks", "examples/lm_eval/next_number.yaml"]


def test_command_line_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the repository's root: the example task, two documents of it."""
    monkeypatch.chdir(ROOT)
    words = ["lm-eval", "--model_args", "pretrained=toy-ouro,depth=4,dtype=float32", *EXAMPLE, "--limit", "2"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert exit_code([*words, "--output_path", str(tmp_path)]) == 0
    (results,) = tmp_path.rglob("results_*.json")
    found = json.loads(results.read_text())
    assert found["results"]["next_number"]["acc,none"] == 1.0
    assert (found["config"]["model"], found["config"]["depth"], found["config"]["scale"]) == ("loopscope", 4, 1.0)


def test_command_line_says_what_is_wrong_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert exit_code(["lm-eval", "--model_args", "pretrained=toy-ouro,depth=-1", *EXAMPLE]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("loopscope: --depth -1.0 is not a whole number")
