"""The whole corpus, in order."""

from __future__ import annotations

import calls
import checkpoints
import data_files
import declared
import flags
import given_tasks
import readouts
import run_directories
import templates

CASES = tuple(
    case
    for module in (flags, data_files, templates, checkpoints, run_directories, calls, declared, given_tasks, readouts)
    for case in module.cases()
)
