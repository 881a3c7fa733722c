"""Fuzz the parsers with atheris: `./run fuzz [TARGET...] --seconds N`.

One process a target, one after the other. What is found is kept in tests/fuzz/crashes/TARGET, with the line
that reproduces it; from then on the tests try it too.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

NAMES = ["wire", "version0", "extent", "scan", "records", "tokens", "journal", "channel", "arrow"]
CORPUS = Path(__file__).parent / "corpus"
CRASHES = Path(__file__).parent / "crashes"
INPUT_BYTES_MAX = 4_096
MEMORY_MB_MAX = 1_024


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./run fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  ./run fuzz\n  ./run fuzz scan --seconds 600\n  ./run fuzz wire --replay FILE",
    )  # fmt: skip
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--runs", type=int, default=-1, help="at most so many inputs (default: no limit)")
    parser.add_argument("--seed", type=int, default=0, help="of libFuzzer; 0: another one each time")
    parser.add_argument("--replay", type=Path, help="one input, without the fuzzer")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--found", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    unknown = sorted(set(asked.targets) - set(NAMES))
    if unknown:
        parser.error(f"no target {unknown[0]!r}: {', '.join(NAMES)}")
    if asked.replay is not None:
        return replay(asked.targets, asked.replay)
    if asked.in_this_process:
        fuzz(asked.targets[0], asked.seconds, asked.runs, asked.seed, asked.found)
    return max(run(name, asked.seconds, asked.runs, asked.seed) for name in asked.targets or NAMES)


def replay(targets: list[str], path: Path) -> int:
    from tests.fuzz.targets import TARGETS

    for name in targets or NAMES:
        TARGETS[name](path.read_bytes())
        print(f"{name}: nothing wrong with {path}")
    return 0


def run(name: str, seconds: int, runs: int, seed: int) -> int:
    """A process of its own; one line about it. 0, or 1 for a finding."""
    command = [sys.executable, "-m", "tests.fuzz", name, "--in-this-process", "--seconds", str(seconds)]
    command += ["--runs", str(runs), "--seed", str(seed)]
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as found:
        command += ["--found", found]
        done = subprocess.run(command, capture_output=True, text=True, errors="backslashreplace")
    executed = re.findall(r"number_of_executed_units:\s+(\d+)", done.stderr)
    covered = re.findall(r"cov: (\d+)", done.stderr)
    if done.returncode == 0 and executed:
        edges = covered[-1] if covered else "no"
        print(f"{name}: {int(executed[-1]):,} inputs, {edges} edges, nothing found", flush=True)
        return 0
    print(done.stderr[-6_000:], file=sys.stderr)
    kept = re.findall(r"Test unit written to (\S+)", done.stderr)
    again = f"; again with: ./run fuzz {name} --replay {kept[-1]}" if kept else ""
    print(f"{name}: FOUND something{again}", flush=True)
    return 1


def fuzz(name: str, seconds: int, runs: int, seed: int, found: str) -> NoReturn:
    """Never returns: libFuzzer ends the process. What of ours was imported before would not be seen."""
    import atheris

    with atheris.instrument_imports(
        include=["dos_protocol", "dos_server", "journal", "checkpoint"], enable_loader_override=False
    ):
        from tests.fuzz.targets import TARGETS

    keep = CRASHES / name
    keep.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}", f"-runs={runs}", f"-max_len={INPUT_BYTES_MAX}", f"-seed={seed}",
        f"-rss_limit_mb={MEMORY_MB_MAX}", f"-artifact_prefix={keep}/", "-print_final_stats=1", "-timeout=20",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, found, str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
