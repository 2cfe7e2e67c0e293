"""What the toy models are trained on: their tokenizer, and rows of generated problems and stories.

The tokenizer is byte-level BPE with single digits, learnt from our own texts. Like Ouro's it splits numbers into
digits, adds nothing at the ends and has `<|endoftext|>` as token 0. All 256 bytes are tokens, so that any text survives
encoding and decoding.

Rows are generated without end, tokenised and padded to a few fixed widths. Shard i of a seed always holds the same rows
in the same order, whoever makes it. No torch here: the worker processes import this module.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from research.data.arithmetic import FEWEST, SEED, problem
from research.data.problem import Chooser, Problem, key
from research.data.stories import document
from research.toys.recipe import END_ID, VOCABULARY, Mixture

END = "<|endoftext|>"
PROBLEMS = 20_000
"""How many training problems the merges are learnt from; a document of stories comes with every fourth."""
WORKED, BARE, STORY = 0, 1, 2
"""Forms of a row: a worked solution, a bare answer, a document of stories."""


def build_tokenizer(problems: int = PROBLEMS) -> Tokenizer:
    """Learns the tokenizer from nothing; the same bytes every time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(problems), trainer=trainer)
    return tokenizer


def _texts(problems: int) -> Iterator[str]:
    for index in range(problems):
        made = problem("train", index)
        yield worked(made) + made.solution
        if index % 4 == 0:
            yield f"{bare(made)} {made.answer}"
            yield _document(index, SEED)


def worked(made: Problem) -> str:
    """What stands before a worked solution."""
    return f"Problem: {made.question}\nSolution:\n"


def bare(made: Problem) -> str:
    """What stands before a bare answer."""
    return f"Problem: {made.story}\nAnswer:"


def _document(index: int, seed: int) -> str:
    head, told = document(Chooser(key("stories", seed, "train", index)), "train")
    return "\n".join((head, *told))


Words = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Rows:
    """One batch: tokens [R, W] padded on the right; of each row where its solution starts, where it ends, its form."""

    tokens: Words
    start: Words
    length: Words
    form: Words


def make_shard(tokenizer_json: str, mixture: Mixture, seed: int, shard: int) -> list[Rows]:
    """All batches of one shard; rows that fill no batch are left out."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    choose = Chooser(key("toy rows", seed, shard))
    contexts, solutions, forms = [], [], []
    for index in range(mixture.shard_problems):
        number = shard * mixture.shard_problems + index
        if choose.chance(mixture.story_share):
            # All of it is to be predicted, but its first token.
            head, rest = _document(number, key("toy stories", seed)).split(" ", 1)
            contexts.append(head)
            solutions.append(f" {rest}")
            forms.append(STORY)
            continue
        direct = choose.chance(mixture.direct_share)
        operations = _draw(choose, mixture.direct_operations if direct else mixture.operations)
        made = problem("train", number, seed=key("toy problems", seed), operations=operations)
        if mixture.second_draw and choose.chance(mixture.second_draw) and not _compares(made):
            made = problem("train", number, seed=key("toy problems again", seed), operations=operations)
        contexts.append(bare(made) if direct else worked(made))
        solutions.append(f" {made.answer}" if direct else made.solution)
        forms.append(BARE if direct else WORKED)
    # A context ends in a newline or before a blank, where this tokenizer always has a boundary:
    # encoding the two apart gives the tokens of the whole text.
    heads = [encoding.ids for encoding in tokenizer.encode_batch_fast(contexts)]
    tails = [[*encoding.ids, END_ID] for encoding in tokenizer.encode_batch_fast(solutions)]
    lengths = np.array([len(head) + len(tail) for head, tail in zip(heads, tails, strict=True)])
    batches = []
    shorter = 0
    for width in mixture.widths:
        chosen = np.flatnonzero((lengths > shorter) & (lengths <= width))
        shorter = width
        count = mixture.rows(width)
        for first in range(0, len(chosen) - count + 1, count):
            picked = chosen[first : first + count]
            tokens = np.zeros((count, width), dtype=np.uint16)
            for row, index in enumerate(picked):
                tokens[row, : lengths[index]] = heads[index] + tails[index]
            batches.append(
                Rows(
                    tokens,
                    np.array([len(heads[index]) for index in picked], dtype=np.uint16),
                    lengths[picked].astype(np.uint16),
                    np.array([forms[index] for index in picked], dtype=np.uint16),
                )
            )
    return [batches[index] for index in choose.order(len(batches))]


def _compares(made: Problem) -> bool:
    return any(step.kind == "to" for step in made.steps)


def _draw(choose: Chooser, chances: tuple[float, ...]) -> int:
    left = choose.uniform() * sum(chances)
    for index, chance in enumerate(chances):
        left -= chance
        if left < 0:
            return FEWEST + index
    return FEWEST + len(chances) - 1


def stream(
    tokenizer_json: str, mixture: Mixture, seed: int, first: int = 0, workers: int = 0
) -> Iterator[tuple[int, Rows]]:
    """Batches from a shard on, each with the number of its shard; `workers` processes make shards ahead."""
    if workers <= 0:
        for shard in itertools.count(first):
            yield from ((shard, rows) for rows in make_shard(tokenizer_json, mixture, seed, shard))
    # A forked child of a process that holds a CUDA context or running threads may hang: start afresh.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_single_threaded)
    try:
        ahead: deque[Future[list[Rows]]] = deque()
        for shard in itertools.count(first):
            while len(ahead) < 2 * workers:
                ahead.append(pool.submit(make_shard, tokenizer_json, mixture, seed, shard + len(ahead)))
            yield from ((shard, rows) for rows in ahead.popleft().result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _single_threaded() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
