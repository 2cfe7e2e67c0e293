"""The Ray engine: one model replica for each GPU or CPU worker, units as tasks, lost workers replaced.

Workers measure and return their tables; the driver alone writes, so a run directory needs no locking across
machines and its records are those of the local engine. The driver loads no weights: a worker tells it what it must
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
from types import ModuleType
from typing import Any

import torch

from loopscope.errors import LoopscopeError, answers_command_line, command_line_words, setting
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.loading import device_of, in_memory, model_spec
from loopscope.measuring.plan import ModelFacts, PlannedTask
from loopscope.measuring.ray_guard import RayGuard
from loopscope.measuring.worker import FindTask, GivenUnit, LocalEngine, MeasuredBatch, Step
from loopscope.models.identity import model_identity, own_modules
from loopscope.models.in_memory import is_factory
from loopscope.models.tokenizer import Tokenizer
from loopscope.store.manifest import WorkUnit

_SECONDS_TO_ANSWER = 10.0
_SECONDS_BETWEEN_CHECKS = 1.0
_ATTEMPTS = 4
"""How many workers may die over one unit before the run gives up on it."""


class ReplicaWorker:
    """Runs inside a Ray worker: loads the model once, then measures the units it is given."""

    def __init__(self, config: MeasureConfig, threads: int, for_command_line: bool) -> None:
        self._config, self._threads, self._for_command_line = config, threads, for_command_line

    @cached_property
    def _engine(self) -> LocalEngine:
        # Not when the worker is made: what fails there reaches the driver as a dead worker, not as its error.
        # Threads as many as the driver's: the order in which a product is summed depends on them.
        torch.set_num_threads(self._threads)
        return LocalEngine(self._config)

    def describe(self) -> tuple[ModelFacts, Tokenizer | None]:
        """What the driver must know of the model, and the tokenizer that comes with it or that the user gave."""
        with command_line_words(self._for_command_line):
            return self._engine.facts(), self._engine.tokenizer

    def measure(self, units: Sequence[GivenUnit], done: Mapping[WorkUnit, Set[int]]) -> Iterator[Step]:
        """Each unit in order, after its batches."""
        with command_line_words(self._for_command_line):
            for step in self._engine.measure(units, done):
                yield step._replace(begun=None) if isinstance(step, MeasuredBatch) else step


@dataclass
class _Job:
    unit: WorkUnit
    attempt: int = 1
    questions: int = 0
    positions: int = 0


class RayEngine:
    """Units on a local Ray or an existing cluster."""

    def __init__(self, config: MeasureConfig) -> None:
        try:
            import ray
        except ImportError as error:
            raise LoopscopeError(f"{setting('engine', 'ray')} needs Ray: pip install 'loopscope[ray]'") from error
        self._ray: Any = ray
        self._config = config
        self._idle: list[Any] = []
        self._travelling: list[ModuleType] = []
        self._guard: RayGuard | None = None
        self._started = not ray.is_initialized()
        try:
            self._make_portable()
            if self._started:
                self._guard = connect(ray, config.workers)
            self._servers = _servers(ray)
            self._count, needed = _placement(ray, device_of(config), config.workers)
        except BaseException:
            self.close()
            raise
        self._actor: Any = self._ray.remote(**needed)(ReplicaWorker)

    def facts(self) -> ModelFacts:
        """Those that the first worker reports."""
        return self._described[0]

    @property
    def tokenizer(self) -> Tokenizer | None:
        """That of a worker, where the model may have brought it."""
        return self._described[1]

    @cached_property
    def _described(self) -> tuple[ModelFacts, Tokenizer | None]:
        worker = self._hire()
        facts, tokenizer = self._get(worker.describe.remote())
        self._idle.append(worker)
        given = in_memory(self._config)
        if given is not None and not is_factory(given):
            # A copy that travelled has lost the source of its classes; the run is that of the object here.
            info = facts.info.model_copy(update={"weights": model_identity(given)})
            facts = dataclasses.replace(facts, info=info)
        return facts, tokenizer

    def run(self, units: Sequence[WorkUnit], find: FindTask, done: Mapping[WorkUnit, Set[int]]) -> Iterator[Step]:
        """Each unit as a worker finishes it, and its batches before it."""
        ray = self._ray
        waiting = deque(_Job(unit) for unit in units)
        self._idle += [self._hire() for _ in range(min(self._count, len(waiting)) - len(self._idle))]
        busy: dict[Any, tuple[Any, deque[_Job]]] = {}
        while waiting or busy:
            while self._idle and waiting:
                worker = self._idle.pop()
                # Half of a worker's part of what is left, so that all end together; everything, where it is alone.
                count = len(waiting) if self._count == 1 else max(1, len(waiting) // (2 * self._count))
                jobs = deque(waiting.popleft() for _ in range(count))
                measure = worker.measure.options(num_returns="streaming")
                busy[measure.remote([_given(job.unit, find(job.unit)) for job in jobs], done)] = (worker, jobs)
            steps = self._first(busy)
            worker, jobs = busy[steps]
            try:
                step: Step = self._get(next(steps))
            except ray.exceptions.RayActorError as error:
                del busy[steps]
                job = jobs.popleft()  # the others have not begun
                if job.attempt >= _ATTEMPTS:
                    raise LoopscopeError(
                        f"{job.attempt} workers died over {job.unit.task} rows {job.unit.start}-{job.unit.stop - 1}:"
                        f" Ray's logs say why (often memory: try fewer {setting('workers')} or a smaller"
                        f" {setting('batch_size')})"
                    ) from error
                yield MeasuredBatch(-job.questions, -job.positions)
                waiting.extendleft([*reversed(jobs), _Job(job.unit, job.attempt + 1)])
                self._idle.append(self._hire())
                continue
            if isinstance(step, MeasuredBatch):
                jobs[0].questions += step.questions
                jobs[0].positions += step.positions
                yield step
                continue
            job = jobs.popleft()
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
        for module in self._travelling:
            self._ray.cloudpickle.unregister_pickle_by_value(module)
        self._travelling.clear()
        if self._started:
            self._ray.shutdown()
        if self._guard is not None:
            self._guard.close()

    def _make_portable(self) -> None:
        """The modules of the user's own travel with a model in memory: a worker may not find them."""
        given, pickling, spec = in_memory(self._config), self._ray.cloudpickle, model_spec(self._config)
        if given is None:
            return
        remedy = f"give its maker by name, {setting('model', 'mine.py:build')}"
        device = device_of(self._config)
        if not is_factory(given) and torch.device(device).type != "cpu":
            raise LoopscopeError(f"{spec} is on {device}, which no worker has: {remedy}")
        known = pickling.list_registry_pickle_by_value()
        self._travelling = [module for module in own_modules(given) if module.__name__ not in known]
        for module in self._travelling:
            pickling.register_pickle_by_value(module)
        try:
            pickling.dumps(given)
        except Exception as error:  # whatever an object's own code raises
            reason = " ".join(str(error).split()) or type(error).__name__
            raise LoopscopeError(
                f"{spec} cannot be sent to {setting('engine', 'ray')}'s workers ({reason}): {remedy}"
            ) from error

    @cached_property
    def _sent(self) -> Any:
        """Once for all workers: a model in memory may be large. Rows go to a worker with each unit."""
        return self._ray.put(self._config.model_copy(update={"tasks": (), "sample": None}))

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


def _given(unit: WorkUnit, planned: PlannedTask) -> GivenUnit:
    """A unit with its rows in a form that travels: a read-only mapping does not."""
    rows = [dataclasses.replace(row, metadata=dict(row.metadata)) for row in planned.rows[unit.start : unit.stop]]
    return unit, planned.task, rows


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


def _placement(ray: Any, device: str, workers: int | None) -> tuple[int, dict[str, float]]:
    """How many replicas, and what each needs; "auto" takes GPUs where the cluster has some."""
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    if device.startswith("cuda") and not gpus:
        raise LoopscopeError(
            f"the Ray cluster has no GPU: use {setting('device', 'cpu')}, or add machines that have one"
        )
    if not gpus or not device.startswith(("cuda", "auto")):
        return workers or max(1, int(resources.get("CPU", 1))), {"num_cpus": 1}
    return workers or gpus, {"num_gpus": gpu_share(gpus, workers or gpus)}


def gpu_share(gpus: int, workers: int) -> float:
    """What part of a GPU each worker asks for: a whole one, or less where several share one.

    >>> gpu_share(8, 3), gpu_share(1, 2), gpu_share(8, 12)
    (1.0, 0.5, 0.5)
    """
    return 1.0 / max(1, -(-workers // gpus))
