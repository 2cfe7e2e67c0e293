"""The paper's figures, drawn with matplotlib without any global state; importing this package declares all of them."""

from loopscope.studies.figures import conditions, control, depths, examples, training

__all__ = ["conditions", "control", "depths", "examples", "training"]
