"""What a row of a study is about: which model, on which examples, over which update, in which arithmetic.

Models, tasks and folders carry whatever name their owners wrote; `title` and `printable` say how it is printed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from loopscope.store.schema import update_name
from loopscope.studies.paper import model_names, models, set_titles

if TYPE_CHECKING:
    from loopscope.store import Manifest, StoredRun, TaskInfo


class Weights(StrEnum):
    """Where a model's weights come from, as far as a comparison with the paper is concerned."""

    PUBLISHED = "published"
    """A checkpoint of the paper's models, fetched from the hub at a recorded revision."""
    UNVERIFIED = "unverified"
    """Weights that the user says are a published model's, without anything that shows it."""
    OTHER = "other"
    """Any other checkpoint: another model, a folder of the user's own, a fine-tuned copy."""
    TOY = "toy"
    """A small model that ships with loopscope."""
    RANDOM = "random"
    """No weights at all."""


_RANDOM = " (random weights)"
LONGEST_TITLE = 60
"""Characters of a name in tables; JSON and CSV hold it in full."""


@dataclass(frozen=True)
class Condition:
    """One model, evaluation set and update (no update where a study is about depths)."""

    run: str
    """Short name of the run, as it may be printed; another one for each run that a study is given (`run_labels`)."""
    place: str
    """The run's whole path: what a run is looked up by. It is never printed."""
    model: str
    family: str
    weights: Weights
    task: str
    split: str
    subset: str | None
    kind: str
    """`solution` or `options`."""
    affine: bool
    """Whether logits are affine in the state."""
    n: int
    """Questions."""
    expected: int
    """Questions that the run set out to measure; more than `n` while it is unfinished."""
    transition: int | None
    states: str
    readout: str
    level: str
    """`quick`, `grid` or `full`."""
    template_sha256: str
    """The wording of the questions."""
    exit_threshold: float | None
    """CDF threshold of the exit gate; None for the checkpoint's own."""
    scalar_checks: int
    """Questions of the run on which Q was to be computed a second way."""
    protocol: str
    """`loopscope` or `paper`."""
    initial_state: str | None
    """The rule by which H_0 was drawn; None where the model draws none."""
    initial_seed: int | None
    batch_size: int | None
    """Questions in a batch, in source order; None where a budget of tokens decides."""
    fewshot: int
    """Examples before each question."""
    chat_template: bool
    share_context: bool
    """Whether options share a row."""
    long: str
    """What was done with sequences that are too long for the model."""
    data_sha256: str
    data_revision: str | None
    """The rows of the split, and the hub's revision that they were fetched at."""
    bounds: str = "loopscope"
    """Whose envelopes, brackets and residuals the records hold: `loopscope` or `paper`."""

    @property
    def model_title(self) -> str:
        """The model as tables print it; random weights are never left unsaid."""
        published = model_names().get(bare_name(self.model))
        if published and self.weights in (Weights.PUBLISHED, Weights.UNVERIFIED):
            return published
        # A loaded model's own name says it already; a name from elsewhere may not.
        return title(self.model.removesuffix(_RANDOM)) + (_RANDOM if self.weights is Weights.RANDOM else "")

    @property
    def evaluation_set(self) -> str:
        """Task with split or subset, such as `gsm8k/train256`."""
        return f"{self.task}/{self.subset or self.split}"

    @property
    def set_title(self) -> str:
        """The evaluation set as tables print it: `GSM8K test`."""
        return set_titles().get(self.evaluation_set, f"{title(self.task)} {title(self.subset or self.split)}".rstrip())

    @property
    def finished(self) -> bool:
        """Whether all questions that the run set out to measure are there."""
        return self.n >= self.expected

    @property
    def update(self) -> str:
        """The transition as text: `4→5`."""
        return "" if self.transition is None else update_name(self.transition)

    @property
    def batches(self) -> int | None:
        """How many batches the questions make."""
        return None if self.batch_size is None else -(-self.n // self.batch_size)

    @property
    def concave(self) -> bool:
        """Whether the path is a mean log-softmax of affine logits, hence concave (Appendix C)."""
        return self.affine and self.kind == "solution"

    @property
    def as_head(self) -> str:
        """The condition as a column head."""
        return f"{self.model_title}\n{self.set_title}\n{self.update}"

    def same_set(self, other: Condition) -> bool:
        """Whether both are about one evaluation set of one run, at whatever update."""
        return (self.place, self.model, self.task, self.split) == (other.place, other.model, other.task, other.split)

    def __str__(self) -> str:
        return " ".join(part for part in (self.model_title, self.set_title, self.update) if part)


def bare_name(model: str) -> str:
    """A model name without organisation, revision and case.

    >>> bare_name("ByteDance/Ouro-1.4B@574fa66c")
    'ouro-1.4b'
    """
    return model.rsplit("/", 1)[-1].partition("@")[0].lower()


def folder_name(run: StoredRun) -> str:
    """The folder's own name; it may hold bytes that are no UTF-8, which cannot be printed as they are."""
    return printable(run.path.resolve().name)


def place_of(run: StoredRun) -> str:
    """The run's whole path, which no other run has."""
    return str(run.path.resolve())


def run_labels(runs: Sequence[StoredRun]) -> list[str]:
    """Short names that tell runs apart: the folder's, with as many folders above it as that takes.

    A run that is given twice, and folders whose names print alike, are numbered.
    """
    paths = [run.path.resolve() for run in runs]
    names = [_label(path, paths) for path in paths]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: at + 1].count(name)})" for at, name in enumerate(names)
    ]


def _label(path: Path, paths: Sequence[Path]) -> str:
    others = [other for other in paths if other != path]
    length = 1
    while length < len(path.parts) and any(other.parts[-length:] == path.parts[-length:] for other in others):
        length += 1
    return "/".join(printable(part) for part in path.parts[-length:])


def conditions_of(run: StoredRun, label: str | None = None, model: str | None = None) -> list[Condition]:
    """The evaluation sets of a run, without a transition; `n` is what the run set out to measure.

    Args:
        run: the run.
        label: what it is called.
        model: the published model that its weights are said to be, where they came from a folder.
    """
    manifest = run.manifest
    found = [_condition(run, manifest, task, label or folder_name(run)) for task in manifest.tasks]
    if model is None:
        return found
    kept = (Weights.PUBLISHED, Weights.RANDOM, Weights.TOY)
    return [
        replace(each, model=model, weights=each.weights if each.weights in kept else Weights.UNVERIFIED)
        for each in found
    ]


def at(condition: Condition, transition: int | None, n: int) -> Condition:
    """The same evaluation set at one update, with the number of questions found there."""
    return replace(condition, transition=transition, n=n)


def _condition(run: StoredRun, manifest: Manifest, task: TaskInfo, label: str) -> Condition:
    model = manifest.model
    settings = manifest.settings
    checks, threshold, fewshot = (settings.get(name) for name in ("scalar_checks", "exit_threshold", "num_fewshot"))
    return Condition(
        run=label,
        place=place_of(run),
        model=model.name,
        family=model.family,
        weights=_weights(manifest),
        task=task.name,
        split=task.split,
        subset=task.subset,
        kind=task.kind,
        affine=model.affine_readout,
        n=task.rows,
        expected=task.rows,
        transition=None,
        states=manifest.dtypes.states,
        readout=manifest.dtypes.readout,
        level=manifest.level,
        template_sha256=task.template_sha256,
        exit_threshold=threshold if isinstance(threshold, int | float) else None,
        scalar_checks=checks if isinstance(checks, int) else 0,
        protocol=manifest.protocol,
        initial_state=manifest.initial_state,
        initial_seed=manifest.seeds.get("initial_state"),
        batch_size=manifest.batch.size,
        fewshot=fewshot if isinstance(fewshot, int) else 0,
        chat_template=bool(settings.get("apply_chat_template")),
        share_context=bool(settings.get("share_context")),
        long=str(settings.get("long", "error")),
        data_sha256=task.data_sha256,
        data_revision=task.data_revision,
        bounds=_bounds(manifest),
    )


def _bounds(manifest: Manifest) -> str:
    """Whose envelopes, brackets and residuals `questions` holds; before schema version 3, the paper's stood apart."""
    paper = manifest.protocol == "paper" and manifest.level != "quick" and manifest.schema_version >= 3
    return "paper" if paper else "loopscope"


def _weights(manifest: Manifest) -> Weights:
    model = manifest.model
    if model.random_weights:
        return Weights.RANDOM
    if model.toy:
        return Weights.TOY
    # A name alone proves nothing: a folder called Ouro-1.4B may hold anything, a hub revision is what it says.
    if model.revision is not None and (
        bare_name(model.name) in model_names() or model.revision in {known.revision for known in models().values()}
    ):
        return Weights.PUBLISHED
    return Weights.OTHER


def printable(text: str) -> str:
    r"""Text on one line, with control and formatting characters (escapes, direction marks, surrogates) spelled out.

    >>> printable("a\tb\n c\x1b[31m \u202ed")
    'a b c\\u001b[31m \\u202ed'
    """
    return "".join(_visible(character) for character in " ".join(text.split()))


def _visible(character: str) -> str:
    return spelled(character) if unicodedata.category(character).startswith("C") else character


def spelled(character: str) -> str:
    r"""A character that cannot be shown, by its number.

    >>> spelled("模")
    '\\u6a21'
    """
    return f"\\u{ord(character):04x}"


def shortened(text: str, longest: int = LONGEST_TITLE) -> str:
    """Text with its middle left out where it is too long; both ends of a name tell it apart.

    >>> shortened("abcdefghij", 7)
    'abcd…ij'
    """
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 3
    return f"{text[: longest - 1 - tail]}…{text[len(text) - tail :]}"


def title(name: str) -> str:
    """A name as tables print it."""
    return shortened(printable(name))
