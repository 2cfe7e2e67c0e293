"""A user's own model: the documentation's code, word for word, as a real entry point, measured end to end."""

import contextlib
import importlib
import io
import re
import sys
from pathlib import Path

import pytest
import torch

import loopscope as ls
from loopscope import LoopedModel, load_model, load_tokenizer
from loopscope.errors import LoopscopeError
from loopscope.models.load import card_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "your-own-model.md"


def block(start):
    """The one block of Python that has this text in it."""
    codes = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (found,) = (code for code in codes if start in code)
    return found


WHEEL = block("# my_looped.py")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a module as a distribution with entry points, the way a wheel lies on disk, for one test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def write(module, code, entry_points, distribution="my-looped"):
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        sections = [
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in entry_points.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(sections))
        names.append(module)
        importlib.invalidate_caches()

    yield write
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def wheel(install):
    install("my_looped", WHEEL, {"loopscope.models": {"my-wheel": "my_looped:build"}})


@pytest.mark.usefixtures("wheel")
def test_it_loads_by_name_and_satisfies_the_protocol():
    model = load_model("my-wheel")
    assert isinstance(model, LoopedModel)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    card = card_of(model)
    assert (card.kind, card.location, card.family) == ("entry point", "my_looped:build", "wheel")
    assert card.parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.usefixtures("wheel")
def test_usage_of_the_documentation_runs_and_agrees_with_direct_evaluation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    space = {"ls": ls}
    with contextlib.redirect_stdout(printed):
        exec(compile(block("ls.affine_path_from_states"), str(PAGE), "exec"), space)
    assert printed.getvalue().startswith("slope ")
    model, path = space["model"], space["path"]
    before, after = (space["states"][depth][space["rows"], space["places"]].double() for depth in (4, 5))

    def utility(alpha):
        logits = model.readout(before + alpha * (after - before), dtype=torch.float64)
        return logits.log_softmax(-1)[[0, 1], [7, 99]].mean()

    h = 1e-4
    assert path.gain.item() == pytest.approx((utility(1.0) - utility(0.0)).item(), abs=1e-12)
    assert path.slope.item() == pytest.approx(((utility(h) - utility(-h)) / (2 * h)).item(), rel=1e-6)
    second = (utility(h) - 2 * utility(0.0) + utility(-h)) / h**2
    assert path.curvature.item() == pytest.approx(second.item(), rel=1e-4)


@pytest.mark.usefixtures("wheel")
def test_it_is_listed_and_suggested():
    from loopscope.cli.listing import model_rows

    (row,) = [row for row in model_rows() if row["name"] == "my-wheel"]
    assert row["location"] == "my_looped:build"
    with pytest.raises(LoopscopeError, match="did you mean my-wheel"):
        load_model("my-wheal")


def test_tokenizer_by_entry_point(install, tmp_path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    Backend(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    names = {"loopscope.models": "my_looped:build", "loopscope.tokenizers": "my_looped:tokenizer_folder"}
    code = WHEEL + f"\n\ndef tokenizer_folder():\n    return {str(tmp_path)!r}\n"
    install("my_looped", code, {group: {"my-wheel": function} for group, function in names.items()})
    assert load_tokenizer("my-wheel", vocabulary_size=256).encode("b") == [1]
    with pytest.raises(LoopscopeError, match="2 tokens and the model only 1"):
        load_tokenizer("my-wheel", vocabulary_size=1)


def test_factory_without_arguments_is_moved_and_converted(install):
    code = WHEEL + "\n\ndef plain():\n    return Wheel(width=16)\n"
    install("my_looped", code, {"loopscope.models": {"plain": "my_looped:plain"}})
    assert load_model("plain", dtype="bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("signature", "received"),
    [
        ("device, dtype", {"device", "dtype"}),
        ("**given", {"device", "dtype"}),
        ("device", {"device"}),
        ("dtype=None, other=3", {"dtype"}),
        ("", set()),
    ],
)
def test_factory_gets_what_its_signature_takes(install, signature, received):
    code = WHEEL + (
        f"\n\ndef picky({signature}):\n"
        "    model = Wheel(width=16)\n"
        "    model.received = {**locals(), **locals().get('given', {})}.keys() & {'device', 'dtype'}\n"
        "    return model\n"
    )
    install("my_looped", code, {"loopscope.models": {"picky": "my_looped:picky"}})
    model = load_model("picky", dtype="float64")
    assert model.received == received
    # A factory that took both is trusted with them; otherwise the model is converted for it.
    assert model.dtype == (torch.float32 if received == {"device", "dtype"} else torch.float64)


def test_model_that_lacks_a_part(install):
    install(
        "half_model", "class Half:\n    name = family = 'half'\n", {"loopscope.models": {"half": "half_model:Half"}}
    )
    with pytest.raises(LoopscopeError, match=r"lacks hidden_size, .*states") as caught:
        load_model("half")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["no_such_module:build", "half_model:nothing"])
def test_entry_point_that_cannot_be_imported(install, value):
    install("half_model", "", {"loopscope.models": {"half": value}})
    with pytest.raises(LoopscopeError, match=r"cannot be imported|has no nothing"):
        load_model("half")
