"""Configurations: what is refused in one line, what is read from other files, what a user may choose."""

from __future__ import annotations

import json

import pytest
import torch

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.families import check_architecture, detect_family
from loopscope.models.load import load_model

REFUSED = [
    ("ouro", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported, only 'silu'"),
    ("ouro", {"hidden_size": ...}, "hidden_size is missing"),
    ("ouro", {"hidden_size": True}, "hidden_size must be a valid integer, not True"),
    ("ouro", {"num_hidden_layers": 1001}, "num_hidden_layers must be less than or equal to 1000"),
    ("ouro", {"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
    ("ouro", {"head_dim": 7}, "head_dim 7 is odd"),
    ("ouro", {"sliding_window": 32, "use_sliding_window": True}, "sliding_window 32 is not supported"),
    ("ouro", {"layer_types": ["sliding_attention"]}, "layer_types 'sliding_attention' is not supported"),
    ("ouro", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.rope_type 'yarn' is not supported"),
    ("ouro", {"rope_scaling": {"type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
    ("ouro", {"attention_bias": True}, "attention_bias True is not supported"),
    ("ouro", {"vocab_size": 10**15}, "vocab_size must be less"),
    ("ouro", {"rope_theta": 10**400}, "rope_theta"),
    ("ouro", {"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, "rope_scaling.factor"),
    ("huginn", {"init_values": {"std": 0.1, "embed_scale": 1e300}}, "init_values.embed_scale must be less"),
    ("huginn", {"mean_recurrence": 10**18}, "mean_recurrence must be less"),
    ("huginn", {"injection_type": "add"}, "injection_type 'add' is not supported"),
    ("huginn", {"init_values": {"std": -1.0}}, "init_values.std must be greater"),
    ("retrofit_llama", {"rope_theta": ...}, "rope_theta is missing"),
    ("retrofit_llama", {"init_values": ...}, "init_values is missing"),
    ("retrofit_llama", {"qk_bias": True}, "qk_bias True is not supported"),
    ("nanbeige", {"loop_share_kv": True}, "loop_share_kv True is not supported, only False"),
    ("nanbeige", {"emb_neighbor_num": 2}, "emb_neighbor_num 2 is not supported"),
    ("parcae", {"clip_qkv": 3.0}, "clip_qkv 3.0 is not supported, only null"),
    ("parcae", {"rope_settings": {"use_rope": False}}, "use_rope False is not supported"),
    ("parcae", {"injection_type": "linear"}, "injection_type 'linear' is not supported, only"),
    ("loopformer", {"n_head": 5}, "hidden size 64 does not divide into 5 heads"),
    ("loopformer", {"tie_word_embeddings": False}, "tie_word_embeddings False is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("folder", "fields", "line"), REFUSED)
def test_what_would_change_the_computation_is_refused_in_one_line(golden_variant, folder, fields, line):
    with pytest.raises(LoopscopeError, match=line) as refused:
        load_model(golden_variant(folder, **fields))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("folder", "chosen", "line"),
    [
        ("hrm_text", "attention=both", "attention 'both' is not supported, only 'prefix' or 'causal'"),
        ("hrm_text", "L_cycles=0", "L_cycles must be greater than 0"),
        ("hrm_text", "H_cycles=3", "HRM-Text has no option 'H_cycles': choose L_cycles, attention"),
        ("loopformer", "budget=1001", "budget must be less than or equal to 1000"),
        ("loopformer", "budget=x", "budget must be a valid integer"),
        ("loopformer", "schedule=1/2+0", "write steps above 0 and up to 1"),
        ("loopformer", "schedule=nan", "write steps above 0 and up to 1"),
        ("loopformer", "budget=2,schedule=1/2", "give one of them"),
        ("tmlt", "budget=4", "has no option 'budget': leave it out"),
        (
            "parcae",
            "initial_state=zero",
            "initial_state 'zero' is not supported, only 'question', 'paper' or 'official'",
        ),
        ("ouro", "inside=9", "inside=9 is not a layer from 1 to"),
    ],
)
def test_choices_that_make_no_sense_are_refused_in_one_line(golden_folder, folder, chosen, line):
    with pytest.raises(LoopscopeError, match=line.replace("+", r"\+")) as refused:
        load_model(str(golden_folder(folder)), model_args=chosen)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("folder", "fields"),
    [
        ("nanbeige", {"rope_scaling": {"rope_theta": 7e7}}),
        ("nanbeige", {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 7e7}}),
        ("retrofit_olmo", {"tie_word_embeddings": False, "dtype": "float32"}),
    ],
)
def test_files_that_other_tools_saved_again(golden_folder, golden_variant, folder, fields):
    batch = Batch.from_rows([[1, 2, 3]], source_rows=[1])
    states = [
        load_model(str(path)).states(batch, [2])[2]
        for path in (golden_folder(folder), golden_variant(folder, **fields))
    ]
    assert torch.equal(*states)


def test_the_tensors_tell_huginn_and_its_retrofits_apart(golden_folder):
    for folder, family in (
        ("huginn", "huginn"),
        ("retrofit_llama", "retrofit-llama"),
        ("retrofit_olmo", "retrofit-olmo"),
    ):
        assert load_model(str(golden_folder(folder))).family == family
    config = json.loads((golden_folder("retrofit_llama") / "config.json").read_text())
    assert {one.name for one in check_architecture(config)} == {"huginn", "retrofit-llama", "retrofit-olmo"}
    with pytest.raises(LoopscopeError, match="holds its weights or their index"):
        detect_family(config, None)
    with pytest.raises(LoopscopeError, match="is it incomplete"):
        detect_family(config, ["transformer.core_block.0.norm_3.weight", "transformer.coda.0.attn.q_norm.weight"])


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"_class_name": "OtherConfig"},
        {"model_type": "bert"},
        {"architectures": ["BertModel"], "model_type": "ouro"},
    ],
)
def test_unknown_and_contradictory_architectures_are_one_line(config):
    with pytest.raises(LoopscopeError, match="unknown architecture"):
        detect_family(config, None)


def test_hrm_text_takes_joined_and_split_tensors_and_counts_layers(golden_folder, golden_variant):
    names = {"gqkv_proj": ("gate", "q", "k", "v"), "gate_up_proj": ("gate", "up")}

    def split(tensors):
        made = {}
        for name, value in tensors.items():
            joined = next((part for part in names if part in name), None)
            at = name.replace(".attn.", ".self_attn.")
            parts = value.chunk(len(names[joined])) if joined else []
            made |= {
                at.replace(joined, f"{n}_proj"): v.clone() for n, v in zip(names.get(joined, ()), parts, strict=True)
            }
            made |= {} if joined else {at: value.clone()}
        return made

    batch = Batch.from_rows([[1, 2, 3]], prompt_lengths=[2])
    states = [
        load_model(str(path)).states(batch, [2])[2]
        for path in (golden_folder("hrm_text"), golden_variant("hrm_text", split, num_hidden_layers=999))
    ]
    assert torch.equal(*states)
    with pytest.raises(LoopscopeError, match="lacks the tensors"):
        load_model(golden_variant("hrm_text", lambda held: {n: held[n] for n in held if "L_module.layers.1." not in n}))


def test_hrm_text_needs_to_know_the_prompt_unless_it_is_causal(golden_folder, golden_variant):
    folder = golden_folder("hrm_text")
    model, causal = load_model(str(folder)), load_model(str(folder), model_args="attention=causal,L_cycles=5")
    with pytest.raises(LoopscopeError, match="give Batch its prompt_lengths"):
        model.embed(Batch.from_rows([[1, 2, 3]]))
    assert causal.boundary.endswith("(5 L cycles a step, causal attention)")
    assert (causal.unpadded, model.unpadded) == (True, False)
    assert load_model(golden_variant("hrm_text", prefix_lm=False), model_args="attention=prefix").prefix


def test_loopus_keeps_gate_and_exit_head_in_float32(golden_folder, golden_variant):
    model = load_model(str(golden_folder("loopus")), dtype="bfloat16")
    kept = {name for name, held in model.named_parameters() if held.dtype == torch.float32}
    assert kept == {name for name, _ in model.named_parameters() if name.startswith(("reasoning.gate.", "q_head."))}
    older = golden_variant("loopus", lambda held: {n.replace("reasoning.", "plateau."): held[n] for n in held})
    assert load_model(older).card.parameters == model.card.parameters == 117825
    without = load_model(str(golden_variant("loopus", halting_strategy="cdf")))
    assert without.exit_gate is None


def test_loopformer_without_the_prefix_of_published_names_and_beyond_its_schedule(golden_folder, golden_variant):
    bare = golden_variant("loopformer", lambda held: {name.removeprefix("gpt."): held[name] for name in held})
    assert load_model(bare).card.parameters == 167744
    short = load_model(str(golden_folder("loopformer")), model_args="schedule=1/2+1/2+1/8")
    assert (short.trained_depth, short.trained_clock) == (3, 2)
    with pytest.raises(LoopscopeError, match=r"holds the tensors .gpt\.dt_embedder"):
        load_model(golden_variant("loopformer", model_type="tmlt", architectures=...))


def test_parcae_adds_values_of_tokens_where_there_is_a_table(golden_variant):
    without = load_model(golden_variant("parcae", lambda held: {n: held[n] for n in held if not _third(n)}))
    assert without.config.value_layers == {1, 5}


def _third(name):
    return name in ("value_embeds.3.weight", "transformer.core_block.1.attn.ve_gate.weight")


def test_parcaes_readout_needs_the_tokens(golden_folder):
    model = load_model(str(golden_folder("parcae")))
    context = model.embed(Batch.from_rows([[1, 2, 3], [4, 5, 6]]))
    with pytest.raises(LoopscopeError, match="give its readout the context of the rows"):
        model.readout(context.state)
    everything = model.readout(context.state, dtype=torch.float64, context=context)
    second = context.rows(slice(1, 2))
    assert torch.equal(model.readout(second.state, dtype=torch.float64, context=second), everything[1:])


@pytest.mark.parametrize("name", ["huginn", "loopus", "parcae"])
def test_a_readout_that_attends_needs_rows_from_position_0(golden_folder, name):
    model = load_model(str(golden_folder(name)))
    with pytest.raises(LoopscopeError, match="padding on the right"):
        model.embed(Batch.from_rows([[1, 2, 3], [4]], padding="left"))
    ids = torch.tensor([[1, 2]])
    with pytest.raises(LoopscopeError, match="leave position_ids out"):
        model.embed(Batch(ids, torch.ones_like(ids), torch.tensor([[3, 4]])))
