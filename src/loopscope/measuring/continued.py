"""`continue_from=`: the run whose stored states another one goes on from, and whether the two fit.

Everything that decides a state must be equal: weights, tokens, batches, dtype, seeds, protocol. What is read from the
states may differ. A continued run names its source in its manifest, by the digests of that one's manifest and records.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from loopscope.errors import LoopscopeError, setting, text
from loopscope.measuring.stored_states import StoredStates
from loopscope.store.manifest import Manifest
from loopscope.store.resume import differences
from loopscope.store.run import StoredRun
from loopscope.store.run_directory import STATES, WorkUnit

CIRCUMSTANCES = (
    "loopscope_version",
    "code_sha256",
    "device",
    "libraries",
    "model.spec",
    "model.name",
    "model.revision",
)
"""What may differ between two runs whose numbers are compared; then rounding may differ, too."""
_READ_FROM_STATES = (
    *("transitions", "depths", "level", "tokens", "paths", "dtypes.readout", "settings.scalar_checks"),
    *("settings.exit_threshold", "settings.certify", "settings.scales_to", "settings.renormalise"),
    *("settings.keep_states", "settings.continue_from", "settings.trace", "settings.lens", "settings.trajectories"),
    "settings.interpolate",
)
"""What a continued run chooses for itself."""


class StateSource:
    """A finished run that keeps its states."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(text("continue_from", path))
        self._run = StoredRun(self.path)
        shown = setting("continue_from", os.fspath(path))
        if STATES not in self._run.manifest.shards:
            raise LoopscopeError(f"{shown} keeps no states: measure that run with {setting('keep_states', 4)}")
        if not self._run.finished:
            raise LoopscopeError(f"{shown} is not finished: the command that measures it, given again, goes on with it")

    @cached_property
    def depth(self) -> int:
        """Loops that its states have done."""
        kept = self._run.manifest.settings["keep_states"]
        assert isinstance(kept, int)
        return kept

    @property
    def padding(self) -> str:
        """How its batches were padded."""
        return self._run.manifest.batch.padding

    @property
    def identity(self) -> dict[str, Any]:
        """How a manifest names it."""
        return {
            "depth": self.depth,
            "manifest_sha256": self._run.manifest.digest,
            "records_sha256": self._run.completion().records_sha256,
        }

    def check(self, wanted: Manifest) -> None:
        """Refuse to go on with other weights, questions, batches, dtype or protocol."""
        for entry in differences(self._run.manifest, wanted):
            if not entry.field.startswith(_READ_FROM_STATES + CIRCUMSTANCES):
                raise LoopscopeError(
                    f"the states of {self.path} do not fit ({entry}): give {setting('continue_from')} a run of the same"
                    " weights, questions, batches, dtype and protocol"
                )

    def notices(self, wanted: Manifest) -> list[str]:
        """What may make the last bits differ from those of a run that walked the whole way."""
        found = [
            str(entry) for entry in differences(self._run.manifest, wanted) if entry.field.startswith(CIRCUMSTANCES)
        ]
        return [f"going on from {self.path}, whose last bits may be others ({'; '.join(found)})"] if found else []

    def unit(self, unit: WorkUnit) -> StoredStates:
        """The states of one unit, whose file is what its record says."""
        return StoredStates(self._run.states(unit))
