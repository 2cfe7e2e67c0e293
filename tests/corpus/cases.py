"""The whole corpus, in order."""

import declared
import files
import objects
import run_folders
import settings

CASES = tuple(case for module in (settings, files, declared, objects, run_folders) for case in module.cases())
