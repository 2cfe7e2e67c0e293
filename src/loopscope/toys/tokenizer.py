"""The toy models' tokenizer: byte-level BPE with single digits, learnt from our own problems.

Like Ouro's it splits numbers into digits, adds nothing at the ends and has `<|endoftext|>` as token 0. All 256
bytes are tokens, so that any text survives encoding and decoding.
"""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from loopscope.tasks.arithmetic.generate import problem
from loopscope.tasks.arithmetic.task import answer_context, solution_context

VOCABULARY = 512
END = "<|endoftext|>"
END_ID = 0
PROBLEMS = 20_000
"""How many training problems the merges are learnt from."""


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
        yield solution_context(made.question) + made.solution
        if index % 4 == 0:
            yield f"{answer_context(made.story)} {made.answer}"
