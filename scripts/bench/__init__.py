"""Measurements behind docs/performance.md: `python -m scripts.bench.NAME`."""
