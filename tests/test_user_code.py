"""What the user's own code raises: one line that says which function of which file failed, then its own traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import loopscope as ls
from loopscope.cli.app import exit_code
from loopscope.control.policies import Decision, Policy, Seen, decision_of

CODE = """
import loopscope as ls
import torch

words = torch.nn.Embedding(1024, 8)

def build():
    return ls.wrap(embed=words, step=step, readout=lambda h: h @ words.weight.T, trained_depth=4)

def step(h, depth):
    return h * helper(depth)

def helper(depth):
    return 1 / (2 - depth)

def broken():
    raise KeyError("nothing here")
"""


def test_a_factory_that_raises_is_one_line_and_its_own_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(CODE)
    arguments = ["--tasks=arithmetic", "--limit=1", f"--output={tmp_path / 'out'}", "--device=cpu"]
    assert exit_code(["measure", f"--model={mine}:broken", *arguments]) == 2
    line, *rest = capsys.readouterr().err.splitlines()
    assert line.startswith(f"loopscope: {mine}:broken() failed: KeyError: 'nothing here' (broken in {mine}, line 17")
    assert [entry for entry in rest if entry.startswith("  File")] == [f'  File "{mine}", line 17, in broken']


def test_a_step_that_fails_in_a_pass_names_its_line(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(CODE)
    with pytest.raises(ls.LoopscopeError, match=rf"ZeroDivisionError: .*helper in {mine}, line 14"):
        ls.measure(
            f"{mine}:build", "arithmetic", output=tmp_path / "out", transitions=[2], limit=1, tokenizer="toy-ouro",
            device="cpu", progress="none",
        )  # fmt: skip


class _Odd(Policy):
    name = "odd"

    def __init__(self, decision: object) -> None:
        self.decision = decision

    def decide(self, seen: Seen, memory: object) -> Decision:
        return self.decision  # type: ignore[return-value]


@pytest.mark.parametrize(
    "decision",
    [
        None,
        Decision(stop="yes"),
        Decision(stop=0.5),
        Decision(stop=torch.ones(3, dtype=torch.bool)),
        Decision(scale="x"),
        Decision(scale=torch.ones(4, 1)),
        Decision(omega=None),  # type: ignore[arg-type]
    ],
)
def test_what_a_policy_decides_is_checked(decision: object) -> None:
    with pytest.raises(ls.LoopscopeError, match="decide of the policy 'odd' after loop 2 returned"):
        decision_of(_Odd(decision), Seen(2, (), lambda _: 0), {}, 4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": lambda h: h @ h}, "wrap: step= for a state"),
        ({"embed": lambda ids: ids.nothing}, "wrap: embed= for two rows"),
        ({"head": torch.zeros(16, 9), "readout": None}, "wrap: the readout of a state"),
        ({"head": 5, "readout": None}, "wrap: head= takes"),
        ({"readout": lambda h: torch.zeros(2, 3, 16, device="meta")}, "on meta for"),
        ({"max_positions": 0}, "max_positions=0 is too small"),
    ],
)
def test_functions_of_a_wrapped_model_that_fail(changes: dict[str, object], said: str) -> None:
    words = torch.nn.Embedding(16, 8)
    given = {"embed": words, "step": lambda h: h, "readout": lambda h: h @ words.weight.T} | changes
    with pytest.raises(ls.LoopscopeError, match=said):
        ls.wrap(**given)  # type: ignore[arg-type]
