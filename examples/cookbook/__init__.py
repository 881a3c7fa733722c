"""Ten dataflows to copy from: `./run python -m examples.cookbook --help`, docs/cookbook.md."""
