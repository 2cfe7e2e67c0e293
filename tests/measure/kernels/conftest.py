"""The kernels are collected only where Triton's interpreter runs them, in a process of their own.

TRITON_INTERPRET=1 pytest tests/measure/kernels
"""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_squared_norms.py"]
