"""Makes the golden runs anew: `python tests/golden/make.py` (only when a number is meant to move; say why)."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from golden_compare import DATA
from golden_runs import RUNS, frames_of, studies_of

if __name__ == "__main__":
    for golden in RUNS:
        folder = DATA / golden.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as scratch:
            run = golden.measure(Path(scratch) / "run")
            for name, frame in frames_of(run).items():
                frame.write_parquet(folder / f"{name}.parquet", compression="zstd", compression_level=19)
            (folder / "studies.json").write_text(json.dumps(studies_of(run), separators=(",", ":")) + "\n")
