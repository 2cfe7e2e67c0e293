"""The whole corpus, in order."""

import declared
import files
import objects
import settings

CASES = tuple(case for module in (settings, files, declared, objects, runs) for case in module.cases())
