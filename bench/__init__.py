"""Benchmarks: each module is run as `python -m bench.NAME`, with `--json` and `--quick`.

Every figure stands beside a named rival's from the same run on the same machine.
"""
