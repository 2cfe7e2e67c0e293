"""The manifest of a run in words, and what must be said at the top of the page."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loopscope.store import Manifest, StoredRun
from loopscope.store.schema import update_name
from loopscope.store.verification import public_manifest
from loopscope.studies.conditions import Weights, conditions_of, run_labels

LEVELS = {
    "quick": "quick: utilities at both ends, slope, curvature and gain",
    "grid": "grid: also 21 scales along every update and the diagnostics of state and output",
    "full": "full: also the FP64 analysis of every path with its bounds",
}

TENSORS = "tensors"
"""The entry of `ModelInfo.weights` that stands for the weights of a model that was read from no file."""


def warnings_of(runs: Sequence[StoredRun]) -> list[str]:
    """What a reader must not overlook: weights that were never trained, toy models, unfinished runs."""
    models = dict.fromkeys((run.manifest.model.name, conditions_of(run)[0].weights) for run in runs)
    random, toys = ([name for name, weights in models if weights is kind] for kind in (Weights.RANDOM, Weights.TOY))
    found = [f"{name} has random weights. Its numbers describe no trained model." for name in random]
    if toys:
        s = "s" * (len(toys) > 1)
        found.append(f"Small model{s} shipped with loopscope, here to show the method: {', '.join(toys)}.")
    for run, label in zip(runs, run_labels(runs), strict=True):
        if not run.finished:
            total = sum(task.rows for task in run.manifest.tasks)
            found.append(
                f"{label} is unfinished: {run.examples.height} of {total} questions are measured so far, and this page "
                "is about these. For what is measured since, write the page again."
            )
    return found


def provenance(run: StoredRun, with_command: bool = False) -> list[dict[str, Any]]:
    """Term and text, in the order in which a careful reader would ask.

    Args:
        run: the run.
        with_command: name the command line, folders and arguments of the model, too.
    """
    entries = [*_entries(run.manifest if with_command else public_manifest(run.manifest))]
    if with_command:
        typed = (event["command_line"] for event in run.events if event.get("command_line"))
        entries.append(("Command", shlex.join(map(str, next(typed, ())))))
    entries.append(("Manifest", f"SHA-256 {run.manifest.digest}"))
    return [{"term": term, "text": text} for term, text in entries if text]


def _entries(manifest: Manifest) -> Iterator[tuple[str, str]]:
    model, dtypes, batch = manifest.model, manifest.dtypes, manifest.batch
    spec = f", given as {model.spec}" if model.spec != model.name else ""
    yield "Model", f"{model.name}, of the {model.family} family{spec}"
    yield "Weights", _weights(manifest)
    yield "State", f"taken at {model.boundary}"
    concave = "logits are affine in the state, so paths are concave for solutions and bounds are available"
    general = "logits are a nonlinear function of the state, so there are no curvature bounds"
    yield "Readout", concave if model.affine_readout else general
    yield "Trained depth", f"{model.trained_depth} loops" if model.trained_depth is not None else ""
    for task in manifest.tasks:
        part = f"{task.rows} of {task.rows_available}" if task.rows < task.rows_available else f"all {task.rows}"
        what = "options" if task.kind == "options" else "reference solutions"
        skipped = f"; {len(task.skipped)} left out for their length" if task.skipped else ""
        subset = f", subset {task.subset}" if task.subset else ""
        yield f"Task {task.name}", f"{task.split} split{subset}: {part} questions with {what}{skipped}"
        revision = f" at revision {task.data_revision}" if task.data_revision else ""
        yield f"Data of {task.name}", f"SHA-256 {task.data_sha256}{revision}"
    yield "Updates", ", ".join(map(update_name, manifest.transitions)) or "none"
    yield "Depths", ", ".join(map(str, manifest.depths))
    yield "Level", LEVELS[manifest.level.value]
    extras = [name for name, kept in (("every token", manifest.tokens), ("whole FP64 paths", manifest.paths)) if kept]
    yield "Also stored", " and ".join(extras)
    yield (
        "Arithmetic",
        f"states in {dtypes.states}, readout in {dtypes.readout}, option scores in {dtypes.options}, "
        f"path analysis in {dtypes.analysis}, rounded interventions in {dtypes.interventions}",
    )
    yield "Certificates", _certificates(manifest)
    size = f", {batch.size} examples" if batch.size else ""
    size = size or (f", {batch.token_budget} padded tokens" if batch.token_budget else "")
    yield "Batches", f"{batch.policy}{size}, padded on the {batch.padding}"
    yield "Device", manifest.device
    yield "Libraries", _listed(manifest.libraries)
    yield "Seeds", _listed(manifest.seeds)
    yield "Settings", _listed(manifest.settings)
    yield "Measured by", f"loopscope {manifest.loopscope_version}, code SHA-256 {manifest.code_sha256}"


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _certificates(manifest: Manifest) -> str:
    if manifest.settings.get("certify"):
        return "of every update, about the readout of the stored states; marked ✓ where they decide the outcome"
    return "not measured; `measure --certify` adds them" if manifest.model.affine_readout else "none: not affine"


def _weights(manifest: Manifest) -> str:
    model = manifest.model
    if model.random_weights:
        return "none were read: they are random"
    if not model.weights:
        return f"not recorded: the model was built in Python and no weight file was read; used as {model.dtype}"
    hashed = ", ".join(f"{name} (SHA-256 {digest})" for name, digest in model.weights.items())
    if TENSORS in model.weights:
        return f"of a model built in Python: {hashed}; used as {model.dtype}"
    revision = f"revision {model.revision}; " if model.revision else ""
    return f"{revision}{hashed}; read as {model.dtype}"
