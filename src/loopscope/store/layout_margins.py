"""How far another batch layout moves a gain or a slope: an outcome nearer to zero than that is layout-sensitive.

Each figure is what 99 of 100 values of ΔU and of A stayed below in `loopscope verify --layout`, rounded up;
docs/measuring.md says where it was measured. On a CPU and on an H200 the states of loopscope's own model code do not
depend on the layout, but for options that share a row, so that only the readout's arithmetic counts there.
"""

from typing import NamedTuple

from loopscope.store.manifest import Manifest


class LayoutMargin(NamedTuple):
    """In nats: of a reference solution's mean, of a choice between options, of a single token."""

    solution: float
    options: float
    token: float


LAYOUT_MARGINS = {
    "float64": LayoutMargin(1e-12, 1e-12, 1e-12),
    "float32": LayoutMargin(1e-6, 2e-6, 1e-5),
    "float16": LayoutMargin(2.5e-4, 2e-3, 8e-3),
    "bfloat16": LayoutMargin(2e-3, 1.5e-2, 6e-2),
}
"""By the arithmetic that depends on the layout; FP16, with three bits more, an eighth of BF16."""
STEADY = frozenset({"ouro", "huginn", "retrofit-llama", "retrofit-olmo", "loop"})
"""Families whose products and attention are loopscope's own; another's code may round as it likes."""
STEADY_DEVICES = ("cpu", "NVIDIA H200")
"""Where their states were seen not to depend on the layout; another GPU's library may take other kernels."""


def layout_margin(manifest: Manifest) -> LayoutMargin:
    """The figures of a run."""
    dtypes = manifest.dtypes
    steady = manifest.device.startswith(STEADY_DEVICES) and manifest.model.family in STEADY
    # float32 products on a GPU are not padded, and move by no more than the readout's own.
    steady &= not manifest.settings.get("share_context")
    arithmetic = {dtypes.readout} if steady else {dtypes.readout, dtypes.states}
    # An arithmetic that is not in the table is one of a user's model: nothing finer than BF16 is known of it.
    return max(LAYOUT_MARGINS.get(name, LAYOUT_MARGINS["bfloat16"]) for name in arithmetic)
