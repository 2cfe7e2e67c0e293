"""Scores of lm-evaluation-harness at every depth of a run: stored log-likelihoods through its own filters and metrics.

What it cannot be given is left out: a run does not store whether the reference was the model's greedy choice, nor
options without their question, which `acc` of a `loglikelihood` task, `exact_match` and `acc_mutual_info` read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import polars as pl

from loopscope.errors import LoopscopeError, setting
from loopscope.store.manifest import TaskInfo
from loopscope.store.run import StoredRun
from loopscope.tasks.lm_eval_requests import PREFIX, build_requests, is_lm_eval, lm_eval_name
from loopscope.tasks.load import is_task_file
from loopscope.tasks.source_rows import Selection

_UNKNOWN = {"solution": {"acc"}, "options": {"exact_match", "acc_mutual_info"}}
"""Metrics that need what a run does not hold, by the kind of task."""


def lm_eval_scores(run: StoredRun, tasks: str | Sequence[str] = ()) -> pl.DataFrame:
    """Each metric of each `lm_eval:` task of a run, at each stored depth.

    Args:
        run: the run.
        tasks: its tasks in YAML files, `lm_eval:FILE`, which are followed only where they are named.

    Returns:
        A frame with the columns `task`, `depth`, `filter`, `metric`, `value`.

    Raises:
        LoopscopeError: the run has no such task, or its data is not there any more.
    """
    named = {lm_eval_name(spec): spec for spec in ([tasks] if isinstance(tasks, str) else tasks)}
    measured = [task for task in run.manifest.tasks if is_lm_eval(task.name)]
    if not measured:
        raise LoopscopeError(f"{run.path} has no task of lm-evaluation-harness: measure one, e.g. {PREFIX}arc_easy")
    for task in measured:
        if task.name not in named and is_task_file(task.name):
            raise LoopscopeError(f"{task.name} is a file, which is followed only where you name it: {setting('tasks')}")
    found = [row for task in measured for row in _scores(run, task, named.get(task.name, task.name))]
    return pl.DataFrame(found, schema=["task", "depth", "filter", "metric", "value"], orient="row")


def _scores(run: StoredRun, info: TaskInfo, spec: str) -> Iterator[tuple[str, int, str, str, float]]:
    examples = run.examples.filter(pl.col("task") == info.name).sort("row")
    rows = examples["source_row"].to_list()
    # No examples and no chat: a metric reads the document and the numbers.
    requests = build_requests(spec, Selection.make(ids=rows), 0, 0, None, forced=True)
    if requests.total != info.rows_available:
        raise LoopscopeError(
            f"{spec} has {requests.total} documents and had {info.rows_available} when {run.path} was measured"
        )
    task = requests.task
    for name in _UNKNOWN[info.kind] & set(task._metric_fn_list):
        del task._metric_fn_list[name]
    depths = run.depths.filter(pl.col("task") == info.name)
    for depth in sorted(depths["depth"].unique()):
        table = depths.filter(pl.col("depth") == depth).sort("row")
        if info.kind == "options":
            sums = table["option_logliks"].to_list()
        else:
            sums = [[value] for value in (table["utility"] * examples["n_tokens"]).to_list()]
        yield from ((info.name, depth, *score) for score in _of_depth(task, sums))


def _of_depth(task: Any, sums: list[list[float]]) -> Iterator[tuple[str, str, float]]:
    """Filter, metric and value, from the summed log-likelihoods of every document."""
    documents = [list(group) for _, group in groupby(task.instances, key=lambda instance: instance.doc_id)]
    for requests, logliks in zip(documents, sums, strict=True):
        for request, loglik in zip(requests, logliks, strict=False):
            request.resps, request.filtered_resps = [(loglik, False)], {}
    task._instances = [request for requests, logliks in zip(documents, sums, strict=True)
                       for request in requests[: len(logliks)]]  # fmt: skip
    task.apply_filters()
    values: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for requests, logliks in zip(documents, sums, strict=True):
        for name in requests[0].filtered_resps:
            results = [request.filtered_resps[name] for request in requests[: len(logliks)]]
            for metric, value in task.process_results(requests[0].doc, results).items():
                values[name, metric].append(value)
    aggregate = task.aggregation()
    for (name, metric), listed in values.items():
        yield name, metric, float(aggregate[metric](listed))
