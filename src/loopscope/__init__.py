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

__version__ = "0.2.0"

from loopscope.errors import LoopscopeError

if TYPE_CHECKING:
    from loopscope.api import measure as measure
    from loopscope.api import plan as plan
    from loopscope.control.generate import generate as generate
    from loopscope.control.runs import control as control
    from loopscope.hub import open_run as open_run
    from loopscope.lm_eval_backend import lm_eval_model as lm_eval_model
    from loopscope.lm_eval_metrics import lm_eval_scores as lm_eval_scores
    from loopscope.measuring.config import MeasureConfig as MeasureConfig
    from loopscope.measuring.model_check import check as check
    from loopscope.models.batch import Batch as Batch
    from loopscope.models.families.decoder import InitialState as InitialState
    from loopscope.models.load import load_model as load_model
    from loopscope.models.protocol import AffineHead as AffineHead
    from loopscope.models.protocol import Context as Context
    from loopscope.models.protocol import LoopedModel as LoopedModel
    from loopscope.models.protocol import LoopedModule as LoopedModule
    from loopscope.models.tokenizer import load_tokenizer as load_tokenizer
    from loopscope.models.transformers_loop import loop_layers as loop_layers
    from loopscope.models.walk import Walk as Walk
    from loopscope.models.wrapped import wrap as wrap
    from loopscope.monitor import LoopscopeCallback as LoopscopeCallback
    from loopscope.monitor import Monitor as Monitor
    from loopscope.path import Outcome as Outcome
    from loopscope.path import classify as classify
    from loopscope.path import predict as predict
    from loopscope.readout import affine_path as affine_path
    from loopscope.readout import affine_path_from_states as affine_path_from_states
    from loopscope.readout import nonlinear_path as nonlinear_path
    from loopscope.readout import nonlinear_path_from_states as nonlinear_path_from_states
    from loopscope.readout import option_path as option_path
    from loopscope.run import Run as Run
    from loopscope.studies.runs import diff as diff
    from loopscope.tasks import Task as Task
    from loopscope.tasks import load_task as load_task

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
    "studies.runs": ("diff",),
    "tasks": ("Task", "load_task"),
}
"""Where each name is, by the module that has it."""

__all__ = ["LoopscopeError", "__version__", *sorted(name for names in _HOMES.values() for name in names)]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
