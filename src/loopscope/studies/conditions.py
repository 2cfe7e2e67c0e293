"""What a row of a study is about: which model, on which examples, over which update, in which arithmetic.

Models, tasks and folders carry whatever name their owners wrote; `title` and `printable` say how it is printed.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from loopscope.errors import LoopscopeError, shown
from loopscope.store.schema import update_name
from loopscope.studies.paper import model_names, models, set_titles

if TYPE_CHECKING:
    from loopscope.store import Manifest, StoredRun, TaskInfo


class Weights(StrEnum):
    """Where a model's weights come from, as far as a comparison with the paper is concerned.

    Attributes:
        PUBLISHED: a checkpoint of the paper's models at a known revision, or with known SHA-256.
        UNVERIFIED: weights that the user says are a published model's, without anything that shows it.
        OTHER: any other checkpoint: another model, a folder of the user's own, a fine-tuned copy.
        TOY: a small model that ships with loopscope.
        RANDOM: no weights at all.
    """

    PUBLISHED = "published"
    UNVERIFIED = "unverified"
    OTHER = "other"
    TOY = "toy"
    RANDOM = "random"


G = TypeVar("G", bound=Any)

_RANDOM = " (random weights)"
LONGEST_TITLE = 60  # characters of a name in tables; JSON and CSV hold it in full
UNSPLIT = "all"  # the split of rows of one's own that are not split


@dataclass(frozen=True)
class Condition:
    """One model, evaluation set and update (no update where a study is about depths).

    Attributes:
        run: short name of the run, as it may be printed; another one for each run that a study is given (`run_labels`).
        place: the run's whole path: what a run is looked up by. It is never printed.
        model: as the manifest has it.
        family: of the model.
        weights: where they come from.
        task: the evaluation set's, as `split` and `subset`.
        n: questions.
        expected: questions that the run set out to measure; more than `n` while it is unfinished.
        kind: `solution` or `options`.
        affine: whether logits are affine in the state.
        transition: of the update.
        states: their dtype.
        readout: its dtype.
        level: `quick`, `grid` or `full`.
        manifest: of the run, with everything else about it; None for the log of a monitor.
        info: what the manifest says of the task.
        names_run: whether the model is printed with its run, as `told_apart` decides.
    """

    run: str
    place: str
    model: str
    family: str
    weights: Weights
    task: str
    split: str
    n: int
    expected: int
    subset: str | None = None
    kind: str = "solution"
    affine: bool = False
    transition: int | None = None
    states: str = ""
    readout: str = ""
    level: str = "quick"
    manifest: Manifest | None = field(default=None, repr=False, compare=False)
    info: TaskInfo | None = field(default=None, repr=False, compare=False)
    names_run: bool = field(default=False, compare=False)

    @property
    def bounds(self) -> str:
        """Whose envelopes, brackets and residuals the records hold; before schema version 3 the paper's stood apart."""
        about = self.manifest
        paper = about and about.protocol == "paper" and about.level != "quick" and about.schema_version >= 3
        return "paper" if paper else "loopscope"

    @property
    def model_title(self) -> str:
        """The model as tables print it, with the run in brackets where another run has the same model."""
        return f"{self.plain_title} ({title(self.run)})" if self.names_run else self.plain_title

    @property
    def plain_title(self) -> str:
        """The model without its run; random weights are never left unsaid."""
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
        """The evaluation set as tables print it: `GSM8K test`; a task whose rows are not split has its name alone."""
        part = self.subset or self.split
        own = f"{title(self.task)} {'' if part == UNSPLIT else title(part)}".rstrip()
        return set_titles().get(self.evaluation_set, own)

    @property
    def finished(self) -> bool:
        """Whether all questions that the run set out to measure are there."""
        return self.n >= self.expected

    @property
    def update(self) -> str:
        """The transition as text: `4→5`."""
        return "" if self.transition is None else update_name(self.transition)

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


def conditions_of(run: StoredRun, label: str = "", model: str = "") -> list[Condition]:
    """The evaluation sets of a run, without a transition; `n` is what the run set out to measure.

    Args:
        run: the run.
        label: what it is called; by default its folder's name.
        model: the published model that its weights are said to be, where they came from a folder, with
            `@sha256:…` after it where the SHA-256 of the published weights were given.
    """
    manifest = run.manifest
    weights, (model, given) = _weights(manifest), declared(model)
    if model and weights is Weights.OTHER:
        known = downloaded_commit(model, Path(manifest.model.spec), manifest.model.weights)
        same = given and given == {*manifest.model.weights.values()}
        weights = Weights.PUBLISHED if same or known else Weights.UNVERIFIED
    return [
        Condition(
            run=label or printable(run.path.resolve().name),
            place=place_of(run),
            model=model or manifest.model.name,
            family=manifest.model.family,
            weights=weights,
            **{name: getattr(task, name) for name in ("split", "subset", "kind")},
            task=task.name,
            affine=manifest.model.affine_readout,
            n=task.rows,
            expected=task.rows,
            states=manifest.dtypes.states,
            readout=manifest.dtypes.readout,
            level=manifest.level,
            manifest=manifest,
            info=task,
        )
        for task in manifest.tasks
    ]


def at(condition: Condition, transition: int | None, n: int) -> Condition:
    """The same evaluation set at one update, with the number of questions found there."""
    return replace(condition, transition=transition, n=n)


def told_apart(groups: Iterable[G]) -> tuple[G, ...]:
    """The rows or groups of one study; the models of runs that share a model and evaluation set name their run."""
    kept = tuple(groups)
    runs = defaultdict(set)
    for group in kept:
        runs[group.condition.plain_title, group.condition.set_title].add(group.condition.run)
    alike = set().union(*(each for each in runs.values() if len(each) > 1))
    return tuple(
        replace(group, condition=replace(group.condition, names_run=True)) if group.condition.run in alike else group
        for group in kept
    )


def _weights(manifest: Manifest) -> Weights:
    model = manifest.model
    if model.random_weights:
        return Weights.RANDOM
    if model.toy:
        return Weights.TOY
    # A name alone proves nothing: a folder called Ouro-1.4B may hold anything, a hub revision is what it says.
    known = bare_name(model.name) in model_names() or model.revision in {each.revision for each in models().values()}
    return Weights.PUBLISHED if model.revision is not None and known else Weights.OTHER


def declared(name: str) -> tuple[str, set[str]]:
    """A model or folder, and the SHA-256 of all its weight files that are given with it.

    >>> declared("folder"), declared("folder@sha256:" + "A" * 64)[1] == {"a" * 64}
    (('folder', set()), True)
    """
    folder, marked, given = name.partition("@sha256:")
    found = {each.strip().lower() for each in given.split("+")} if marked else set()
    if not all(re.fullmatch("[0-9a-f]{64}", each) for each in found):
        raise LoopscopeError(f"{shown(name)}: give the whole SHA-256 of every weight file, FOLDER@sha256:HEX+HEX")
    return folder, found


def downloaded_commit(model: str, folder: Path, hashes: Mapping[str, str] | None = None) -> str:
    """The published commit of a model, where a folder shows that its weights were downloaded at it; else nothing.

    Snapshots in the hub's cache lie in a folder of the commit's name, and their files are links to one that is named
    by its SHA-256; `hf download --local-dir` notes both next to the files.

    Args:
        model: a bare name of the paper's models.
        folder: of the checkpoint.
        hashes: the SHA-256 of every weight file, as they were read.
    """
    commit = next((each.revision for each in models().values() if each.name == model), "")
    files = hashes or {path.name: "" for path in folder.glob("*.safetensors")}
    for name, read in files.items():
        note = folder / ".cache" / "huggingface" / "download" / f"{name}.metadata"
        noted = [folder.name, (folder / name).resolve().name]
        at, sha = note.read_text(encoding="utf-8").split()[:2] if note.is_file() else noted
        if at != commit or read not in (sha, ""):
            return ""
    return commit if files else ""


def printable(text: str) -> str:
    r"""Text on one line, with control and formatting characters (escapes, direction marks, surrogates) spelled out.

    >>> printable("a\tb\n c\x1b[31m \u202ed")
    'a b c\\u001b[31m \\u202ed'
    """
    return "".join(spelled(c) if unicodedata.category(c).startswith("C") else c for c in " ".join(text.split()))


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
