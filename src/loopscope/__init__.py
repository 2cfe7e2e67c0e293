"""loopscope: what each extra loop does inside a looped language model."""

from loopscope._version import __version__

__all__ = ["__version__"]
