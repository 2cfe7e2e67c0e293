"""The modules of the corpus import each other by name, also in processes of their own: only the test is collected."""

import sys
from pathlib import Path

collect_ignore_glob = ["[!t]*.py"]

sys.path.insert(0, str(Path(__file__).parent))
