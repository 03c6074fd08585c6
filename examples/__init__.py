"""Things to try. `make demo` runs `python -m examples.demo`."""
