"""What a user calls: `measure` a model on tasks; a `Run` has the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Unpack, overload

from loopscope.errors import LoopscopeError, choice, setting, text, whole
from loopscope.measuring.checkpoints import Checkpoint, checkpoints
from loopscope.measuring.estimate import SECONDS, CostEstimate, estimate, together
from loopscope.measuring.given_values import MOST_WORKERS, Numbers
from loopscope.measuring.measure_call import MeasureSettings, Tasks, Text, request_of, requests_of
from loopscope.measuring.plan import Request
from loopscope.measuring.progress import STYLES, Style
from loopscope.measuring.protocols import DEFAULT
from loopscope.measuring.run import Notify, run_request
from loopscope.measuring.settings import LongPolicy
from loopscope.models.in_memory import ModelSpec, borrowed
from loopscope.run import Run
from loopscope.store.run import is_run
from loopscope.store.schema import Level
from loopscope.tasks.prompting import FEWSHOT_SEED

if TYPE_CHECKING:
    import torch

ENGINES = ("local", "ray")


@overload
def measure(  # type: ignore[overload-overlap]  # text is a sequence of texts, too: here it is one name
    model: ModelSpec, tasks: Tasks, *, output: Text, **settings: Unpack[MeasureSettings]
) -> Run: ...
@overload
def measure(model: Sequence[Text], tasks: Tasks, *, output: Text, **settings: Unpack[MeasureSettings]) -> list[Run]: ...
def measure(
    model: ModelSpec | Sequence[Text],
    tasks: Tasks,
    *,
    output: Text,
    model_args: Mapping[str, Any] | str | None = None,
    transitions: Numbers = (),
    depths: Numbers = (),
    level: Level | str = Level.GRID,
    tokens: bool = False,
    paths: bool = False,
    certify: bool = False,
    trace: bool = False,
    lens: int | None = None,
    scales_to: float | None = None,
    every_scale: bool = False,
    limit: int | str | Mapping[str, int] | None = None,
    ids: Numbers | Mapping[str, Numbers] | None = None,
    protocol: str = DEFAULT,
    initial_state: str | None = None,
    initial_seed: int | None = None,
    template: Text | None = None,
    data_dir: Text | None = None,
    num_fewshot: int | None = None,
    fewshot_split: Text | None = None,
    fewshot_seed: int = FEWSHOT_SEED,
    apply_chat_template: bool = False,
    batch_size: str | int | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    readout_dtype: str | torch.dtype | None = None,
    long: LongPolicy = "error",
    share_context: bool = False,
    unit_size: int = 64,
    scalar_checks: int = 16,
    exit_threshold: float | None = None,
    random_weights: bool = False,
    seed: int = 0,
    tokenizer: Any = None,
    revision: str | Sequence[str] | None = None,
    training_step: int | str | Sequence[int] | None = None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    progress_style: Style = "auto",
    command_line: Sequence[str] = (),
    notify: Notify | None = None,
) -> Run | list[Run]:
    """Measure tasks with a looped model and return the finished run; the same call resumes an interrupted one.

    Args:
        model: a specification of `load_model`, such as "toy-ouro", "ByteDance/Ouro-1.4B" or "mine.py:build"; a model
            in memory (a `LoopedModule`, or what `wrap` or `loop_layers` made); or a function that makes one. A list of
            specifications or a pattern of folders, "runs/ckpt/step-*", measures each and returns the list of runs, as
            several revisions do. For a type checker put a pattern into a list.
        tasks: specifications of `load_task`, such as "gsm8k:test" or "mine=data/my.jsonl", tasks made with `Task`, data
            sets of Hugging Face: one, or a list of them.
        output: the run directory; of several models, the folder of their run directories.
        model_args: what a function that makes the model is called with, as a mapping or as "ckpt=step900,cores=2".
        transitions: each t of an update t → t+1 to analyse: a number, a list, or text such as "1-4,8".
        depths: depths at which the utility is stored, besides both ends of every transition.
        level: "quick", "grid" or "full"; see `loopscope.store.Level`.
        tokens: store a row for every reference token.
        paths: store the nodes of the FP64 analysis.
        certify: enclose U, A, Q, ΔU, gains and bounds of every update, so that no rounding can overturn a verdict;
            affine readouts only, and about the readout of the states as they are.
        trace: store a row for every reference position after every loop from 1 to the deepest: what a policy may see.
        lens: with it, store the so many likeliest tokens in these rows and the rank of the reference; implies `trace`.
        scales_to: measure steps longer than the proposed one, at scales up to this, such as 2.
        every_scale: evaluate φ through a nonlinear readout at every scale of the grid; by default it is interpolated
            between the five scales of its derivatives where that is as good. An affine readout tells all at once.
        limit: the most rows of each task, or of some tasks by name.
        ids: these source rows of each task only, or of some tasks by name.
        protocol: "loopscope", or "paper": whatever is left out here is as in the paper (`measuring.protocols`).
        initial_state: how H_0 is drawn where a model draws it: "question", "paper" or "official".
        initial_seed: what H_0 is drawn from, where a model draws it: this plus the question's source row.
        template: a template file instead of the tasks' own.
        data_dir: folder with local copies of the benchmarks.
        num_fewshot: examples before each question; None is none, or what a task of lm-evaluation-harness says.
        fewshot_split: the split, or the data file, that examples come from: by default the train rows.
        fewshot_seed: what examples are drawn from.
        apply_chat_template: ask the questions as a conversation, in the tokenizer's own chat template.
        batch_size: questions in a batch, "auto" (a budget of tokens, halved when memory runs out) or "paper"; None is
            what the protocol says, by default "auto".
        device: "cpu", "cuda", "auto"; a model in memory stays where it is unless told.
        dtype: dtype of weights and states; None is what the protocol says, by default what `load_model` takes.
        readout_dtype: arithmetic of the readout, "float32" or "float64"; None is what the protocol says, "float32".
        long: what to do with sequences longer than the model allows.
        share_context: run what the options of a question have in common once, instead of once per option.
        unit_size: questions measured and stored at a time.
        scalar_checks: questions of each task on which Q is computed a second way.
        exit_threshold: the exit gate's threshold; None takes the checkpoint's.
        random_weights: build the model without its checkpoint; the run is marked as random.
        seed: what random weights are drawn from.
        tokenizer: instead of the model's own: a tokenizer of transformers, SentencePiece or tokenizers, its file, or
            the folder or name of another checkpoint.
        revision: a revision of a hub model; several, as a list or with commas, are measured each.
        training_step: at which step of its training the model was saved, one for each of several; None takes it from
            names such as step-1000, checkpoint-1000 or global_step1000.
        engine: "local" or "ray".
        workers: model replicas of the Ray engine.
        address: address of an existing Ray cluster.
        progress_style: "bar", "plain" (a line every ten seconds) or "none"; "auto" is one line that is rewritten in a
            notebook, a bar on a terminal, and plain elsewhere.
        command_line: recorded in the manifest.
        notify: called with one line for whatever a user should know: resumed, finished already, mended, halved.

    Raises:
        LoopscopeError: one line for whatever is wrong; what was measured before stays.
    """
    call = SimpleNamespace(**locals())
    choice("progress_style", progress_style, STYLES)
    if notify is not None and not callable(notify):
        raise LoopscopeError(f"{setting('notify', notify)} cannot be called: give a function that takes one line")
    if choice("engine", engine, ENGINES) == "local":
        for name, value in (("workers", workers), ("address", address)):
            if value is not None:
                raise LoopscopeError(
                    f"{setting(name, value)} is for {setting('engine', 'ray')}: add that or leave it out"
                )
    if workers is not None:
        call.workers = whole("workers", workers, 1, MOST_WORKERS)
    found = checkpoints(model, revision, training_step)
    if found is None:
        return _measured(call, request_of(call), text("output", output))
    return _measured_each(call, found, Path(text("output", output)))


def _measured(call: SimpleNamespace, request: Request, directory: str) -> Run:
    rest = (call.engine, call.workers, call.address, call.progress_style, call.command_line, call.notify)
    with borrowed(request.model.given):
        return Run(run_request(request, directory, *rest))


def _measured_each(call: SimpleNamespace, found: Sequence[Checkpoint], folder: Path) -> list[Run]:
    """Several models one after the other, each into a directory of its own."""
    if is_run(folder):
        raise LoopscopeError(
            f"{folder} is a run directory, and {len(found)} models need a folder of runs: choose another"
            f" {setting('output')}"
        )
    runs = []
    for number, (each, request) in enumerate(zip(found, requests_of(call, found), strict=True), 1):
        if call.notify is not None:
            call.notify(f"model {number} of {len(found)}: {each.spec}")
        try:
            runs.append(_measured(call, request, str(folder / each.name)))
        except LoopscopeError as error:
            raise LoopscopeError(f"{each.name} ({number} of {len(found)}): {error}") from error
    return runs


def plan(
    model: ModelSpec | Sequence[Text],
    tasks: Tasks,
    *,
    output: Text = "",
    seconds: float = SECONDS,
    **settings: Unpack[MeasureSettings],
) -> CostEstimate:
    """What `measure` with the same arguments would take on this machine: tokens, time, memory, disk.

    The model is loaded and some batches are timed; nothing is written. Of several models it is the sum.

    Args:
        model: as in `measure`.
        tasks: as in `measure`.
        output: as in `measure`, to which nothing is written.
        seconds: how long batches are timed, of all models together.
        settings: as in `measure`; those that change no batch (engine, progress_style) may be left out.

    Raises:
        LoopscopeError: one line for whatever `measure` would refuse.
    """
    if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise LoopscopeError(f"{setting('seconds', seconds)} is not a time: give a number of seconds above 0")
    bound = signature(measure).bind(model, tasks, output=output, **settings)
    bound.apply_defaults()
    call = SimpleNamespace(**bound.arguments)
    found = checkpoints(call.model, call.revision, call.training_step)
    if found is not None:
        requests = requests_of(call, found)
        return together([estimate(request, seconds / len(requests)) for request in requests])
    request = request_of(call)
    with borrowed(request.model.given):
        return estimate(request, seconds)
