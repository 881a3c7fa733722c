"""The peak memory of a process."""

from pathlib import Path


def peak_memory_mb(pid: int) -> float:
    """Return the peak of its resident memory in MB (10^6 bytes); 0 if the process does not exist."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0
