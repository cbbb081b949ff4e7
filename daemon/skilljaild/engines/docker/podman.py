"""A container's creation in the words of Podman's own API.

Podman's Docker API lays file systems of its own over /tmp, /var/tmp and /run of a read-only container, without the
caps of the run; writes the host's /etc/hosts into it; and has no word for the cgroup namespace. Its own API does none
of that unasked.
"""

from typing import Any

__all__ = ["spec_generator"]

CPU_PERIOD_MICROSECONDS = 100_000
PRIVATE = {"nsmode": "private"}


def spec_generator(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """What `POST /libpod/containers/create` takes. `body`: the same container for `POST /containers/create`."""
    host = body["HostConfig"]
    options = dict(option.split("=", 1) for option in host["SecurityOpt"] if "=" in option)
    return {
        "name": name,
        "image": body["Image"],
        "labels": body["Labels"],
        "user": body["User"],
        "hostname": body["Hostname"],
        "work_dir": body["WorkingDir"],
        "stdin": True,
        "terminal": False,
        "healthconfig": {"Test": ["NONE"]},
        "systemd": "false",
        "sdnotifyMode": "ignore",
        "image_volume_mode": "ignore",
        "restart_policy": "no",
        "use_image_hosts": True,
        "use_image_resolve_conf": True,
        "netns": {"nsmode": host["NetworkMode"]},
        "pidns": PRIVATE,
        "ipcns": {"nsmode": host["IpcMode"]},
        "utsns": PRIVATE,
        "cgroupns": {"nsmode": host["CgroupnsMode"]},
        "read_only_filesystem": host["ReadonlyRootfs"],
        "cap_drop": host["CapDrop"],
        "no_new_privileges": "no-new-privileges" in host["SecurityOpt"],
        "seccomp_profile_path": options["seccomp"],
        "annotations": {"io.podman.annotations.seccomp": options["seccomp"]},  # what its inspection tells
        "mask": options["mask"].split(":"),
        "volumes": [_volume(bind) for bind in host["Binds"]],
        "shm_size": host["ShmSize"],
        "r_limits": [_rlimit(one) for one in host["Ulimits"]],
        "resource_limits": {
            "memory": {"limit": host["Memory"], "swap": host["MemorySwap"]},
            "pids": {"limit": host["PidsLimit"]},
            "cpu": {
                "quota": round(host["NanoCpus"] * CPU_PERIOD_MICROSECONDS / 1e9),
                "period": CPU_PERIOD_MICROSECONDS,
            },
        },
        "log_configuration": {"driver": host["LogConfig"]["Type"]},
        "oci_runtime": host.get("Runtime") or "",
    }


def _volume(bind: str) -> dict[str, Any]:
    name, destination, options = bind.split(":")
    return {"Name": name, "Dest": destination, "Options": options.split(",")}


def _rlimit(ulimit: dict[str, Any]) -> dict[str, Any]:
    return {"type": ulimit["Name"], "soft": ulimit["Soft"], "hard": ulimit["Hard"]}
