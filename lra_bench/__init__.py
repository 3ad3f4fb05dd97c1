"""The harness: configuration, training, measuring, records, tables and pictures."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Research code often has `models` and `tasks` of its own, in the folder where `python -m` looks first or in PYTHONPATH.
sys.path.insert(0, str(ROOT))
