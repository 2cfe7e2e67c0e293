"""How large everything is: the goals' own sizes on a GPU, what two cores manage in minutes, and seconds for a test."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class HuginnSizes:
    """A coda of two blocks and a head, and the states that they read."""

    hidden: int
    heads: int
    inner: int
    vocabulary: int
    rows: int
    positions: int

    def as_size(self) -> dict[str, int]:
        """For a row."""
        return {"hidden": self.hidden, "inner": self.inner, "vocabulary": self.vocabulary}


@dataclass(frozen=True)
class Sizes:
    """The numbers of one benchmark.

    Attributes:
        tokens: reference tokens of the affine rows.
        hidden: width of the states.
        vocabulary: entries of the head.
        chunk: tokens that the differentiating references take at a time, as their memory demands.
        repeats: of what is quick.
        slow_repeats: of references that take long.
        memory_tokens: two numbers of tokens between which memory must not grow; on a GPU only the larger is held.
        fp64_tokens: tokens of the FP64 path.
        cells: of the FP64 path; one less than its nodes.
        error_tokens: of the accuracy rows; a ragged number.
        error_vocabulary: of the accuracy rows; a ragged number.
        huginn: of the nonlinear readout.
        judged: whether goals are held against these sizes.
    """

    tokens: int
    hidden: int
    vocabulary: int
    chunk: int
    repeats: int
    slow_repeats: int
    memory_tokens: tuple[int, int]
    fp64_tokens: int
    cells: int
    error_tokens: int
    error_vocabulary: int
    huginn: HuginnSizes
    judged: bool = True


CUDA = Sizes(
    tokens=4096,
    hidden=2048,
    vocabulary=49_152,
    chunk=1024,
    repeats=20,
    slow_repeats=3,
    memory_tokens=(4096, 65_536),
    fp64_tokens=1024,
    cells=256,
    error_tokens=997,
    error_vocabulary=50_021,
    huginn=HuginnSizes(hidden=5280, heads=55, inner=17_920, vocabulary=65_536, rows=4, positions=256),
)
CPU = replace(
    CUDA,
    tokens=256,
    chunk=128,
    repeats=5,
    memory_tokens=(256, 1024),
    fp64_tokens=64,
    error_tokens=61,
    huginn=HuginnSizes(hidden=1056, heads=11, inner=3584, vocabulary=65_536, rows=2, positions=32),
)
QUICK = Sizes(
    tokens=9,
    hidden=32,
    vocabulary=999,
    chunk=4,
    repeats=2,
    slow_repeats=1,
    memory_tokens=(4, 16),
    fp64_tokens=3,
    cells=16,
    error_tokens=7,
    error_vocabulary=501,
    huginn=HuginnSizes(hidden=48, heads=2, inner=64, vocabulary=301, rows=2, positions=5),
    judged=False,
)


def sizes_for(device: str, *, quick: bool) -> Sizes:
    """Those of a kind of device."""
    if quick:
        return QUICK
    return CUDA if device == "cuda" else CPU
