"""The joint option utility: log-softmax over length-normalised option scores (Eq. option-utility), for any readout.

U = s_{k*} − log Σ_k exp s_k, where s_k is option k's mean log probability under its teacher-forced state. One scale
moves every option, so U's derivatives follow exactly from those of the options (`token_derivatives`), in float64.

Shapes: N scored sequences (options of all questions), G questions, O options of the largest question, K scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout.checks import as_groups, as_index, as_integers
from loopscope.readout.general.token_derivatives import log_softmax_derivatives
from loopscope.readout.path import UtilityPath
from loopscope.readout.softmax import Softmax, SoftmaxChange, log_probability


@dataclass(frozen=True)
class OptionGroups:
    """Options grouped by question.

    Attributes:
        index: the question of each sequence, [N].
        member: the sequences of each question, [G, O]; some sequence where a question has fewer.
        present: which entries of `member` are there, [G, O].
        target: the place of the correct option among a question's options, [G].
    """

    index: Tensor
    member: Tensor
    present: Tensor
    target: Tensor

    @classmethod
    def of(cls, question: Any, correct: Any, sequences: int, device: torch.device) -> OptionGroups:
        """Check and group: `question` of each sequence, 0..G-1; `correct`, the right sequence of each question."""
        index, counts = as_groups("question", "question", "options", question, sequences, device)
        right = as_index("correct", correct, int(counts.shape[0]), device)
        if int(right.min()) < 0 or int(right.max()) >= sequences:
            raise LoopscopeError(f"correct must name rows of the {sequences} scored sequences, one for each question.")
        wrong = torch.nonzero(index[right] != torch.arange(counts.shape[0], device=device))
        if wrong.numel():
            raise LoopscopeError(f"the correct option of question {int(wrong[0])} belongs to another question.")
        order = torch.argsort(index, stable=True)
        place = torch.arange(sequences, device=device) - (counts.cumsum(0) - counts)[index[order]]
        member = torch.zeros(int(counts.shape[0]), int(counts.max()), dtype=torch.int64, device=device)
        present = torch.zeros_like(member, dtype=torch.bool)
        member[index[order], place] = order
        present[index[order], place] = True
        target = ((member == right.unsqueeze(1)) & present).to(torch.int64).argmax(1)
        return cls(index, member, present, target)

    def gathered(self, per_sequence: Tensor, absent: float) -> Tensor:
        """[..., N] to [..., G, O], with a filler where a question has fewer options."""
        return torch.where(self.present, per_sequence[..., self.member], absent)


class OptionPath(UtilityPath):
    """φ of the joint option utility, one example per question; made by `option_path`."""

    def __init__(self, path: UtilityPath, groups: OptionGroups, *, single: bool = False) -> None:
        self._path, self._questions = path, groups
        self.max_order, self.examples, self.single = path.max_order, int(groups.member.shape[0]), single
        self._scores = path.initial_N.double()

    @cached_property
    def initial_N(self) -> Tensor:  # noqa: N802 - its shape
        """U(H) of each question, float64."""
        return log_probability(self._questions.gathered(self._scores, -torch.inf), self._questions.target)

    def at_scales(self, scales: list[float], order: int) -> Tensor:
        """Derivatives 0..order at the scales."""
        return self._joint(self._path.at_scales(scales, order).transpose(1, 2)).transpose(1, 2)

    def at_own(self, scales_N: Tensor, order: int) -> Tensor:
        """Derivatives 0..order of each question at its scale."""
        return self._joint(self._path.at_own(scales_N[self._questions.index], order).unsqueeze(1))[:, 0]

    def _joint(self, options: Tensor) -> Tensor:
        """From the options' derivatives at some scales [order+1, K, N] to the questions' [order+1, K, G]."""
        scales = options.shape[1]
        start = self._questions.gathered(self._scores, -torch.inf).repeat(scales, 1)
        target = self._questions.target.repeat(scales)
        gains, *slopes = self._questions.gathered(options, 0.0).flatten(1, 2)
        end = Softmax.on_path(start, gains, 1.0)
        gain = SoftmaxChange(Softmax(start), end, gains).gain(target)
        joint = torch.stack([gain, *log_softmax_derivatives(end, slopes, target)])
        return joint.reshape(-1, scales, self.examples)


def option_path(path: UtilityPath, question: Any = None, correct: Any = 0) -> OptionPath:
    """The joint option utility over the examples of a path, each of which is one option's token sequence.

    Args:
        path: affine or nonlinear path whose examples are the options' sequences.
        question: which question each sequence belongs to, integers 0..G-1; None means they are one question's.
        correct: for each question the row (among all sequences) of its correct option.

    >>> import loopscope.readout as readout
    >>> z0 = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> options = readout.affine_path(z0, torch.tensor([[1.0, 0.0], [0.0, 0.0]]), [0, 0], examples=[0, 1])
    >>> joint = option_path(options, correct=0)
    >>> round(float(joint.slope), 6), round(float(joint.gain), 6)
    (0.072329, 0.046799)
    """
    if not isinstance(path, UtilityPath):
        raise LoopscopeError(f"path is a {type(path).__name__}; give what affine_path or nonlinear_path returns.")
    single = question is None
    if single:
        question = torch.zeros(path.examples, dtype=torch.int64)
        correct = as_integers("correct", correct).reshape(-1)
    groups = OptionGroups.of(question, correct, path.examples, path.initial_N.device)
    return OptionPath(path, groups, single=single)


def grouped_option_utility(scores: Tensor, groups: OptionGroups) -> Tensor:
    """U of each question from the options' scores [N], written for autograd: s_{k*} − log Σ_k exp s_k in float64."""
    scores_GO = groups.gathered(scores.double(), -torch.inf)
    return torch.log_softmax(scores_GO, -1).gather(1, groups.target.unsqueeze(1))[:, 0]
