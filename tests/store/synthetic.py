"""A made-up measurement: a pure function of (manifest, unit), for this process and for the ones that are killed."""

import hashlib
from typing import Any

import numpy as np

from loopscope.path import CURVATURE_SCALES, GRID, PATH_NODES, classify
from loopscope.store import Manifest, TaskInfo
from loopscope.store.manifest import BatchInfo, Dtypes, ModelInfo, WorkUnit, ids_sha256


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def example_id(task: str, row: int) -> str:
    return f"{task}-{row * 3:05d}"


def task_info(name: str, kind: str, rows: int, **changes: Any) -> TaskInfo:
    return TaskInfo(
        **{
            "name": name,
            "split": "test",
            "kind": kind,
            "rows": rows,
            "rows_available": rows * 3,
            "limit": rows,
            "ids_sha256": ids_sha256(example_id(name, row) for row in range(rows)),
            "data_sha256": digest(name),
            "template_sha256": digest(name + "template"),
            **changes,
        }
    )


def make_manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "loopscope_version": "0.1.0",
        "code_sha256": digest("code"),
        "model": ModelInfo(
            spec="some/looped-model",
            name="looped-model",
            family="ouro",
            revision="abc123",
            weights={"model.safetensors": digest("weights")},
            dtype="float32",
            affine_readout=True,
            boundary="after the final norm",
            trained_depth=4,
        ),
        "tokenizer_sha256": digest("tokenizer"),
        "tasks": (task_info("sums", "solution", 7), task_info("choices", "options", 5)),
        "transitions": (1, 4),
        "depths": (1, 2, 3, 4, 5),
        "level": "full",
        "tokens": True,
        "paths": True,
        "dtypes": Dtypes(states="float32", readout="float32"),
        "device": "cpu",
        "libraries": {"torch": "2.13.0"},
        "seeds": {"initial_state": 20260904},
        "batch": BatchInfo(policy="paper", size=2),
        "unit_size": 3,
        "settings": {"length_policy": "refuse"},
    }
    return Manifest(**{**fields, **changes})


def make_tables(manifest: Manifest, unit: WorkUnit) -> dict[str, Any]:
    options = manifest.task(unit.task, unit.split).kind == "options"
    tables: dict[str, list[dict[str, Any]]] = {table.name: [] for table in manifest.tables()}
    for row in range(unit.start, unit.stop):
        rng = np.random.default_rng([row, *unit.task.encode()])
        counts = rng.integers(1, 5, size=3 if options else 1).tolist()
        identity = {"row": row, "example_id": example_id(unit.task, row)}
        source = {**identity, "source_row": row * 3}
        tables["examples"].append(
            {
                **source,
                "n_tokens": sum(counts),
                "correct_option": row % 3 if options else None,
                "prompt": f"What is {row} + {row}? ∑ </script>\n",
                "reference": None if options else f"It is {2 * row}.",
                "options": ["a", "b", "c"] if options else None,
                "metadata": None if row % 2 else '{"level": 2}',
            }
        )
        utility = dict(zip(manifest.depths, rng.normal(-1, 1, len(manifest.depths)).tolist(), strict=True))
        for depth in manifest.depths:
            scores = rng.normal(size=3) if options else None
            tables["depths"].append(
                {
                    **identity,
                    "depth": depth,
                    "utility": utility[depth],
                    "option_scores": scores,
                    "option_logliks": None if scores is None else scores * 2,
                    "chosen_option": None if scores is None else int(np.argmax(scores)),
                }
            )
        for transition in manifest.transitions:
            update = {**source, "transition": transition, "utility_before": utility[transition]}
            update |= {"utility_after": utility[transition + 1], "gain": utility[transition + 1] - utility[transition]}
            update |= fill(manifest, "questions", rng, skip=set(update))
            update["outcome"] = int(classify(update["slope"], update["gain"]))
            tables["questions"].append(update)
            if manifest.paths:
                key = {"row": row, "transition": transition}
                tables["paths"].append({**key, **fill(manifest, "paths", rng, skip=set(key))})
            for option, count in enumerate(counts if manifest.tokens else []):
                for token in range(count):
                    key = {"row": row, "transition": transition, "option": option, "token": token, "position": 9}
                    values = fill(manifest, "tokens", rng, skip=set(key))
                    values["outcome"] = int(classify(values["slope"], values["gain"]))
                    tables["tokens"].append({**key, **values})
    return {name: columns_of(rows) for name, rows in tables.items()}


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


def fill(manifest: Manifest, name: str, rng: np.random.Generator, skip: set[str]) -> dict[str, Any]:
    """A value for every other column that the level fills; some of the nullable ones stay null."""
    table = next(table for table in manifest.tables() if table.name == name)
    values: dict[str, Any] = {}
    for column in table.columns:
        if column.name in skip | {"model", "task", "split", "kind"} or not manifest.level.includes(column.level):
            continue
        if column.nullable and rng.random() < 0.3:
            continue
        match column.type:
            case "float64":
                values[column.name] = float(rng.normal())
            case "list<float64>" | "list<float32>":
                assert column.length in (len(GRID), len(CURVATURE_SCALES), PATH_NODES, 2, 3, 4)
                values[column.name] = rng.normal(size=column.length).astype(column.element)
            case "string":
                values[column.name] = "interior"
            case "bool":
                values[column.name] = bool(rng.integers(2))
            case _:
                values[column.name] = int(rng.integers(0, 4))
    return values


def rows_of(tables: dict[str, dict[str, list[Any]]], rows: set[int]) -> dict[str, dict[str, list[Any]]]:
    """Some questions of every table."""
    return {
        name: {
            key: [v for v, row in zip(values, columns["row"], strict=True) if row in rows]
            for key, values in columns.items()
        }
        for name, columns in tables.items()
    }
