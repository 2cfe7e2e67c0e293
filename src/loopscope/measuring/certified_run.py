"""`loopscope certify RUN`: computes the states of a run again and writes certificates beside it.

The certificates are a run of their own in the folder `certified` of the run: level quick, the same model, tasks,
updates and batches, and the table `certificates`. The run's own files stay as they are; the same call again resumes.
Weights, data and settings must be those of the run. Another device or library may round states otherwise: a
certificate is about the states that were computed for it, and says nothing about how they were.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.certificates import require_affine
from loopscope.measuring.continued import CIRCUMSTANCES
from loopscope.measuring.progress import Style
from loopscope.measuring.protocols import DEFAULT
from loopscope.measuring.replay import request_of
from loopscope.measuring.run import Notify, run_request
from loopscope.store.column_types import Level
from loopscope.store.manifest import Manifest
from loopscope.store.resume import differences
from loopscope.store.run import StoredRun

_CHOSEN = (
    *("level", "tokens", "paths", "depths", "batch"),
    *("settings.certify", "settings.trace", "settings.lens", "settings.scalar_checks"),
    *("settings.scales_to", "settings.renormalise", "settings.trajectories", "settings.keep_states"),
    "settings.interpolate",
    *("settings.continue_from", "settings.protocol"),
)
"""What the certificates' own run chooses for itself; its batches are those of the device that it runs on."""


def certify_run(
    run: StoredRun,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    device: str | None = None,
    model: str | None = None,
    progress_style: Style = "none",
    notify: Notify | None = None,
) -> Path:
    """Certify every update of a run, or go on where that stopped; returns the folder of the certificates.

    Args:
        run: the run.
        data_dir: where the benchmarks are; left out, where they were.
        device: where to measure; left out, where the run was measured.
        model: where the model is; left out, where it was.
        progress_style: "auto", "bar", "plain" or "none".
        notify: called with one line for whatever a user should know.

    Raises:
        LoopscopeError: there is nothing to certify, or the sources are not those of the run.
    """
    manifest = run.manifest
    if manifest.settings.get("certify"):
        raise LoopscopeError(f"{run.path} was measured with {setting('certify', True)}: it holds its certificates")
    if not manifest.transitions:
        raise LoopscopeError(f"{run.path} has no updates to certify: measure it with {setting('transitions')}")
    require_affine(
        manifest.model.name, "choose a run of a model that has an affine one", is_affine=manifest.model.affine_readout
    )
    request = request_of(run, data_dir, device, model)
    depths = sorted({depth for t in manifest.transitions for depth in (t, t + 1)})
    settings = dataclasses.replace(
        request.settings,
        depths=tuple(depths),
        level=Level.QUICK,
        tokens=False,
        paths=False,
        scalar_checks=0,
        certify=True,
        trace=False,
        lens=0,
        scales_to=None,
        renormalise=False,
        trajectories=(),
        keep_states=None,
        continue_from=None,
        protocol=DEFAULT,
    )

    def check(wanted: Manifest) -> None:
        for entry in differences(manifest, wanted):
            if not entry.field.startswith(_CHOSEN + CIRCUMSTANCES):
                raise LoopscopeError(f"not the sources of {run.path}: {entry}")

    return run_request(
        dataclasses.replace(request, settings=settings),
        str(run.layout.certified),
        progress_style=progress_style,
        notify=notify,
        check=check,
    )
