"""`loop_layers`: models of transformers looped over a span, against the same layers repeated by hand."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

import loopscope as ls
from loopscope.api import measure_with
from loopscope.errors import LoopscopeError
from loopscope.models.families.layer_loop import LayerLoop, LayerLoopConfig
from loopscope.models.in_memory import model_identity

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
OLD = {"vocab_size": 61, "n_embd": 32, "n_layer": 5, "n_head": 4, "n_positions": 64, "bos_token_id": 1}
OLD["eos_token_id"] = 2
CONFIGS = {
    "GPT2": OLD,
    "GPTJ": OLD | {"rotary_dim": 4},
    "GPTNeoX": SIZES,
    "Llama": GROUPED,
    "Mistral": GROUPED | {"sliding_window": 3},
    "Qwen2": GROUPED | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
    "Qwen3": GROUPED | {"head_dim": 8},
    "Qwen2Moe": GROUPED | {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "Gemma2": GROUPED | {"head_dim": 8, "sliding_window": 3, "attn_implementation": "eager"},
    "Gemma3Text": GROUPED | {"head_dim": 8, "sliding_window": 3, "sliding_window_pattern": 2},
    "Phi": GROUPED,
    "Phi3": GROUPED,
    "Olmo2": GROUPED,
    "Cohere": GROUPED,
    "Granite": GROUPED | {"logits_scaling": 3.0, "residual_multiplier": 0.7},
}
ROWS = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14]]
POSITIONS = torch.tensor([[0, 3], [0, 6], [1, 2]])
START, END, LOOPS = 1, 2, 3


def make(kind, seed=0):
    """A model of an architecture with random weights that are not near any initialisation."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = getattr(transformers, f"{kind}Config")(**CONFIGS[kind])
        model = transformers.AutoModelForCausalLM.from_config(config)
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.3)
        return model.eval()


def repeated(model, order):
    """The model with its layers in another order, some of them several times: its own forward does the rest."""
    deep = copy.deepcopy(model)
    holder = deep.base_model
    name = "h" if hasattr(holder, "h") else "layers"
    layers = getattr(holder, name)
    setattr(holder, name, nn.ModuleList([layers[i] for i in order]))
    config = deep.config.get_text_config()
    types = getattr(config, "layer_types", None)
    config.num_hidden_layers = len(order)
    if types is not None:
        config.layer_types = [types[i] for i in order]
    return deep


def looped_order(loops):
    span = list(range(START, END + 1))
    return [*range(START), *span * loops, *range(END + 1, 5)]


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_architecture_agrees_with_layers_repeated_by_hand(kind):
    model = make(kind)
    looped = ls.loop_layers(model, START, END)
    batch = ls.Batch.from_rows(ROWS)
    with torch.no_grad():
        states = looped.states(batch, range(LOOPS + 1))
        for depth in range(LOOPS + 1):
            deep = repeated(model, looped_order(depth))
            found = looped.readout(states[depth])
            for index, row in enumerate(ROWS):
                expected = deep(input_ids=torch.tensor([row]), use_cache=False).logits[0]
                scale = float(expected.abs().max())
                assert float((found[index, : len(row)] - expected).abs().max()) < 1e-5 * scale, depth


@pytest.mark.parametrize("kind", CONFIGS)
def test_derivatives_through_every_architecture_in_float64(kind):
    looped = ls.loop_layers(make(kind), START, END)
    batch = ls.Batch.from_rows(ROWS)
    with torch.no_grad():
        walk = ls.Walk.of(looped, batch).to(1)
        before, after = walk.state, walk.advance()
    readout = looped.body_and_head(torch.float64)
    paths = [
        ls.nonlinear_path_from_states(
            readout, before, after, [3, 4, 5], POSITIONS, examples=[0, 0, 1], dtype=torch.float64, impl=impl
        )
        for impl in ("auto", "nested")
    ]
    auto, nested = (path.derivatives(0.3, order=3).stack for path in paths)
    assert paths[0].backends_used == {"taylor"}
    torch.testing.assert_close(auto, nested, rtol=1e-10, atol=1e-12)
    # Differences of φ itself see a readout that computes anything in less than float64.
    step = 1e-4
    phi = paths[0].derivatives([0.3 - step, 0.3, 0.3 + step], order=1).stack
    slope = (phi[0, :, 2] - phi[0, :, 0]) / (2 * step)
    torch.testing.assert_close(slope, phi[1, :, 1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("Llama", {"tie_word_embeddings": True}),
        ("Llama", {"attention_bias": True, "head_dim": 12}),
        ("Mistral", {"sliding_window": None}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 10, "num_key_value_heads": 1}),
    ],
)
def test_it_agrees_with_the_family_that_reads_such_checkpoints(kind, fields):
    json = GROUPED | {"rms_norm_eps": 1e-6} | fields
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{kind}Config")(**json)).eval()
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.3)
    config = json | {"architectures": [type(model).__name__]}
    own = LayerLoop(LayerLoopConfig.read(config, chosen={"loop": f"{START}-{END}"}))
    own.load_state_dict(model.state_dict())
    own.prepare()
    other = ls.loop_layers(model, START, END)
    assert other.boundary == own.boundary
    batch = ls.Batch.from_rows(ROWS)
    ours, theirs = own.states(batch, [1, 2]), other.states(batch, [1, 2])
    valid = batch.attention_mask
    torch.testing.assert_close(ours[2][valid], theirs[2][valid], rtol=1e-5, atol=1e-6)
    found = [
        ls.nonlinear_path_from_states(
            m.body_and_head(torch.float64), ours[1], ours[2], [3, 4, 5], POSITIONS, dtype=torch.float64
        )
        for m in (own, other)
    ]
    expected, seen = (path.derivatives([0.0, 0.5, 1.0], order=3).stack for path in found)
    torch.testing.assert_close(seen, expected, rtol=1e-9, atol=1e-12)


def test_the_model_is_left_as_it_was():
    model = make("Gemma2").train()
    weights = {name: (weight.clone(), weight.data_ptr()) for name, weight in model.named_parameters()}
    looped = ls.loop_layers(model, 0, 4)
    looped.states(ls.Batch.from_rows(ROWS), [2])
    assert not looped.training
    assert all(module.training for module in model.modules())
    assert all(weight.requires_grad for weight in model.parameters())
    assert all(torch.equal(weight, weights[name][0]) for name, weight in model.named_parameters())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    shared = {weight.data_ptr() for weight in looped.parameters()}
    assert shared == {pointer for _, pointer in weights.values()}


def test_weights_configuration_and_span_are_its_identity():
    def identity(model, *span):
        return model_identity(ls.loop_layers(model, *span))

    same = identity(make("Llama"), 1, 2)
    assert identity(make("Llama"), 1, 2) == same
    assert identity(make("Llama", seed=1), 1, 2)["tensors"] != same["tensors"]
    assert identity(make("Llama"), 1, 3) != same
    other = make("Llama")
    other.config.rms_norm_eps = 1e-3
    assert identity(other, 1, 2) != same
    used = ls.loop_layers(make("Llama"), 1, 2)
    used.readout(used.states(ls.Batch.from_rows(ROWS), [1])[1], POSITIONS, torch.float64)
    assert model_identity(used) == same


def test_what_cannot_be_looped_is_one_line():
    model = make("GPT2")
    with pytest.raises(LoopscopeError, match=r"layers 3-5 are not a span of this 5-layer model"):
        ls.loop_layers(model, 3, 5)
    with pytest.raises(LoopscopeError, match="AutoModelForCausalLM"):
        ls.loop_layers(nn.Linear(2, 2), 0, 0)
    with pytest.raises(LoopscopeError, match="AutoModelForCausalLM"):
        ls.loop_layers(model.base_model, 0, 0)
    with pytest.raises(LoopscopeError, match=r"lacks family.*: loopscope.loop_layers\(model, FIRST, LAST\) loops"):
        ls.check(model)
    looped = ls.loop_layers(model, 1, 2)
    with pytest.raises(LoopscopeError, match="padding on the right"):
        looped.embed(ls.Batch.from_rows(ROWS, padding="left"))
    with pytest.raises(LoopscopeError, match="vocabulary of 61"):
        looped.embed(ls.Batch.from_rows([[61]]))


@pytest.mark.parametrize("level", ["quick", "grid", pytest.param("full", marks=pytest.mark.slow)])
def test_it_is_measured_as_an_object(level, tmp_path):
    model = make("Gemma2")
    task = ls.Task.from_ids([row[:-2] for row in ROWS], [row[-2:] for row in ROWS])
    options = {"transitions": [1, 2], "level": level, "output": tmp_path / "run", "scalar_checks": 1}
    run = measure_with(ls.loop_layers(model, START, END), task, **options)
    assert run.backends_used == ("general",)
    frame = run.records.filter(transition=1).sort("row")
    deep = [repeated(model, looped_order(depth)) for depth in (1, 2)]
    for index, row in enumerate(ROWS):
        gains = []
        for deeper in deep:
            with torch.no_grad():
                logits = deeper(input_ids=torch.tensor([row]), use_cache=False).logits[0].double()
            picked = torch.log_softmax(logits, -1)[[-3, -2], row[-2:]]
            gains.append(float(picked.mean()))
        assert frame["gain"][index] == pytest.approx(gains[1] - gains[0], abs=2e-5)
    with pytest.raises(LoopscopeError):
        measure_with(ls.loop_layers(model, START, END + 1), task, **options)


def test_a_checkpoint_of_any_architecture_is_looped_by_name(tmp_path):
    model = make("GPT2")
    model.save_pretrained(tmp_path / "tinygpt2")
    found = ls.load_model(tmp_path / "tinygpt2", model_args="loop=1-2")
    assert (found.name, found.card.family, found.card.args) == ("tinygpt2:loop=1-2", "loop", {"loop": "1-2"})
    expected, batch = ls.loop_layers(model, 1, 2), ls.Batch.from_rows(ROWS)
    torch.testing.assert_close(found.states(batch, [3])[3], expected.states(batch, [3])[3])
    with pytest.raises(LoopscopeError, match="not a span of this"):
        ls.load_model(tmp_path / "tinygpt2", model_args="loop=1-20")
    with pytest.raises(LoopscopeError, match="take loop=FIRST-LAST alone"):
        ls.load_model(tmp_path / "tinygpt2", model_args="loop=1-2,inside=3")


def test_no_code_of_a_checkpoint_is_run_to_loop_it(tmp_path):
    make("GPT2").save_pretrained(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    config = json.loads((tmp_path / "config.json").read_text())
    named = {"architectures": ["Mine"], "model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(config | named))
    with pytest.raises(LoopscopeError, match="transformers cannot load it"):
        ls.load_model(tmp_path, model_args="loop=1-2")
