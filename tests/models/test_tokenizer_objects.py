"""Tokenizers given as objects and as SentencePiece files: the library's own ids, special tokens, and a content hash."""

import io
import json
import pickle
import sys
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

import loopscope as ls
from loopscope.models.chat_template import _environment
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


def test_transformers_tokenizer_in_python():
    slow = ByT5Tokenizer()
    found = ls.load_tokenizer(slow)
    assert [found.encode(text) for text in TEXTS] == [slow.encode(text, add_special_tokens=False) for text in TEXTS]
    assert found.decode(found.encode("2 + 2")) == "2 + 2"
    assert found.offsets("ab") is None
    assert found.suffix_ids == (slow.eos_token_id,)
    assert (
        found.sha256
        == ls.load_tokenizer(ByT5Tokenizer()).sha256
        != ls.load_tokenizer(ByT5Tokenizer(extra_ids=3)).sha256
    )


def test_sentencepiece_object_and_file_are_the_same(proto, tmp_path):
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    (tmp_path / "tokenizer.model").write_bytes(proto)
    found = [ls.load_tokenizer(processor), ls.load_tokenizer(tmp_path / "tokenizer.model"), ls.load_tokenizer(tmp_path)]
    for text in TEXTS:
        assert {tuple(tokenizer.encode(text)) for tokenizer in found} == {tuple(processor.encode(text))}
    assert len({tokenizer.sha256 for tokenizer in found}) == 1
    assert found[0].vocabulary_size == processor.vocab_size()
    assert (found[0].prefix_ids, found[0].bos_id, found[0].eos_ids) == ((), 1, (2,))
    with_bos = ls.load_tokenizer(sentencepiece.SentencePieceProcessor(model_proto=proto, add_bos=True))
    assert with_bos.prefix_ids == (1,)
    assert with_bos.encode("the") == processor.encode("the")


def test_sentencepiece_places_are_characters(proto):
    found = ls.load_tokenizer(sentencepiece.SentencePieceProcessor(model_proto=proto))
    text = "once more, the 😀 loop"
    places = found.offsets(text)
    assert len(places) == len(found.encode(text))
    assert "".join(text[start:end] for start, end in places) == text
    assert any(text[start:end] == "😀" for start, end in places)


def test_ids_do_not_change_when_an_object_travels(backend, proto):
    for given in (backend, sentencepiece.SentencePieceProcessor(model_proto=proto), ByT5Tokenizer()):
        found = ls.load_tokenizer(given)
        again = pickle.loads(pickle.dumps(found))
        assert again.encode(TEXTS[1]) == found.encode(TEXTS[1])
        assert again.sha256 == found.sha256


def test_a_tokenizer_json_by_its_own_name(backend, tmp_path):
    path = tmp_path / "mine.json"
    backend.save(str(path))
    assert ls.load_tokenizer(path).encode("the loop") == ls.load_tokenizer(backend).encode("the loop")


@pytest.mark.parametrize("given", [5, object(), ["a"], print, {"a": 1}])
def test_what_is_no_tokenizer(given):
    with pytest.raises(ls.LoopscopeError, match="transformers, SentencePiece or tokenizers"):
        ls.load_tokenizer(given)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [("x.model", b"nothing", "no SentencePiece model"), ("x.model", b"", "no SentencePiece model"),
     ("x.json", b"{}", "cannot be read")],
)  # fmt: skip
def test_damaged_files(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ls.LoopscopeError, match=said) as caught:
        ls.load_tokenizer(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_without_sentencepiece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ls.LoopscopeError, match=r"loopscope\[sentencepiece\]"):
        ls.load_tokenizer(tmp_path)


TEMPLATES = {
    "plain": "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}",
    "special tokens": "{{ bos_token }}{% for m in messages %}{{ m['content'] + eos_token }}{% endfor %}",
    "blanks around blocks": "{% for m in messages %}\n    {{ m.role }}: {{ m.content }}\n  {% endfor %}\n  end",
    "json, break, namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{{ m | tojson }}{% if ns.n == 2 %}{% break %}{% endif %}{% endfor %}{{ ns.n }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "tools": "{% if tools %}tools{% else %}none{% endif %}{{ documents is none }}{{ nothing is defined }}",
}
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
        ("{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}", "more than"),
    ],
)
def test_chat_templates_that_are_refused(backend, template, said):
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template)
    with pytest.raises(ls.LoopscopeError, match=said) as caught:
        ls.load_tokenizer(fast).chat_template.render(CHAT)
    assert "\n" not in str(caught.value)


def test_named_chat_templates(backend, tmp_path):
    backend.save(str(tmp_path / "tokenizer.json"))
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ bos_token }}"}]
    config = {"chat_template": named, "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.from_folder(tmp_path).chat_template.render(CHAT) == "d<s>"


def test_without_jinja(backend, monkeypatch: pytest.MonkeyPatch):
    found = ls.load_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, chat_template="x"))
    monkeypatch.setitem(sys.modules, "jinja2", None)
    _environment.cache_clear()
    with pytest.raises(ls.LoopscopeError, match=r"loopscope\[chat\]"):
        found.chat_template.render(CHAT)
