"""What Docker and Podman do differently behind the same API."""

import contextlib
import json
import os
from http import HTTPStatus
from typing import Any, ClassVar, Protocol

import docker.errors

from skilljaild.engines.base import SandboxSpec
from skilljaild.engines.docker.podman import spec_generator
from skilljaild.engines.floor import Floor

__all__ = ["Dialect", "DockerDialect", "PodmanDialect"]


LIBPOD_VERSION = "4.0.0"
"""Of Podman's own API; every later Podman answers to it."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Dialect(Protocol):
    """One product's way to say what the floor asks for. `api` is the docker package's APIClient."""

    def seccomp(self, floor: Floor) -> str:
        """The value of `seccomp=` among the security options."""
        ...

    def mask(self, paths: list[str]) -> list[str]:
        """Security options that hide paths, where HostConfig.MaskedPaths does not."""
        ...

    def is_our_profile(self, value: str, floor: Floor) -> bool:
        """Whether an inspected value of `seccomp=` is the floor's profile."""
        ...

    def prepare_work(self, api: Any, name: str, spec: SandboxSpec, floor: Floor, labels: dict[str, str]) -> None:
        """Makes what the work directory needs beside the container, if anything."""
        ...

    extra_ulimits: ClassVar[dict[str, int]]
    """Limits beside the floor's that the product needs to be told."""
    private_ipc: ClassVar[frozenset[str]]
    """How it calls an ipc namespace of the sandbox's own."""

    def create(self, api: Any, name: str, body: dict[str, Any]) -> None:
        """Makes the container. `body`: from `container_config`."""
        ...

    def mount_work(self, name: str, spec: SandboxSpec, floor: Floor) -> dict[str, Any]:
        """The entries of HostConfig that mount the work directory."""
        ...

    def file_system_options(self, spec: SandboxSpec, floor: Floor) -> list[str]:
        """The options of the work directory's file system: its size, inodes, mode and owner."""
        ...

    def work_options(self, api: Any, name: str, inspected: dict[str, Any], floor: Floor) -> set[str]:
        """The options that the work directory is mounted with, as the engine tells."""
        ...

    def foreign_mounts(self, name: str, inspected: dict[str, Any]) -> list[Any]:
        """Mounts of an inspected container that nobody asked for."""
        ...

    tells_paths: ClassVar[bool]
    """Whether its inspection tells the masked and the read-only paths. Else they are seen from inside alone."""

    def capabilities(self, api: Any, name: str, inspected: dict[str, Any], floor: Floor) -> list[str]:
        """The capabilities that an inspected container has left."""
        ...

    def release_work(self, api: Any, name: str) -> None:
        """Removes what `prepare_work` made; no error when it is gone."""
        ...

    def left_behind(self, api: Any, owner_label: str) -> list[dict[str, str]]:
        """Labels of what `prepare_work` made for this owner and is still there."""
        ...


def _file_system_options(spec: SandboxSpec, floor: Floor, size: str) -> list[str]:
    """What the tmpfs of the work directory is made with."""
    return [
        size,
        f"nr_inodes={spec.limits.disk_inodes}",
        f"mode={floor.work_mode}",
        f"uid={floor.user_of(spec.place)}",
        f"gid={floor.user_of(spec.place)}",
    ]


class DockerDialect:
    """Docker: the work directory is a tmpfs of the container, the profile is passed itself."""

    extra_ulimits: ClassVar[dict[str, int]] = {}
    private_ipc: ClassVar[frozenset[str]] = frozenset({"private"})
    tells_paths: ClassVar[bool] = True

    def seccomp(self, floor: Floor) -> str:
        return floor.seccomp

    def mask(self, paths: list[str]) -> list[str]:
        del paths
        return []

    def is_our_profile(self, value: str, floor: Floor) -> bool:
        try:
            return bool(json.loads(value) == json.loads(floor.seccomp))
        except ValueError:
            return False

    def prepare_work(self, api: Any, name: str, spec: SandboxSpec, floor: Floor, labels: dict[str, str]) -> None:
        pass

    def create(self, api: Any, name: str, body: dict[str, Any]) -> None:
        api.create_container_from_config(body, name=name)

    def mount_work(self, name: str, spec: SandboxSpec, floor: Floor) -> dict[str, Any]:
        del name
        return {"Tmpfs": {floor.work_path: ",".join([*floor.work_options, *self.file_system_options(spec, floor)])}}

    def file_system_options(self, spec: SandboxSpec, floor: Floor) -> list[str]:
        return _file_system_options(spec, floor, f"size={spec.limits.disk_bytes}")

    def work_options(self, api: Any, name: str, inspected: dict[str, Any], floor: Floor) -> set[str]:
        del api, name
        return set((inspected["HostConfig"].get("Tmpfs") or {}).get(floor.work_path, "").split(","))

    def foreign_mounts(self, name: str, inspected: dict[str, Any]) -> list[Any]:
        del name
        binds = list(inspected["HostConfig"].get("Binds") or [])
        return binds + [one for one in inspected.get("Mounts") or [] if one.get("Type") != "tmpfs"]

    def capabilities(self, api: Any, name: str, inspected: dict[str, Any], floor: Floor) -> list[str]:
        del api, name
        host = inspected["HostConfig"]
        dropped = {name.upper() for name in host.get("CapDrop") or []}
        kept = [] if set(floor.dropped_capabilities) <= dropped else ["the engine's default capabilities"]
        return [*kept, *(host.get("CapAdd") or [])]

    def release_work(self, api: Any, name: str) -> None:
        pass

    def left_behind(self, api: Any, owner_label: str) -> list[dict[str, str]]:
        del api, owner_label
        return []


class PodmanDialect:
    """Podman: its tmpfs knows no inode cap and no owner, so the work directory is a tmpfs volume of its own; the
    profile is passed as the name of a file on Podman's host."""

    # Its own default is above the hard limit of many hosts. The kernel counts a user's processes over all sandboxes,
    # so this is far above what all of them together may have; the pids limit is what binds each.
    extra_ulimits: ClassVar[dict[str, int]] = {"nproc": 16_384}
    private_ipc: ClassVar[frozenset[str]] = frozenset({"private", "shareable"})
    tells_paths: ClassVar[bool] = False

    def seccomp(self, floor: Floor) -> str:
        return str(floor.seccomp_file)

    def mask(self, paths: list[str]) -> list[str]:
        return [f"mask={':'.join(paths)}"]

    def is_our_profile(self, value: str, floor: Floor) -> bool:
        return value == str(floor.seccomp_file)

    def prepare_work(self, api: Any, name: str, spec: SandboxSpec, floor: Floor, labels: dict[str, str]) -> None:
        options = {"type": "tmpfs", "device": "tmpfs", "o": ",".join(self.file_system_options(spec, floor))}
        api.create_volume(name, driver="local", driver_opts=options, labels=labels)

    def create(self, api: Any, name: str, body: dict[str, Any]) -> None:
        response = api.post(_libpod(api, "containers/create"), json=spec_generator(name, body))
        if response.status_code == HTTPStatus.NOT_FOUND or "image not known" in response.text:  # Podman 4 answers 500
            raise docker.errors.ImageNotFound(response.text)
        if not response.ok:
            raise docker.errors.APIError(response.text, response, response.json().get("message", response.text))

    def file_system_options(self, spec: SandboxSpec, floor: Floor) -> list[str]:
        # Podman 4 takes `size` for a quota of its own. On a host with larger pages than ours the result would be too
        # large, which init sees and the daemon refuses.
        return _file_system_options(spec, floor, f"nr_blocks={spec.limits.disk_bytes // PAGE_BYTES}")

    def mount_work(self, name: str, spec: SandboxSpec, floor: Floor) -> dict[str, Any]:
        del spec
        return {"Binds": [f"{name}:{floor.work_path}:{','.join([*floor.work_options, 'nocopy'])}"]}

    def work_options(self, api: Any, name: str, inspected: dict[str, Any], floor: Floor) -> set[str]:
        options = set((api.inspect_volume(name).get("Options") or {}).get("o", "").split(","))
        for bind in inspected["HostConfig"].get("Binds") or []:
            if bind.startswith(f"{name}:{floor.work_path}:"):
                options |= set(bind.rpartition(":")[2].split(","))
        return options

    def foreign_mounts(self, name: str, inspected: dict[str, Any]) -> list[Any]:
        return [
            one
            for one in inspected.get("Mounts") or []
            if one.get("Type") != "tmpfs" and (one.get("Type") != "volume" or one.get("Name") != name)
        ]

    def capabilities(self, api: Any, name: str, inspected: dict[str, Any], floor: Floor) -> list[str]:
        del inspected, floor  # its Docker API tells neither set; its own does
        response = api.get(_libpod(api, f"containers/{name}/json"))
        response.raise_for_status()
        native = response.json()
        return [*(native.get("EffectiveCaps") or []), *(native.get("BoundingCaps") or [])]

    def release_work(self, api: Any, name: str) -> None:
        with contextlib.suppress(docker.errors.NotFound):
            api.remove_volume(name, force=True)

    def left_behind(self, api: Any, owner_label: str) -> list[dict[str, str]]:
        found = api.volumes(filters={"label": [owner_label]}).get("Volumes") or []
        return [dict(one.get("Labels") or {}) for one in found]


def _libpod(api: Any, path: str) -> str:
    """A URL of Podman's own API."""
    return f"{api.base_url}/v{LIBPOD_VERSION}/libpod/{path}"
