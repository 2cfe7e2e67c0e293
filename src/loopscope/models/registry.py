"""The published checkpoints: where they are, which commit is meant, and their configuration.

The configuration is enough to build a model of the same size with random weights and no network. Commits are
pinned where they are known; without one the newest is taken, and the commit is recorded with the model.

Every name a model can be called by: published checkpoints, models inside the package, and the user's own.

A user's model is an entry point in the group `loopscope.models`: its name on the left, a callable that returns a
`LoopedModel` on the right. A tokenizer for it may be named likewise in `loopscope.tokenizers`.

What a model specification means: which checkpoint, from where, and which layers to loop.

ouro-1.4b                       a published checkpoint at its pinned commit
ByteDance/Ouro-1.4B@main        a hub name, with a branch, tag or commit of one's own
toy-ouro                        a model inside the package
runs/step-900, ./toy-ouro       a local folder
loop:PATH_OR_NAME:10-20         any Llama-style checkpoint, layers 10 to 20 looped
my-model                        an entry point of an installed package
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.models.checkpoint.folder import CONFIG

RUN_DTYPE = "bfloat16"
"""What a published checkpoint is run in unless told otherwise, however it is stored: the paper's protocol."""


@dataclass(frozen=True)
class Published:
    """One published checkpoint.

    Attributes:
        name: the short name, lower case.
        repo_id: its name on the hub.
        revision: the pinned commit, if one is known.
        family: "ouro", "huginn", "retrofit-llama" or "retrofit-olmo".
        parameters: unique parameters, a tied head counted once.
        trained_depth: the number of loops it was trained for (on average, where that was drawn).
        stored_dtype: how the weights are stored; they are run in `RUN_DTYPE`.
        config: the part of config.json that decides shapes and arithmetic.
    """

    name: str
    repo_id: str
    revision: str | None
    family: str
    parameters: int
    trained_depth: int
    stored_dtype: str
    config: Mapping[str, Any]


def _ouro(name: str, revision: str, layers: int, parameters: int, bos: int = 0, eos: int = 0) -> Published:
    config = {
        "architectures": ["OuroForCausalLM"],
        "model_type": "ouro",
        "vocab_size": 49152,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 65536,
        "tie_word_embeddings": False,
        "total_ut_steps": 4,
        "early_exit_threshold": 1.0,
        "bos_token_id": bos,
        "eos_token_id": eos,
    }
    return Published(name.lower(), f"ByteDance/{name}", revision, "ouro", parameters, 4, "bfloat16", config)


def _raven(*, prelude: int, core: int, coda: int, **fields: Any) -> dict[str, Any]:
    return {
        "architectures": ["RavenForCausalLM"],
        "model_type": "huginn_raven",
        "n_layers": prelude + core + coda,
        "n_layers_in_prelude": prelude,
        "n_layers_in_recurrent_block": core,
        "n_layers_in_coda": coda,
        "bias": False,
        "injection_type": "linear",
        "state_init": "like-init",
        **fields,
    }


def _huginn() -> Published:
    config = _raven(
        prelude=2,
        core=4,
        coda=2,
        n_embd=5280,
        n_heads=55,
        num_key_value_heads=55,
        head_dim=96,
        intermediate_size=17920,
        vocab_size=65536,
        padded_vocab_size=65536,
        block_size=4096,
        mean_recurrence=32,
        rope_base=50000,
        norm_eps=1e-6,
        qk_bias=True,
        tie_embeddings=True,
        init_values={"std": 0.008703882797784892, "embed_scale": 72.6636084983398},
        bos_token_id=65504,
        eos_token_id=65505,
        pad_token_id=65509,
    )
    commit = "bb6621b65e90b6a4b9b29ef88dc83866d450470c"
    repo_id = "tomg-group-umd/huginn-0125"
    return Published("huginn-0125", repo_id, commit, "huginn", 3_564_976_800, 32, "float32", config)


# What the three retrofitted bases do not share. Huginn's `rope_base` stands in their files too, and is not used.
_LLAMA_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA: dict[str, Any] = {
    "n_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
    "norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": _LLAMA_SCALING, "max_position_embeddings": 131072,
}  # fmt: skip
_TINYLLAMA: dict[str, Any] = {
    "n_heads": 32, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 5632, "vocab_size": 32000,
    "norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 2048,
}  # fmt: skip
_OLMO: dict[str, Any] = {
    "n_heads": 16, "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 100352,
    "norm_eps": 1e-6, "rope_theta": 500000.0, "max_position_embeddings": 4096,
}  # fmt: skip


def _retrofit(
    name: str, base: Mapping[str, Any], stack: tuple[int, int, int], family: str, parameters: int, depth: int
) -> Published:
    prelude, core, coda = stack
    config = _raven(
        prelude=prelude,
        core=core,
        coda=coda,
        n_embd=2048,
        padded_vocab_size=base["vocab_size"],
        mean_recurrence=depth,
        qk_bias=False,
        tie_embeddings=False,
        # Inherited from Huginn, whose width it was computed from; the drawn state has this std at 2048, too.
        init_values={"std": 0.008703882797784892, "embed_scale": 1.0},
        **base,
    )
    return Published(name.lower(), f"smcleish/{name}", None, family, parameters, depth, "float32", config)


def _retrofits() -> list[Published]:
    bases = [
        ("Recurrent-Llama-3.2", _LLAMA, (4, 6, 4), "retrofit-llama", 1_385_228_288),
        ("Recurrent-TinyLlama-3T", _TINYLLAMA, (4, 8, 4), "retrofit-llama", 844_171_264),
        ("Recurrent-OLMo-2-0425", _OLMO, (4, 6, 4), "retrofit-olmo", 1_359_071_232),
    ]
    small = "Recurrent-Llama-3.2-2-4-2-untrained"
    found = [_retrofit(small, _LLAMA, (2, 4, 2), "retrofit-llama", 1_020_299_264, 32)]
    for name, base, stack, family, parameters in bases:
        # The conversion leaves Huginn's own mean recurrence in the file.
        found.append(_retrofit(f"{name}-untrained", base, stack, family, parameters, 32))
        for depth in (4, 8, 16, 32):
            trained = f"{name}-train-recurrence-{depth}"
            found.append(_retrofit(trained, base, stack, family, parameters, depth))
    return found


PUBLISHED: tuple[Published, ...] = (
    _ouro("Ouro-1.4B", "574fa66cb8bf5abdc979642d01cf2b79b16bfab1", 24, 1_434_652_673),
    _ouro("Ouro-2.6B", "1ed04250da1a9936042725d302e81c8fa2ab5abd", 48, 2_667_974_657),
    _ouro("Ouro-1.4B-Thinking", "3aaa2224253a92ca45cf2e3d427c360e1ef9c93d", 24, 1_434_652_673),
    _ouro("Ouro-2.6B-Thinking", "f1edd81e7ac41355db670500ceaf204e0f73af68", 48, 2_667_974_657, bos=1, eos=2),
    _huginn(),
    *_retrofits(),
)


def find_published(name: str) -> Published | None:
    """The published checkpoint of a short name or a hub name, in upper or lower case.

    >>> find_published("bytedance/ouro-1.4b").name
    'ouro-1.4b'
    """
    wanted = name.lower()
    return next((entry for entry in PUBLISHED if wanted in (entry.name, entry.repo_id.lower())), None)


MODEL_GROUP = "loopscope.models"
TOKENIZER_GROUP = "loopscope.tokenizers"
EMBEDDED = Path(__file__).parent / "embedded"


def embedded_models() -> dict[str, Path]:
    """The small trained models inside the package, by name."""
    return {path.parent.name: path.parent for path in sorted(EMBEDDED.glob(f"*/{CONFIG}"))}


def user_models() -> dict[str, metadata.EntryPoint]:
    """The models that installed packages bring, by name."""
    return _entry_points(MODEL_GROUP)


def user_tokenizers() -> dict[str, metadata.EntryPoint]:
    """The tokenizers that installed packages bring, by the model's name."""
    return _entry_points(TOKENIZER_GROUP)


def load_entry_point(point: metadata.EntryPoint) -> Callable[..., Any]:
    """The callable an entry point names."""
    try:
        factory = point.load()
    except (ImportError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise LoopscopeError(f"the entry point {point.name} = {point.value} cannot be imported: {reason}") from error
    if not callable(factory):
        raise LoopscopeError(f"the entry point {point.name} = {point.value} names no callable")
    return factory  # type: ignore[no-any-return]


def _entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    found: dict[str, metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=group):
        known = found.setdefault(point.name, point)
        if known.value != point.value:
            raise LoopscopeError(
                f"two packages bring a model called {point.name!r} ({known.value}, {point.value}): uninstall one"
            )
    return found


def known_names() -> list[str]:
    """Every name, for listings and for guessing what somebody meant."""
    published = [name for entry in PUBLISHED for name in (entry.name, entry.repo_id)]
    return [*embedded_models(), *published, *user_models()]


def unknown_name(name: str) -> LoopscopeError:
    """The complaint about a name that nothing answers to, with the nearest ones that exist."""
    by_lower = {known.lower(): known for known in known_names()}
    close = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    folder = " ".join(Path(name).name.split())
    return LoopscopeError(
        f"there is no model {shown(name)}: {guess}`loopscope models` lists the names; a hub name is ORGANISATION/NAME, "
        f"a folder is a path such as ./{folder}"
    )


Kind = Literal["hub", "folder", "embedded", "entry point"]

LONGEST_SPEC = 4096
"""Characters of a specification: the longest path of common systems."""

_SPAN = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        name: what the model is called in tables.
        kind: hub, folder, embedded or entry point.
        location: the hub name, the folder, or the entry point's name.
        revision: the commit, tag or branch to take from the hub; None is the newest.
        published: the known checkpoint, if it is one.
        span: first and last layer to loop, for `loop:` specifications.
    """

    name: str
    kind: Kind
    location: str
    revision: str | None = None
    published: Published | None = None
    span: tuple[int, int] | None = None

    @property
    def folder(self) -> Path | None:
        """The folder on disk, where there is one without asking the hub."""
        return Path(self.location) if self.kind in ("folder", "embedded") else None


def parse_spec(spec: str, revision: str | None = None) -> Source:
    """The source that a specification names.

    Raises:
        LoopscopeError: if nothing answers to it, with the nearest names.
    """
    if len(spec) > LONGEST_SPEC:
        raise LoopscopeError(f"the model {shown(spec)} is longer than {LONGEST_SPEC} characters: no model is called so")
    if spec.startswith("loop:"):
        return _parse_loop(spec, revision)
    source = _named(spec)
    if source is None:
        name, at, given = spec.rpartition("@")
        source = _named(name) if at else None
        if source is None:
            raise unknown_name(spec)
        if revision is not None and revision != given:
            raise LoopscopeError(
                f"{shown(spec)} names one revision and {setting('revision', revision)} another: give one of them"
            )
        revision = given
    if revision is None:
        return source
    if not revision:
        raise LoopscopeError(
            f"the revision of {source.name} is empty: give a branch, a tag or a commit, or leave it out"
        )
    if source.kind != "hub":
        raise LoopscopeError(f"{source.name} is no hub model and has no revisions: leave {shown(revision)} out")
    return replace(source, revision=revision)


def _parse_loop(spec: str, revision: str | None) -> Source:
    base, _, layers = spec.removeprefix("loop:").rpartition(":")
    span = _SPAN.fullmatch(layers)
    if not base or span is None:
        raise LoopscopeError(f"{shown(spec)} is not loop:PATH_OR_NAME:FIRST-LAST, for example loop:org/model:10-20")
    source = parse_spec(base, revision)
    if source.kind == "entry point" or source.span is not None:
        raise LoopscopeError(f"{shown(spec)}: only a checkpoint's layers can be looped, not {shown(base)}")
    return replace(source, name=f"loop:{source.name}:{layers}", span=(int(span[1]), int(span[2])))


def _named(spec: str) -> Source | None:
    folder = _expanded(spec)
    looks_like_path = "/" in spec or "\\" in spec or spec.startswith((".", "~"))
    if looks_like_path and _is_dir(folder):
        return _folder(folder)
    if published := find_published(spec):
        return Source(published.name, "hub", published.repo_id, published.revision, published)
    if path := embedded_models().get(spec.lower()):
        return Source(path.name, "embedded", str(path))
    if spec in user_models():
        return Source(spec, "entry point", spec)
    if spec and _is_dir(folder):
        return _folder(folder)
    if folder.is_file():
        raise LoopscopeError(f"{_in_one_line(spec)} is a file: give the folder it lies in")
    if _HUB_NAME.fullmatch(spec):
        return Source(spec, "hub", spec)
    if looks_like_path and "@" not in spec:
        raise LoopscopeError(f"the folder {_in_one_line(spec)} does not exist; a hub name is ORGANISATION/NAME")
    return None


def _in_one_line(path: str) -> str:
    return " ".join(path.split())


def _expanded(spec: str) -> Path:
    try:
        return Path(spec).expanduser()
    except RuntimeError:  # ~name of nobody
        raise LoopscopeError(f"{shown(spec)} names the home of an unknown user: give the folder's whole path") from None


def _is_dir(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except OSError as error:  # a part that is too long for the system, or a folder that may not be searched
        raise LoopscopeError(f"the folder {shown(str(folder))} cannot be looked at: {error.strerror}") from None


def _folder(folder: Path) -> Source:
    resolved = folder.resolve()
    return Source(resolved.name, "folder", str(resolved))
