"""Tests of Windlass. A package, so that `tests.harness` can be imported by benchmarks too."""
