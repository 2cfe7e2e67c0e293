"""Tokenizers given as objects and as files that transformers converts; chat templates."""

import io
import json

import pytest
import sentencepiece
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

import loopscope as ls
from loopscope.models import tokenizer as chat_template
from loopscope.models.tokenizer import Tokenizer

TEXTS = ["the loop goes on", "once more, the loop stops 😀", " a b ", "Ünïcode: 2 + 2 = 4"]


@pytest.fixture(scope="module")
def backend() -> Backend:
    made = Backend(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    made.train_from_iterator(TEXTS * 5, trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


@pytest.fixture(scope="module")
def proto() -> bytes:
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20), model_writer=content, vocab_size=60, hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip
    return content.getvalue()


def test_tokenizers_object(backend):
    backend.enable_truncation(3)
    try:
        found = ls.load_tokenizer(backend)
        assert backend.truncation is not None, "the user's object is left alone"
    finally:
        backend.no_truncation()
    assert found.sha256 == ls.load_tokenizer(backend).sha256, "limits are not part of what it is"
    assert [found.encode(text) for text in TEXTS] == [backend.encode(t, add_special_tokens=False).ids for t in TEXTS]
    assert found.prefix_ids == (0,)
    assert found.offsets("the loop") == backend.encode("the loop", add_special_tokens=False).offsets
    assert found.vocabulary_size == backend.get_vocab_size()


def test_transformers_fast_object(backend):
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template="{{ 1 }}")
    found = ls.load_tokenizer(fast)
    assert [found.encode(text) for text in TEXTS] == [fast.encode(text, add_special_tokens=False) for text in TEXTS]
    assert found.encode("a b", special_tokens=True) == fast.encode("a b")
    assert (found.bos_id, found.eos_ids) == (0, (1,))
    assert found.chat_template is not None
    assert found.chat_template.source == "{{ 1 }}"


def test_a_sentencepiece_file_is_converted_by_transformers(proto, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(proto)
    with pytest.raises(ls.LoopscopeError, match="tokenizer_class"):
        ls.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer"}))
    found = ls.load_tokenizer(tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    assert [found.encode(text) for text in TEXTS] == [processor.encode(text) for text in TEXTS]
    assert found.sha256 == ls.load_tokenizer(tmp_path).sha256


def test_no_code_of_a_checkpoint_runs(backend, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    named = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    with pytest.raises(ls.LoopscopeError, match="cannot be used"):
        ls.load_tokenizer(tmp_path)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert ls.load_tokenizer(tmp_path).encode(TEXTS[0]) == ls.load_tokenizer(backend).encode(TEXTS[0])


def test_a_tokenizer_without_a_fast_version():
    with pytest.raises(ls.LoopscopeError, match="no fast version"):
        ls.load_tokenizer(ByT5Tokenizer())


def test_a_tokenizer_that_draws_at_random():
    with pytest.raises(ls.LoopscopeError, match="at random"):
        ls.load_tokenizer(Backend(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.1)))


TEMPLATES = {
    "plain": "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}",
    "special tokens": "{{ bos_token }}{% for m in messages %}{{ m['content'] + eos_token }}{% endfor %}",
    "blanks around blocks": "{% for m in messages %}\n    {{ m.role }}: {{ m.content }}\n  {% endfor %}\n  end",
    "json, break, namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{{ m | tojson }}{% if ns.n == 2 %}{% break %}{% endif %}{% endfor %}{{ ns.n }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "tools": "{{ messages[0].content }}{% if tools %}tools{% else %}none{% endif %}{{ documents is none }}"
    "{{ nothing is defined }}",
}
M, E = "{{ messages[-1].content }}", "{% endfor %}"
CHAT = [
    {"role": "user", "content": " What is 2 + 2? <é> "},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": 'And "3"?\n'},
]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("home", ["object", "tokenizer_config.json", "chat_template.jinja"])
def test_chat_templates_render_as_in_transformers(backend, tmp_path, name, home):
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATES[name]
    if home == "object":
        found = ls.load_tokenizer(fast)
    else:
        fast.save_pretrained(tmp_path, save_jinja_files=home.endswith(".jinja"))
        assert (tmp_path / "chat_template.jinja").exists() is home.endswith(".jinja")
        found = Tokenizer.from_folder(tmp_path)
    for prompt in (True, False):
        ours = found.chat_template.render(CHAT, add_generation_prompt=prompt)
        theirs = fast.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=prompt)
        assert ours == theirs
        ids = fast.apply_chat_template(CHAT, add_generation_prompt=prompt, return_dict=False)
        assert found.encode(ours) == ids


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "refuses"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ ().__class__.__bases__[0].__subclasses__() }}", "refuses"),
        (
            f"{M}{{% for i in range(99999) %}}{{% for j in range(99999) %}}{{{{ 'x' * 999 }}}}{2 * E}",
            "more than .* char",
        ),
        (f"{M}{{% for i in range(99999) %}}{{% for j in range(99999) %}}{2 * E}", "more than .* seconds"),
        (M + "{{ 10 ** (10 ** 8) }}", "refuses"),
        (M + "{{ 'x' * 10 ** 11 }}", "refuses"),
        ("always the same", "does not write the user's message"),
    ],
)
def test_chat_templates_that_are_refused(backend, template, said, monkeypatch):
    monkeypatch.setattr(chat_template, "MOST_SECONDS", 1.0)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template)
    with pytest.raises(ls.LoopscopeError, match=said) as caught:
        ls.load_tokenizer(fast).chat_template.render(CHAT)
    assert "\n" not in str(caught.value)


def test_a_chat_template_has_no_clock(backend):
    source = (
        "{{ messages[-1].content }}{% if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}none{% endif %}"
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=source)
    assert ls.load_tokenizer(fast).chat_template.render(CHAT) == 'And "3"?\nnone'


def test_named_chat_templates(backend, tmp_path):
    backend.save(str(tmp_path / "tokenizer.json"))
    named = [
        {"name": "tool_use", "template": "t"},
        {"name": "default", "template": "{{ messages[0].role }}{{ bos_token }}{{ messages[-1].content }}"},
    ]
    config = {"chat_template": named, "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.from_folder(tmp_path).chat_template.render(CHAT[:1]) == "user<s> What is 2 + 2? <é> "
