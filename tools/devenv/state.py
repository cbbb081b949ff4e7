"""Where things are: the checkout, the logs, and the data of engines that the set-up itself starts."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess

from devenv.progress import SetupError

__all__ = ["CHECKOUT", "DATA", "LOGS", "RUN", "remove", "unmount"]

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
LOGS = CHECKOUT / ".state" / "logs"


def _short_digest(path: pathlib.Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:12]


# Images take gigabytes on a file system that can hold overlays, and every checkout has its own.
DATA = pathlib.Path(os.environ.get("SKILLJAIL_STATE") or f"/var/lib/skilljail-dev/{_short_digest(CHECKOUT)}").absolute()

# Sockets and pids. A socket's path may have 107 bytes, and what is here must be gone after a reboot.
RUN = pathlib.Path(f"/run/skilljail-dev/{_short_digest(DATA)}")


def unmount(*folders: pathlib.Path) -> None:
    """Unmounts what a killed engine left mounted at or below the folders. Raises SetupError when it cannot."""
    mount_points = [
        line.split()[4].encode().decode("unicode_escape")
        for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    ]
    below = tuple(f"{folder}/" for folder in folders)
    ours = [point for point in mount_points if f"{point}/".startswith(below)]
    for point in sorted(ours, key=len, reverse=True):
        done = subprocess.run(("umount", point), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SetupError(f"{point} cannot be unmounted: {done.stderr.strip()}\nEnd what uses it and try again.")


def remove() -> None:
    """Removes the data of our engines. They must be stopped. Only root can have made any."""
    if os.geteuid() != 0:
        return
    unmount(DATA, RUN)
    for entry in RUN.iterdir() if RUN.exists() else ():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.suffix != ".lock":  # a set-up that goes on elsewhere must meet later ones at the same locks
            entry.unlink()
    for name in ("docker", "podman"):
        if (DATA / name).exists():
            shutil.rmtree(DATA / name)
    (DATA / "daemon.json").unlink(missing_ok=True)
    _remove_locks()
    with contextlib.suppress(OSError):
        DATA.rmdir()  # unless it is a folder that somebody has other things in


def _remove_locks() -> None:
    """Removes the locks and their folders, unless a set-up goes on that holds them."""
    with contextlib.suppress(OSError), (RUN / "users.lock").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(RUN)
        RUN.parent.rmdir()  # unless another checkout has its own there
