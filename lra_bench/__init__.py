"""The harness: configuration, training, measuring, records, tables and pictures."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
