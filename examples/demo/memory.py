"""How much memory a process has taken at most."""

from pathlib import Path


def peak_memory_mb(pid: int) -> float:
    """The high-water mark of its resident memory in MB (10^6 bytes); 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0
