"""One training of training.py: a small looped model, generated stories, one loss, and its measurement.

A `Trial` says all of it and is run by `Trial.run`, in this process or in another. Text is made once for each seed, in
pieces that are kept, and read by every training of that seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

import loopscope as ls
from loopscope.models.families.ouro import Ouro
from loopscope.store.writer import write_atomically
from research.data.problem import Chooser, key
from research.data.stories import document
from research.experiments import losses
from research.toys.build import new_model, optimisers
from research.toys.objective import Supervised, supervise
from research.toys.recipe import Recipe, ouro_config
from research.toys.text import STORY
from research.toys.train import rate_factor

DEPTH = 4
DEEPEST = 4 * DEPTH
UPDATES = (DEPTH, DEPTH + 1, 7, 11, DEEPEST - 1)
"""Updates whose outcomes and shorter steps are measured; utilities are, at every depth."""
PIECE = 16
"""Steps whose text is made together."""


@dataclass(frozen=True)
class Size:
    """A model, its text and its training.

    Attributes:
        stories: of a document; one is split after its first sentence, of several the first is the context.
        documents: of one step.
        apart: documents from the first of one seed to the first of the next.
        rate: what the learning rates of the embedded models are multiplied by.
    """

    hidden: int
    inner: int
    layers: int
    heads: int
    stories: int
    documents: int
    steps: int
    apart: int
    rate: float = 1.0


SIZES = {
    "tiny": Size(16, 32, 1, 1, stories=1, documents=2, steps=3, apart=100),
    "small": Size(64, 192, 2, 2, stories=1, documents=8, steps=240, apart=1920),
    "large": Size(128, 384, 2, 4, stories=1, documents=32, steps=1000, apart=1_000_000),
}


# --- text


def texts(split: str, index: int, stories: int) -> tuple[str, str]:
    """Context and continuation of one document."""
    head, told = document(Chooser(key("training experiment", split, index)), split, stories)
    if stories > 1:
        return f"{head}\n{told[0]}\n", "\n".join(told[1:])
    first, rest = told[0].split(". ", 1)
    return f"{head}\n{first}.", f" {rest}"


Document = tuple[list[int], list[int]]


def encoded(split: str, count: int, stories: int, first: int = 0) -> list[Document]:
    """Token ids of documents."""
    tokenizer = ls.load_tokenizer("toy-ouro")
    pairs = [texts(split, index, stories) for index in range(first, first + count)]
    return [(tokenizer.encode(context), tokenizer.encode(rest)) for context, rest in pairs]


@dataclass(frozen=True)
class Text:
    """What a seed's trainings read: the documents of each step, alike in length, none of them twice.

    Attributes:
        folder: where pieces are kept, 0.bin and so on: for each document its length, then its ids, 16 bits each.
    """

    size: Size
    seed: int
    folder: Path

    @property
    def pieces(self) -> int:
        """How many there are."""
        return -(-self.size.steps // PIECE)

    def make(self, number: int) -> Path:
        """The file of a piece, its documents in order of length; made if it is not there yet."""
        path = self.folder / f"{number}.bin"
        if not path.exists():
            count = PIECE * self.size.documents
            pairs = encoded("train", count, self.size.stories, self.seed * self.size.apart + number * count)
            made = [context + rest for context, rest in pairs]
            flat = [value for ids in sorted(made, key=len) for value in (len(ids), *ids)]
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, np.array(flat, "<i2").tobytes())
        return path

    def documents(self, number: int) -> list[Tensor]:
        """Those of a piece."""
        values, found, end = torch.from_numpy(np.fromfile(self.make(number), "<i2").astype(np.int64)), [], 0
        while end < len(values):
            begin, end = end + 1, end + 1 + int(values[end])
            found.append(values[begin:end])
        return found

    def batches(self) -> Iterator[list[Tensor]]:
        """The documents of step after step."""
        order, count = np.random.default_rng(self.seed), self.size.documents
        for number in range(self.pieces):
            documents = self.documents(number)
            for place in order.permutation(PIECE):
                yield documents[place * count : (place + 1) * count]


def asked_of(documents: list[Tensor], vocabulary: int, device: torch.device) -> Supervised:
    """A batch in which every token but the first of a document is to be predicted."""
    tokens = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)
    lengths = torch.tensor([len(ids) for ids in documents])
    placed = (part.to(device) for part in (tokens, torch.ones_like(lengths), lengths, torch.full_like(lengths, STORY)))
    return supervise(*placed, prompt_weight=1.0, direct_weight=1.0, vocabulary=vocabulary)


def held_out(split: str, size: Size, questions: int) -> ls.Task:
    """The first documents of a split as a task."""
    documents = encoded(split, questions, size.stories)
    return ls.Task.from_ids([first for first, _ in documents], [rest for _, rest in documents], name=f"story-{split}")


# --- training and measuring


@dataclass(frozen=True)
class Trial:
    """One training and its measurement.

    Attributes:
        way: its name.
        loss: of one step, by its setting.
        split: of the documents that it is measured on: test, or validation, where utilities alone are.
        questions: how many of them.
        keep: folder of texts and runs.
    """

    way: str
    loss: Callable[[losses.Step, Any], Tensor]
    setting: Any
    seed: int
    split: str
    size: Size
    device: str
    questions: int
    keep: Path

    @property
    def name(self) -> str:
        """Of its result."""
        chosen = "" if self.setting is None else f" {shown(self.setting)}"
        return f"{self.way}{chosen}, seed {self.seed}"

    @property
    def text(self) -> Text:
        """What it is trained on."""
        return Text(self.size, self.seed, self.keep / "text" / f"{self.size.documents}-{self.seed}")

    @property
    def folder(self) -> Path:
        """Of its run."""
        return self.keep / f"{self.split}-{self.name}".replace(" ", "-").replace(",", "")

    def run(self) -> dict[str, Any]:
        """Train and measure."""
        model, cost = self.train()
        started = time.monotonic()
        found = self._measured(model)
        measuring = round(time.monotonic() - started, 1)
        said = {"way": self.way, "setting": self.setting, "seed": self.seed, "size": asdict(self.size)}
        return {**said, **cost, "measuring": measuring, **found}

    def train(self) -> tuple[Ouro, dict[str, Any]]:
        """A model trained from nothing, and what it cost. Weights and text follow from the seed, whatever the way."""
        size, device = self.size, torch.device(self.device)
        config = ouro_config(size.hidden, size.inner, size.layers, size.heads, DEPTH)
        recipe = Recipe("training experiment", "ouro", config, minutes=1.0)
        model = new_model(recipe, self.seed).to(device)
        assert isinstance(model, Ouro)
        muon, adam = optimisers(model, recipe)
        rng, generator = np.random.default_rng(self.seed), torch.Generator(device).manual_seed(self.seed)
        precision = torch.get_float32_matmul_precision()
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32: models are small, autocast would only add launches
        started, worked = time.monotonic(), time.process_time()
        curve, loss, tokens = [], torch.zeros(()), 0
        for number, documents in zip(range(size.steps), self.text.batches(), strict=False):
            progress = number / size.steps
            asked = asked_of(documents, model.vocabulary_size, device)
            loss = self.loss(losses.Step(model, asked, rng, generator, progress), self.setting)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(adam.param_groups[0]["params"], 1.0)
            factor = size.rate * rate_factor(number, progress, warmup_steps=20, decay_from=0.4)
            for optimiser, full in ((muon, recipe.matrix_rate), (adam, recipe.vector_rate)):
                optimiser.param_groups[0]["lr"] = full * factor
                optimiser.step()
            model.zero_grad(set_to_none=True)
            tokens += sum(len(ids) for ids in documents)
            if number % max(1, size.steps // 10) == 0:
                curve.append([number, round(loss.item(), 4)])
        curve.append([size.steps, round(loss.item(), 4)])
        torch.set_float32_matmul_precision(precision)
        cost = {"seconds": round(time.monotonic() - started, 1), "core_seconds": round(time.process_time() - worked, 1)}
        return model, {**cost, "tokens": tokens, "loss": curve}

    def _measured(self, model: Ouro) -> dict[str, Any]:
        """What `loopscope.measure` finds on the first documents of the split; utilities at depths 1, 2, …"""
        level, updates = ("grid", UPDATES) if self.split == "test" else ("quick", ())
        task, depths = held_out(self.split, self.size, self.questions), range(1, DEEPEST + 1)
        run = ls.measure(model, task, transitions=updates, depths=depths, level=level, output=self.folder)
        utility = run.depths.group_by("depth").agg(pl.col("utility").mean()).sort("depth")["utility"]
        return {
            "utility": [round(value, 6) for value in utility],
            "updates": [_update(run, update) for update in updates],
        }


def shown(setting: Any) -> str:
    """A setting as it is written in tables."""
    if setting is None:
        return "—"
    return ", ".join(f"{value:g}" for value in setting) if isinstance(setting, list | tuple) else f"{setting:g}"


def _update(run: ls.Run, update: int) -> dict[str, Any]:
    rows = run.records.filter(pl.col("transition") == update).with_columns(quarter=pl.col("grid_gain").list.get(5))
    failed = rows.filter(pl.col("outcome") == "finite-step failure")
    return {
        "update": update,
        "questions": len(rows),
        "harmful": int((rows["gain"] < 0).sum()),
        "finite_step": len(failed),
        "quarter_recovers": int((failed["quarter"] > 0).sum()),
        "quadratic_recovers": int((failed["quadratic_gain"] > 0).sum()),
        "slope": round(float(rows["slope"].mean()), 6),  # type: ignore[arg-type]
        "gain": round(float(rows["gain"].mean()), 6),  # type: ignore[arg-type]
        "quarter_gain": round(float(rows["quarter"].mean()), 6),  # type: ignore[arg-type]
        "quadratic_gain": round(float(rows["quadratic_gain"].mean()), 6),  # type: ignore[arg-type]
    }
