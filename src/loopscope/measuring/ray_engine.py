"""The Ray engine: one model replica for each GPU or CPU worker, units as tasks, lost workers replaced.

Workers measure and return their tables; the driver alone writes, so a run directory needs no locking across
machines and its records are those of the local engine. The driver loads no weights: a worker reports what it must
know of the model. A worker's units follow each other without a pause; when it dies, another one goes on with those that
are left. While it waits, the driver asks every second whether Ray is still there: Ray itself would wait for a minute,
then end the process, or wait for ever.
"""

from __future__ import annotations

import copyreg
import dataclasses
import os
import signal
import socket
import subprocess
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch

from loopscope.errors import LoopscopeError, described, setting
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.ray_guard import start_guard
from loopscope.measuring.worker import GivenUnit, LocalEngine, Measured, MeasuredBatch, ModelFacts, Step
from loopscope.models.in_memory import is_factory, model_identity, own_modules
from loopscope.models.tokenizer import Tokenizer
from loopscope.store.manifest import WorkUnit

_SECONDS_TO_ANSWER, _ATTEMPTS = 10.0, 4
"""How long Ray may take to answer; how many workers may die over one unit before the run gives up on it."""


# Read-only mappings, as questions hold them, travel as plain ones.
copyreg.pickle(MappingProxyType, lambda given: (MappingProxyType, (dict(given),)))


class ReplicaWorker:
    """Runs inside a Ray worker: loads the model once, then measures the units it is given."""

    def __init__(self, config: MeasureConfig, threads: int) -> None:
        self._config = config
        # As many as the driver's: the order in which a product is summed depends on them.
        torch.set_num_threads(threads)

    @cached_property
    def _engine(self) -> LocalEngine:
        # Not when the worker is made: what fails there reaches the driver as a dead worker, not as its error.
        return LocalEngine(self._config)

    def describe(self) -> tuple[ModelFacts, Tokenizer | None]:
        """What the driver must know of the model, and the tokenizer that comes with it or that the user gave."""
        return self._engine.facts, self._engine.tokenizer

    def measure(self, units: Sequence[GivenUnit], done: Mapping[WorkUnit, Set[int]]) -> Iterator[Measured[WorkUnit]]:
        """Each unit in order."""
        yield from (step for step in self._engine.run(units, done) if isinstance(step, Measured))


class RayEngine:
    """Units on a local Ray or an existing cluster."""

    def __init__(self, config: MeasureConfig) -> None:
        try:
            import ray
        except ImportError as error:
            raise LoopscopeError(
                f"{setting('engine', 'ray')} needs Ray: pip install '.[ray]' in loopscope's folder"
            ) from error
        self._ray: Any = ray
        self._guard: subprocess.Popen[bytes] | None = None
        self._started = not ray.is_initialized()
        try:
            if not isinstance(config.model, str):
                self._make_portable(config)
            if self._started:
                self._guard = connect(ray, config.workers)
            self._servers = _servers(ray)
            self._count, needed = _placement(self._ray.cluster_resources(), config.device, config.workers)
            # Once for all workers: a model in memory may be large. Questions go to a worker with its units.
            sent = ray.put(config.model_copy(update={"tasks": (), "sample": None}))
            self._hire = partial(self._ray.remote(**needed)(ReplicaWorker).remote, sent, torch.get_num_threads())
            self._first_worker = self._hire()
            self.facts, self.tokenizer = self._get(self._first_worker.describe.remote())
        except BaseException:
            self.close()
            raise
        if not isinstance(config.model, str) and not is_factory(config.model):
            # A copy that travelled has lost the source of its classes; the run is that of the object here.
            info = self.facts.info.model_copy(update={"weights": model_identity(config.model)})
            self.facts = dataclasses.replace(self.facts, info=info)

    def run(self, units: Sequence[GivenUnit], done: Mapping[WorkUnit, Set[int]]) -> Iterator[Step]:
        """Each unit as a worker finishes it, counted just before; units go to the workers in turn."""
        count, deaths = min(self._count, len(units)), Counter[str]()
        busy: dict[Any, tuple[Any, deque[GivenUnit]]] = {}

        def start(worker: Any, share: deque[GivenUnit]) -> None:
            steps = worker.measure.options(num_returns="streaming").remote(list(share), done)
            busy[steps] = worker, share  # a worker of which nobody knows any more is ended

        for place in range(count):
            start(self._hire() if place else self._first_worker, deque(units[place::count]))
        while busy:
            steps = self._first(busy)
            worker, share = busy.pop(steps)
            unit, questions = share[0]
            try:
                measured: Measured[WorkUnit] = self._get(next(steps))
            except self._ray.exceptions.RayActorError as error:
                deaths[unit.name] += 1
                if deaths[unit.name] >= _ATTEMPTS:
                    raise LoopscopeError(
                        f"{_ATTEMPTS} workers died over {unit.task} rows {unit.start}-{unit.stop - 1}: Ray's logs say"
                        f" why (often memory: try fewer {setting('workers')} or a smaller {setting('batch_size')})"
                    ) from error
                start(self._hire(), share)
                continue
            share.popleft()
            if share:
                busy[steps] = worker, share
            new = [question for question in questions if question.row not in done.get(unit, ())]
            yield MeasuredBatch(len(new), sum(question.positions for question in new))
            lost = [f"unit {unit.name} measured again: its worker died"] if deaths[unit.name] else []
            yield dataclasses.replace(measured, notices=[*lost, *measured.notices])

    def close(self) -> None:
        """End Ray where this engine started it; elsewhere the workers end when nobody knows of them any more."""
        if self._started:
            self._ray.shutdown()
        if self._guard is not None:
            self._guard.communicate()  # it ends what is left

    def _make_portable(self, config: MeasureConfig) -> None:
        """The user's modules travel with a model in memory: a worker may not find them."""
        try:
            for module in own_modules(config.model):
                self._ray.cloudpickle.register_pickle_by_value(module)
            self._ray.cloudpickle.dumps(config.model)
        except Exception as error:  # whatever an object's own code raises
            raise LoopscopeError(
                f"{config.model_spec} cannot be sent to {setting('engine', 'ray')}'s workers ({described(error)}):"
                f" give its maker by name, {setting('model', 'mine.py:build')}"
            ) from error

    def _first(self, awaited: Iterable[Any]) -> Any:
        """Whichever is ready first; Ray is asked every second whether it is still there."""
        ready: list[Any] = []
        while not ready:
            for host, port in self._servers:
                try:
                    socket.create_connection((host, port), timeout=_SECONDS_TO_ANSWER).close()
                except OSError as error:
                    raise LoopscopeError(
                        f"Ray has ended ({host}:{port} does not answer: {error.strerror or error}): what is stored"
                        " stays, and the same command continues when Ray is back"
                    ) from None
            ready, _ = self._ray.wait(list(awaited), num_returns=1, timeout=1.0)
        return ready[0]

    def _get(self, reference: Any) -> Any:
        """A result; what was a user's mistake over there is one here, too."""
        try:
            return self._ray.get(self._first([reference]))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, LoopscopeError) else error from None


def connect(ray: Any, workers: int | None) -> subprocess.Popen[bytes] | None:
    """Join the cluster at `RAY_ADDRESS`; without it, start a Ray on this machine, and return its guard."""
    address, guard = os.environ.get("RAY_ADDRESS"), None
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            host, colon, port = address.rpartition(":")
            if colon and port.isdecimal() and "/" not in host:
                # Ray answers an address where nobody listens by ending the process.
                socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()
            ray.init(address=address, log_to_driver=False)
        else:
            folder, guard = start_guard()
            cores = max(workers or 0, os.cpu_count() or 1)
            ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        return guard
    except Exception as error:  # Ray raises plain ones, too
        if guard is not None:
            guard.communicate()
        where = f"the Ray cluster at {address}" if address else "a local Ray"
        reason, *_ = str(error).splitlines() or ["no reason given"]
        raise LoopscopeError(f"cannot reach {where} ({reason}): is it running? see `ray status`") from error
    finally:
        with suppress(ValueError, TypeError):  # another thread than the main one, or a handler that is not Python's
            # Ray answers SIGTERM by ending the process at once: put back what the process does itself.
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
        raise LoopscopeError(f"the Ray cluster has no GPU: choose {setting('device', 'cpu')}, or add machines with one")
    if not gpus or not device.startswith(("cuda", "auto")):
        return workers or max(1, int(resources.get("CPU", 1))), {"num_cpus": 1}
    return workers or gpus, {"num_gpus": 1.0 / -(-(workers or gpus) // gpus)}
