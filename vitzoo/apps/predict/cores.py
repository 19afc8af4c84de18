"""The numbers of CPU cores that this machine, and that this process, may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vitzoo.files.platform.processes import affinity
from vitzoo.network.device import number_of


def cores(root: Path = Path("/")) -> int:
    """Return the number of cores of the affinity, at most the limits of the control groups.

    A container limits the time on all cores, not the affinity. A part of a core counts as one. What
    cannot be read is no limit.

    Args:
        root: folder of `proc` and `sys`.
    """
    found, mounts = [affinity()], root / "sys" / "fs" / "cgroup"
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            names, _, group = line.partition(":")[2].partition(":")  # no names: version 2
            if not names or "cpu" in names.split(","):
                for top in {mounts / names, mounts / "cpu"} if names else {mounts}:
                    folder = top / group.lstrip("/")
                    for one in (folder, *folder.parents):
                        found += _limit(one)
    return min(found)


def cores_of_process() -> int:
    """Return the number of cores for this process, among which torchrun divides them."""
    return max(1, cores() // max(1, number_of("LOCAL_WORLD_SIZE") or 1))


def _limit(group: Path) -> Iterator[int]:
    """Yield the limit of a group, rounded up, if it has one."""
    for names in ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"):
        with suppress(OSError, ValueError):  # no such file, or `max`
            texts = [(group / name).read_text(encoding="utf-8") for name in names]
            time, period = map(int, " ".join(texts).split())
            if time > 0 and period > 0:
                yield -(-time // period)
