"""How the derivatives of a readout are taken, and how `auto` decides.

Taylor mode comes first: it is the fastest, and exact. Where it does not know an operation of the readout, or the
readout's code does not take a series at all (compiled or scripted code, checks of types), nested forward mode takes its
place for all later derivatives of the same readout, and `note` says why.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout.checks import is_out_of_memory, require_choice
from loopscope.readout.general.taylor import MissingRuleError

IMPLEMENTATIONS = ("auto", "taylor", "nested", "autograd")


class Derivation:
    """The way that is taken for one readout; paths through the same readout may share it.

    Attributes:
        impl: the way asked for; where that is "auto", "nested" once Taylor mode has given up.
        taken: the ways that have given derivatives so far.
        note: one line on why "auto" gave Taylor mode up, empty while it has not.
    """

    def __init__(self, impl: str = "auto") -> None:
        require_choice("impl", impl, IMPLEMENTATIONS)
        self.impl = impl
        self.taken: set[str] = set()
        self.note = ""

    def choose(self, taylor: Callable[[], Tensor], nested: Callable[[], Tensor]) -> Tensor:
        """The derivatives by the way asked for, or by the one that can."""
        if self.impl == "nested":
            try:
                return self._taking("nested", nested)
            except (NotImplementedError, RuntimeError) as error:
                if is_out_of_memory(error):
                    raise
                raise LoopscopeError(f"nested forward mode cannot differentiate the readout: {_said(error)}") from error
        if self.impl == "taylor":
            return self._taking("taylor", taylor)
        try:
            return self._taking("taylor", taylor)
        except Exception as error:
            if is_out_of_memory(error) or (isinstance(error, LoopscopeError) and not _is_missing(error)):
                raise
            first = error
        try:
            found = self._taking("nested", nested)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise LoopscopeError(
                f"the readout cannot be differentiated: {_said(first)}; nested forward mode: {_said(error)}; "
                "write it with other operations (docs/operations.md lists those that are known)."
            ) from error
        self.impl = "nested"
        self.note = f"derivatives of the readout by nested forward mode, which is slower: {_said(first)}"
        return found

    def _taking(self, name: str, derivatives: Callable[[], Tensor]) -> Tensor:
        found = derivatives()
        self.taken.add(name)
        return found


def _is_missing(error: Exception) -> bool:
    return isinstance(error, MissingRuleError)


def _said(error: Exception) -> str:
    """The first sentence of an error, without the remedy that is taken here."""
    text = " ".join(str(error).split())
    if isinstance(error, MissingRuleError):
        return text.partition("; write the readout")[0]
    limit = 200
    return f"{type(error).__name__}: {text if len(text) <= limit else text[:limit] + '…'}"
