"""The Ray engine: one model replica a GPU or CPU worker, units as tasks, lost workers replaced.

Workers measure and hand their tables back; the driver alone writes, so a run directory needs no locking across
machines and its records are those of the local engine. A unit whose worker died is given to another one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from loopscope._errors import LoopscopeError
from loopscope.measure.engines import MeasuredUnit
from loopscope.measure.prepare import QuestionEncoder
from loopscope.measure.settings import LongPolicy, Settings
from loopscope.measure.worker import Tables, Worker
from loopscope.store.units import WorkUnit
from loopscope.tasks.example import Row
from loopscope.tasks.loaded import LoadedTask

if TYPE_CHECKING:
    from loopscope.measure.run import Pass

_ATTEMPTS = 4
"""How many workers may die over one unit before the run gives up on it."""


@dataclass(frozen=True)
class Replica:
    """What a worker needs to build its own model.

    Attributes:
        model: the specification.
        loading: arguments of `load_model`.
        tokenizer: where the tokenizer comes from.
        long: the length policy.
        settings: how to measure.
        threads: CPU threads, those of the driver, since the order of a sum depends on them.
    """

    model: str
    loading: dict[str, Any]
    tokenizer: str
    long: LongPolicy
    settings: Settings
    threads: int


class ReplicaWorker:
    """Runs inside a Ray worker: loads the model once, then measures the units it is given."""

    def __init__(self, replica: Replica) -> None:
        from loopscope.models.load import load_model
        from loopscope.models.tokenizer_source import load_tokenizer

        torch.set_num_threads(replica.threads)
        model = load_model(replica.model, **replica.loading)
        self._encoder = QuestionEncoder(
            load_tokenizer(replica.tokenizer), getattr(model, "max_positions", None), replica.long
        )
        self._notices: list[str] = []
        self._worker = Worker(model, replica.settings, self._notices.append)

    def measure(self, task: LoadedTask, rows: tuple[Row, ...], start: int) -> tuple[Tables, list[str]]:
        """The tables of rows that begin at `start` in the run's task, and what there is to say about them."""
        self._notices.clear()
        return self._worker.measure(self._encoder.questions(task, rows, start)), list(self._notices)


class RayEngine:
    """Units on a local Ray or an existing cluster."""

    def __init__(
        self,
        prepared: Pass,
        model: str,
        loading: dict[str, Any],
        tokenizer: str,
        long: LongPolicy,
        workers: int | None,
        address: str | None,
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise LoopscopeError("--engine ray needs Ray: pip install 'loopscope[ray]'") from error
        self._ray: Any = ray
        self._prepared = prepared
        self._started = not ray.is_initialized()
        if self._started:
            _connect(ray, address, workers)
        self._on_gpu = prepared.model.device.type == "cuda"
        self._count = workers or _default_workers(ray, on_gpu=self._on_gpu)
        self._replica = Replica(model, loading, tokenizer, long, prepared.settings, torch.get_num_threads())

    def run(self, units: Sequence[WorkUnit]) -> Iterator[MeasuredUnit]:
        """Each unit as a worker finishes it."""
        try:
            yield from self._run(deque((unit, 1) for unit in units))
        finally:
            if self._started:
                self._ray.shutdown()

    def _run(self, waiting: deque[tuple[WorkUnit, int]]) -> Iterator[MeasuredUnit]:
        ray = self._ray
        resources = {"num_gpus": 1} if self._on_gpu else {"num_cpus": 1}
        actor = ray.remote(**resources)(ReplicaWorker)
        idle = [actor.remote(self._replica) for _ in range(min(self._count, len(waiting)))]
        busy: dict[Any, tuple[Any, WorkUnit, int]] = {}
        while waiting or busy:
            while idle and waiting:
                unit, attempt = waiting.popleft()
                worker = idle.pop()
                busy[self._submit(worker, unit)] = (worker, unit, attempt)
            (done, *_), _ = ray.wait(list(busy), num_returns=1)
            worker, unit, attempt = busy.pop(done)
            try:
                tables, _ = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, LoopscopeError) else error from None
            except ray.exceptions.RayActorError as error:
                if attempt >= _ATTEMPTS:
                    raise LoopscopeError(
                        f"{attempt} workers died over {unit.task} rows {unit.start}-{unit.stop - 1}: look at Ray's logs"
                        " for the cause (often memory; try fewer --workers or a smaller --batch-size)"
                    ) from error
                waiting.appendleft((unit, attempt + 1))
                idle.append(actor.remote(self._replica))
                continue
            idle.append(worker)
            yield MeasuredUnit(unit, tables)

    def _submit(self, worker: Any, unit: WorkUnit) -> Any:
        planned = self._prepared.task_of(unit)
        return worker.measure.remote(planned.task.without_rows(), planned.rows[unit.start : unit.stop], unit.start)


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    try:
        if address is not None:
            ray.init(address=address, log_to_driver=False)
        else:
            ray.init(num_cpus=max(workers or 0, os.cpu_count() or 1), **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"the Ray cluster at {address}" if address else "a local Ray"
        raise LoopscopeError(f"cannot reach {where}: {str(error).splitlines()[0]}") from error


def _default_workers(ray: Any, *, on_gpu: bool) -> int:
    return max(1, int(ray.cluster_resources().get("GPU" if on_gpu else "CPU", 1)))
