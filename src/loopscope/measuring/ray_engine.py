"""The Ray engine: one model replica for each GPU or CPU worker, units as tasks, lost workers replaced.

Workers measure and return their tables; the driver alone writes, so a run directory needs no locking across
machines and its records are those of the local engine. The driver loads no weights: a worker reports what it must
know of the model. A worker is given several units at a time, which follow each other without a pause, and fewer of them
towards the end; units whose worker died are given to another one. While it waits, the driver asks every second
whether Ray is still there: Ray itself would wait for a minute, then end the process, or wait for ever.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from loopscope.errors import LoopscopeError, answers_command_line, command_line_words, setting
from loopscope.measuring.batching import Question
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.loading import ModelFacts, device_of, in_memory, model_spec
from loopscope.measuring.ray_guard import RayGuard
from loopscope.measuring.worker import GivenUnit, LocalEngine, MeasuredBatch, Step
from loopscope.models.in_memory import is_factory, model_identity, own_modules
from loopscope.models.tokenizer import Tokenizer
from loopscope.store.manifest import WorkUnit

_SECONDS_TO_ANSWER = 10.0
_SECONDS_BETWEEN_CHECKS = 1.0
_ATTEMPTS = 4
"""How many workers may die over one unit before the run gives up on it."""


class ReplicaWorker:
    """Runs inside a Ray worker: loads the model once, then measures the units it is given."""

    def __init__(self, config: MeasureConfig, threads: int, words: bool) -> None:
        self._config, self._threads, self._words = config, threads, words

    @cached_property
    def _engine(self) -> LocalEngine:
        # Not when the worker is made: what fails there reaches the driver as a dead worker, not as its error.
        # Threads as many as the driver's: the order in which a product is summed depends on them.
        torch.set_num_threads(self._threads)
        return LocalEngine(self._config)

    def describe(self) -> tuple[ModelFacts, Tokenizer | None]:
        """What the driver must know of the model, and the tokenizer that comes with it or that the user gave."""
        with command_line_words(self._words):
            return self._engine.facts, self._engine.tokenizer

    def measure(self, units: Sequence[GivenUnit], done: Mapping[WorkUnit, Set[int]]) -> Iterator[Step]:
        """Each unit in order, after its batches."""
        with command_line_words(self._words):
            for step in self._engine.run(units, done):
                yield step._replace(begun=None) if isinstance(step, MeasuredBatch) else step


@dataclass
class _Job:
    unit: WorkUnit
    questions: Sequence[Question]
    attempt: int = 1
    measured: int = 0
    positions: int = 0


class RayEngine:
    """Units on a local Ray or an existing cluster."""

    def __init__(self, config: MeasureConfig) -> None:
        try:
            import ray
        except ImportError as error:
            raise LoopscopeError(f"{setting('engine', 'ray')} needs Ray: pip install ray") from error
        self._ray: Any = ray
        self._config = config
        self._idle: list[Any] = []
        self._guard: RayGuard | None = None
        self._started = not ray.is_initialized()
        try:
            self._make_portable()
            if self._started:
                self._guard = connect(ray, config.workers)
            self._servers = _servers(ray)
            self._count, needed = _placement(self._ray.cluster_resources(), device_of(config), config.workers)
            # Once for all workers: a model in memory may be large. Questions go to a worker with each unit.
            self._sent = ray.put(config.model_copy(update={"tasks": (), "sample": None}))
            self._actor: Any = self._ray.remote(**needed)(ReplicaWorker)
            worker = self._hire()
            self.facts, self.tokenizer = self._get(worker.describe.remote())
        except BaseException:
            self.close()
            raise
        self._idle.append(worker)
        given = in_memory(config)
        if given is not None and not is_factory(given):
            # A copy that travelled has lost the source of its classes; the run is that of the object here.
            info = self.facts.info.model_copy(update={"weights": model_identity(given)})
            self.facts = dataclasses.replace(self.facts, info=info)

    def run(self, units: Iterable[GivenUnit], done: Mapping[WorkUnit, Set[int]]) -> Iterator[Step]:
        """Each unit as a worker finishes it, and its batches before it."""
        waiting = deque(_Job(unit, list(map(_portable, questions))) for unit, questions in units)
        self._idle += [self._hire() for _ in range(min(self._count, len(waiting)) - len(self._idle))]
        busy: dict[Any, tuple[Any, deque[_Job]]] = {}
        while waiting or busy:
            while self._idle and waiting:
                worker = self._idle.pop()
                # Half of a worker's part of what is left, so that all end together; everything, where it is alone.
                count = len(waiting) if self._count == 1 else max(1, len(waiting) // (2 * self._count))
                jobs = deque(waiting.popleft() for _ in range(count))
                measure = worker.measure.options(num_returns="streaming")
                busy[measure.remote([(job.unit, job.questions) for job in jobs], done)] = (worker, jobs)
            steps = self._first(busy)
            worker, jobs = busy[steps]
            job = jobs[0]
            try:
                step: Step = self._get(next(steps))
            except self._ray.exceptions.RayActorError as error:
                del busy[steps]
                if job.attempt >= _ATTEMPTS:
                    raise LoopscopeError(
                        f"{job.attempt} workers died over {job.unit.task} rows {job.unit.start}-{job.unit.stop - 1}:"
                        f" Ray's logs say why (often memory: try fewer {setting('workers')} or a smaller"
                        f" {setting('batch_size')})"
                    ) from error
                yield MeasuredBatch(-job.measured, -job.positions)
                jobs[0] = _Job(job.unit, job.questions, job.attempt + 1)  # the others have not begun
                waiting.extendleft(reversed(jobs))
                self._idle.append(self._hire())
                continue
            if isinstance(step, MeasuredBatch):
                job.measured += step.questions
                job.positions += step.positions
                yield step
                continue
            jobs.popleft()
            if not jobs:
                del busy[steps]
                self._idle.append(worker)
            lost = [f"unit {job.unit.name} measured again: its worker died"] if job.attempt > 1 else []
            yield dataclasses.replace(step, notices=[*lost, *step.notices])

    def close(self) -> None:
        """End the workers, and Ray itself where this engine started it."""
        for worker in self._idle:
            self._ray.kill(worker)
        self._idle.clear()
        if self._started:
            self._ray.shutdown()
        if self._guard is not None:
            self._guard.close()

    def _make_portable(self) -> None:
        """The user's modules travel with a model in memory: a worker may not find them."""
        given, pickling, device = in_memory(self._config), self._ray.cloudpickle, device_of(self._config)
        if given is None:
            return
        try:
            if not is_factory(given) and torch.device(device).type != "cpu":
                raise ValueError(f"it is on {device}, which no worker has")
            for module in own_modules(given):
                pickling.register_pickle_by_value(module)
            pickling.dumps(given)
        except Exception as error:  # whatever an object's own code raises
            reason = " ".join(str(error).split()) or type(error).__name__
            raise LoopscopeError(
                f"{model_spec(self._config)} cannot be sent to {setting('engine', 'ray')}'s workers ({reason}): give"
                f" its maker by name, {setting('model', 'mine.py:build')}"
            ) from error

    def _hire(self) -> Any:
        self._require_alive()
        return self._actor.remote(self._sent, torch.get_num_threads(), answers_command_line())

    def _first(self, awaited: Iterable[Any]) -> Any:
        """Whichever is ready first; Ray is asked every second whether it is still there."""
        while True:
            ready, _ = self._ray.wait(list(awaited), num_returns=1, timeout=_SECONDS_BETWEEN_CHECKS)
            if ready:
                return ready[0]
            self._require_alive()

    def _require_alive(self) -> None:
        for host, port in self._servers:
            try:
                socket.create_connection((host, port), timeout=_SECONDS_TO_ANSWER).close()
            except OSError as error:
                self._idle.clear()  # nobody is there to end them
                raise LoopscopeError(
                    f"Ray has ended ({host}:{port} does not answer: {error.strerror or error}): what is stored stays,"
                    " and the same command continues when Ray is back"
                ) from None

    def _get(self, reference: Any) -> Any:
        """A result; what was a user's mistake over there is one here, too."""
        try:
            return self._ray.get(self._first([reference]))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, LoopscopeError) else error from None


def _portable(question: Question) -> Question:
    """The same in a form that travels: a read-only mapping does not."""
    metadata = dict(question.text.metadata)
    text = dataclasses.replace(question.text, metadata=metadata)
    return dataclasses.replace(question, text=text, example=dataclasses.replace(question.example, metadata=metadata))


def connect(ray: Any, workers: int | None) -> RayGuard | None:
    """Join the cluster at `RAY_ADDRESS`; without it, start a guarded Ray on this machine."""
    address = os.environ.get("RAY_ADDRESS")
    handler = signal.getsignal(signal.SIGTERM)

    def start() -> str:
        cores = max(workers or 0, os.cpu_count() or 1)
        started = ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False)
        return os.path.realpath(str(started.address_info["session_dir"]))

    try:
        if not address:
            return RayGuard(start)
        host, colon, port = address.rpartition(":")
        if colon and port.isdecimal() and "/" not in host:
            # Ray answers an address where nobody listens by ending the process.
            socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()
        ray.init(address=address, log_to_driver=False)
        return None
    except Exception as error:  # Ray raises plain ones, too
        where = f"the Ray cluster at {address}" if address else "a local Ray"
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise LoopscopeError(f"cannot reach {where} ({reason}): is it running? see `ray status`") from error
    finally:
        # Ray answers SIGTERM by ending the process at once: put back what the process does itself.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _servers(ray: Any) -> list[tuple[str, int]]:
    """Where Ray's control service and this machine's scheduler listen; through Ray's client neither can be asked."""
    if ray.util.client.ray.is_connected():
        return []
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    own = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    return [(host, int(port)), (own["NodeManagerAddress"], int(own["NodeManagerPort"]))]


def _placement(resources: Mapping[str, float], device: str, workers: int | None) -> tuple[int, dict[str, float]]:
    """How many replicas, and what each needs; "auto" takes GPUs where the cluster has some, shared by more replicas.

    >>> _placement({"GPU": 8, "CPU": 64}, "auto", 12), _placement({"CPU": 4}, "auto", None)
    ((12, {'num_gpus': 0.5}), (4, {'num_cpus': 1}))
    """
    gpus = int(resources.get("GPU", 0))
    if device.startswith("cuda") and not gpus:
        raise LoopscopeError(
            f"the Ray cluster has no GPU: use {setting('device', 'cpu')}, or add machines that have one"
        )
    if not gpus or not device.startswith(("cuda", "auto")):
        return workers or max(1, int(resources.get("CPU", 1))), {"num_cpus": 1}
    return workers or gpus, {"num_gpus": 1.0 / -(-(workers or gpus) // gpus)}
