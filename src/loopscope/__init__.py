"""loopscope: what each extra loop does inside a looped language model.

import loopscope as ls

run = ls.measure("toy-ouro", "stories", transitions=4, limit=32, output="runs/first")
run.table("mechanism")
run.figure("scale-prediction").save("scale.pdf")

path = ls.affine_path(z0, v, targets)
ls.classify(path.slope, path.gain)

Names are imported when they are first used, so that `import loopscope` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from loopscope._version import __version__
from loopscope.errors import LoopscopeError

if TYPE_CHECKING:
    from loopscope.api import measure, plan
    from loopscope.control.generate import generate
    from loopscope.control.runs import control
    from loopscope.hub import open_run
    from loopscope.lm_eval_backend import lm_eval_model
    from loopscope.lm_eval_metrics import lm_eval_scores
    from loopscope.measuring.config import MeasureConfig
    from loopscope.measuring.model_check import check
    from loopscope.models.batch import Batch
    from loopscope.models.families.decoder import InitialState
    from loopscope.models.load import load_model
    from loopscope.models.protocol import AffineHead, Context, LoopedModel, LoopedModule
    from loopscope.models.tokenizer import load_tokenizer
    from loopscope.models.transformers_loop import loop_layers
    from loopscope.models.walk import Walk
    from loopscope.models.wrapped import wrap
    from loopscope.monitor import LoopscopeCallback, Monitor
    from loopscope.path import Outcome, classify, predict
    from loopscope.readout import (
        affine_path,
        affine_path_from_states,
        nonlinear_path,
        nonlinear_path_from_states,
        option_path,
    )
    from loopscope.run import Run
    from loopscope.studies.run_diff import diff
    from loopscope.tasks import Task, load_task

_HOMES = {
    "api": ("measure", "plan"),
    "control.generate": ("generate",),
    "control.runs": ("control",),
    "hub": ("open_run",),
    "lm_eval_backend": ("lm_eval_model",),
    "lm_eval_metrics": ("lm_eval_scores",),
    "measuring.config": ("MeasureConfig",),
    "measuring.model_check": ("check",),
    "models.batch": ("Batch",),
    "models.families.decoder": ("InitialState",),
    "models.load": ("load_model",),
    "models.protocol": ("AffineHead", "Context", "LoopedModel", "LoopedModule"),
    "models.tokenizer": ("load_tokenizer",),
    "models.transformers_loop": ("loop_layers",),
    "models.walk": ("Walk",),
    "models.wrapped": ("wrap",),
    "monitor": ("LoopscopeCallback", "Monitor"),
    "path": ("Outcome", "classify", "predict"),
    "readout": (
        *("affine_path", "affine_path_from_states", "nonlinear_path", "nonlinear_path_from_states", "option_path"),
    ),
    "run": ("Run",),
    "studies.run_diff": ("diff",),
    "tasks": ("Task", "load_task"),
}
"""Where each name is, by the module that has it."""

__all__ = [
    "AffineHead",
    "Batch",
    "Context",
    "InitialState",
    "LoopedModel",
    "LoopedModule",
    "LoopscopeCallback",
    "LoopscopeError",
    "MeasureConfig",
    "Monitor",
    "Outcome",
    "Run",
    "Task",
    "Walk",
    "__version__",
    "affine_path",
    "affine_path_from_states",
    "check",
    "classify",
    "control",
    "diff",
    "generate",
    "lm_eval_model",
    "lm_eval_scores",
    "load_model",
    "load_task",
    "load_tokenizer",
    "loop_layers",
    "measure",
    "nonlinear_path",
    "nonlinear_path_from_states",
    "open_run",
    "option_path",
    "plan",
    "predict",
    "wrap",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
