"""The daemon's configuration: flags over `SKILLJAILD_*` variables over a TOML file over the defaults below.

A nested value is named with dots in flags and TOML tables (`limits.ceiling.memory_bytes`) and with two underscores in
the environment (`SKILLJAILD_LIMITS__CEILING__MEMORY_BYTES`). Sizes are bytes, or text such as "256MiB".
"""

import os
import pathlib
import re
from typing import Annotated, Any, Literal, Self

import pydantic
import pydantic_settings
from skilljail._address import default_socket_path

from skilljaild import images
from skilljaild.egress.hosts import HostInvalid, HostPattern
from skilljaild.limits import Limits
from skilljaild.network import Network, NetworkCeiling
from skilljaild.paths import shown
from skilljaild.secrets.config import SecretTables
from skilljaild.setting_fault import closest, settings_of, told

__all__ = [
    "AdminConfig",
    "AdmissionConfig",
    "BundleConfig",
    "Config",
    "ConfigError",
    "EngineConfig",
    "IsolationConfig",
    "LimitSet",
    "NetworkConfig",
    "TlsConfig",
    "load",
]

MIB = 1024 * 1024
PORT_MAX = 65_535
PREFIX = "SKILLJAILD_"

Size = Annotated[pydantic.ByteSize, pydantic.Field(gt=0)]
DaySeconds = Annotated[float, pydantic.Field(gt=0, le=86_400, allow_inf_nan=False)]
# The bounds of each limit, for its default and its ceiling alike.
Cpus = Annotated[float, pydantic.Field(ge=0.01, le=1_024, allow_inf_nan=False)]
MemoryBytes = Annotated[pydantic.ByteSize, pydantic.Field(ge=32 * MIB)]
Pids = Annotated[int, pydantic.Field(ge=4, le=32_768)]
DiskBytes = Annotated[pydantic.ByteSize, pydantic.Field(ge=64 * 1024)]
DiskInodes = Annotated[int, pydantic.Field(ge=64)]
OpenFiles = Annotated[int, pydantic.Field(ge=16, le=1_048_576)]
ArtifactCount = Annotated[int, pydantic.Field(ge=0, le=2_000)]
ArtifactBytes = Annotated[pydantic.ByteSize, pydantic.Field(ge=0)]
EgressBytes = Annotated[pydantic.ByteSize, pydantic.Field(ge=0)]
EgressConnections = Annotated[int, pydantic.Field(ge=0, le=100_000)]


class ConfigError(Exception):
    """The configuration is wrong; the message names each setting and what it may be."""


class Section(pydantic.BaseModel):
    """A table of the configuration. An unknown name is an error: a misspelt limit must not be lost."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class LimitSet(Section):
    """Every limit of a run, see `proto/skilljail/v1/limits.proto`."""

    wall_seconds: DaySeconds
    cpu_seconds: DaySeconds
    cpus: Cpus
    memory_bytes: MemoryBytes
    pids: Pids
    disk_bytes: DiskBytes
    disk_inodes: DiskInodes
    open_files: OpenFiles
    output_bytes: Size
    artifact_count: ArtifactCount
    artifact_bytes: ArtifactBytes
    egress_bytes: EgressBytes
    egress_connections: EgressConnections

    def limits(self) -> Limits:
        """The same as plain numbers."""
        return Limits(**dict(self))


class DefaultLimits(LimitSet):
    """What a run gets that asks for nothing. Enough for PowerShell's hello, the hungriest of the four."""

    wall_seconds: DaySeconds = 30.0
    cpu_seconds: DaySeconds = 30.0
    cpus: Cpus = 1.0
    memory_bytes: MemoryBytes = pydantic.ByteSize(512 * MIB)
    pids: Pids = 128
    disk_bytes: DiskBytes = pydantic.ByteSize(128 * MIB)
    disk_inodes: DiskInodes = 16_384
    open_files: OpenFiles = 512
    output_bytes: Size = pydantic.ByteSize(8 * MIB)
    artifact_count: ArtifactCount = 64
    artifact_bytes: ArtifactBytes = pydantic.ByteSize(16 * MIB)
    egress_bytes: EgressBytes = pydantic.ByteSize(64 * MIB)
    egress_connections: EgressConnections = 256


class CeilingLimits(LimitSet):
    """The most that a run may ask for.

    The kernel counts open files for the whole machine (fs.file-max) and for each process, and nothing in between: a run
    may have `pids` times `open_files`, so both together are kept low.
    """

    wall_seconds: DaySeconds = 600.0
    cpu_seconds: DaySeconds = 1_200.0
    cpus: Cpus = float(os.cpu_count() or 1)
    memory_bytes: MemoryBytes = pydantic.ByteSize(2_048 * MIB)
    pids: Pids = 512
    disk_bytes: DiskBytes = pydantic.ByteSize(1_024 * MIB)
    disk_inodes: DiskInodes = 262_144
    open_files: OpenFiles = 1_024
    output_bytes: Size = pydantic.ByteSize(64 * MIB)
    artifact_count: ArtifactCount = 1_000
    artifact_bytes: ArtifactBytes = pydantic.ByteSize(256 * MIB)
    egress_bytes: EgressBytes = pydantic.ByteSize(1_024 * MIB)
    egress_connections: EgressConnections = 10_000


class LimitsConfig(Section):
    """`[limits.default]` and `[limits.ceiling]`."""

    default: DefaultLimits = DefaultLimits()
    ceiling: CeilingLimits = CeilingLimits()

    @pydantic.model_validator(mode="after")
    def _default_below_ceiling(self) -> Self:
        above = [name for name, value in self.default if value > getattr(self.ceiling, name)]
        if above:
            raise ValueError(
                f"limits.default is above limits.ceiling in {', '.join(above)}; raise one or lower the other"
            )
        if self.default.disk_bytes >= self.default.memory_bytes:
            raise ValueError("limits.default.disk_bytes must be below memory_bytes: the work directory lives in memory")
        return self


def _listed(value: object) -> object:
    """A flag or a variable has no lists; there the entries stand with commas between."""
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


def _patterns(entries: tuple[str, ...]) -> tuple[str, ...]:
    for entry in entries:
        try:
            HostPattern.parse(entry, every=True)
        except HostInvalid as error:
            raise ValueError(
                f"must name hosts, such as example.com, *.example.com or * for every one ({shown(entry)}: {error})"
            ) from error
    return entries


class NetworkConfig(Section):
    """`[network]`: the most that a run may ask for."""

    ceiling: Literal["none", "allowlist", "open"] = "none"
    """`allowlist`: HTTP and HTTPS to the hosts below that a request names. `open`: to every public host."""
    allowed_hosts: Annotated[
        tuple[str, ...],
        pydantic_settings.NoDecode,
        pydantic.BeforeValidator(_listed),
        pydantic.AfterValidator(_patterns),
    ] = ()
    """What a request may name; `*` is every host."""

    @pydantic.model_validator(mode="after")
    def _no_hosts_in_vain(self) -> Self:
        if self.allowed_hosts and self.ceiling == "none":
            raise ValueError(
                "network.allowed_hosts grants nothing while network.ceiling is none; set it to allowlist, or take the "
                "hosts out"
            )
        return self

    def network(self) -> NetworkCeiling:
        """The same as plain data."""
        patterns = tuple(HostPattern.parse(one, every=True) for one in self.allowed_hosts)
        return NetworkCeiling(Network[self.ceiling.upper()], patterns)


class EngineConfig(Section):
    """`[engine]`: what makes sandboxes."""

    kind: Literal["docker"] = "docker"
    url: str = ""
    """Docker or Podman API: `unix:///…`, `tcp://…`. Empty: DOCKER_HOST, then Docker's usual socket."""
    runtime: str = ""
    """Name of the engine's runtime, such as `runsc`. Empty: the engine's default."""
    timeout_seconds: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)] = 60.0
    """How long one call to the engine may take."""


class ImagesConfig(Section):
    """`[images]`: the image of each interpreter, as a reference or a digest."""

    python: str = images.reference("python")
    node: str = images.reference("node")
    bash: str = images.reference("bash")
    pwsh: str = images.reference("pwsh")


class AdmissionConfig(Section):
    """`[admission]`: how much may be under way."""

    concurrent_runs: Annotated[int, pydantic.Field(ge=1, le=512)] = max(4, 2 * (os.cpu_count() or 1))
    queued_runs: Annotated[int, pydantic.Field(ge=0)] = 256
    remembered_runs: Annotated[int, pydantic.Field(ge=1)] = 1_000
    """Finished runs that GetRun and ListRuns still know."""


class IsolationConfig(Section):
    """`[isolation]`: what the operator demands of the host, beyond what every run needs."""

    minimum: Literal["container", "gvisor", "vm"] = "container"
    """What must stand between a sandbox and the host's kernel, as a self-test sees it."""
    strict: bool = False
    """Refuses to start where anything is known to be bad."""


class AdminConfig(Section):
    """`[admin]`: who may call AdminService over TLS. On a unix socket and on loopback everybody may."""

    tenants: Annotated[tuple[str, ...], pydantic_settings.NoDecode, pydantic.BeforeValidator(_listed)] = ()
    """Common names of the operators' certificates. In a flag or a variable separated by commas."""


class BundleConfig(Section):
    """`[bundles]`: the store of uploaded skills."""

    store_bytes: Size = pydantic.ByteSize(1_024 * MIB)
    """All blobs of one tenant together; the least recently used go first."""
    bundle_bytes: Size = pydantic.ByteSize(64 * MIB)
    """All files of one bundle together."""
    bundle_entries: Annotated[int, pydantic.Field(ge=1, le=50_000)] = 10_000
    """Files and directories of one bundle together."""


class TlsConfig(Section):
    """`[tls]`: for a TCP address. Callers show a certificate of `client_ca_file`; its common name is the tenant."""

    certificate_file: pathlib.Path
    key_file: pathlib.Path
    client_ca_file: pathlib.Path


class LogConfig(Section):
    """`[log]`."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


def _default_state_directory() -> pathlib.Path:
    if os.geteuid() == 0:
        return pathlib.Path("/var/lib/skilljail")
    data = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return pathlib.Path(data).expanduser() / "skilljail"


def _octal(mode: str) -> str:
    if not re.fullmatch("0?[0-7]{3}", mode):
        raise ValueError("must be three octal digits such as 600")
    return mode


class Config(pydantic_settings.BaseSettings):
    """Everything the daemon can be told."""

    model_config = pydantic_settings.SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    listen: str = pydantic.Field(default_factory=lambda: f"unix:{default_socket_path()}")
    """`unix:/path`, or `host:port` with `[tls]`."""
    socket_mode: Annotated[str, pydantic.AfterValidator(_octal)] = "600"
    """Octal mode of the unix socket: whoever can connect can run scripts."""
    insecure: bool = False
    """Allows a TCP address without TLS, on loopback only."""
    state_directory: pathlib.Path = pydantic.Field(default_factory=_default_state_directory)
    """Blobs and the daemon's identity. One daemon for each."""
    shutdown_grace_seconds: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 10.0
    """How long runs may go on after SIGTERM before they end with SHUTDOWN."""
    tls: TlsConfig | None = None
    engine: EngineConfig = EngineConfig()
    images: ImagesConfig = ImagesConfig()
    limits: LimitsConfig = LimitsConfig()
    network: NetworkConfig = NetworkConfig()
    admission: AdmissionConfig = AdmissionConfig()
    bundles: BundleConfig = BundleConfig()
    isolation: IsolationConfig = IsolationConfig()
    admin: AdminConfig = AdminConfig()
    secrets: SecretTables = pydantic.Field(default_factory=dict)
    log: LogConfig = LogConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[pydantic_settings.BaseSettings],
        init_settings: pydantic_settings.PydanticBaseSettingsSource,
        env_settings: pydantic_settings.PydanticBaseSettingsSource,
        dotenv_settings: pydantic_settings.PydanticBaseSettingsSource,
        file_secret_settings: pydantic_settings.PydanticBaseSettingsSource,
    ) -> tuple[pydantic_settings.PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the file that `load` named."""
        del dotenv_settings, file_secret_settings
        file = settings_cls.model_config.get("toml_file")
        toml = pydantic_settings.TomlConfigSettingsSource(settings_cls, toml_file=file)
        return init_settings, env_settings, toml

    @pydantic.model_validator(mode="after")
    def _listen_safely(self) -> Self:
        if self.listen.startswith("unix:"):
            return self
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"listen: {self.listen!r} is neither unix:/path nor host:port")
        if not port.isascii() or int(port[:6]) > PORT_MAX:
            raise ValueError(f"listen: the port of {self.listen!r} is not one from 0 to {PORT_MAX}")
        loopback = host in {"127.0.0.1", "localhost", "[::1]"}
        if self.tls is None and not (self.insecure and loopback):
            raise ValueError(
                f"listen: {self.listen} is a TCP address, which needs a [tls] table: certificate_file, key_file, "
                "client_ca_file. Without TLS only a loopback address is possible, with --insecure, and then every "
                "user of this host can run scripts."
            )
        return self


def load(file: pathlib.Path | None, flags: dict[str, Any]) -> Config:
    """Reads the configuration. `file`: a TOML file, or None; `flags`: nested values from the command line.

    Raises ConfigError.
    """
    if file is not None and not file.is_file():
        raise ConfigError(f"{file}: there is no such configuration file")

    class FromFile(Config):
        model_config = pydantic_settings.SettingsConfigDict(toml_file=file)

    lines = _wrong_variables()
    if lines:
        raise ConfigError(_wrong(lines))
    try:
        return FromFile(**flags)
    except pydantic.ValidationError as error:
        raise ConfigError(_wrong([told(one, Config) for one in error.errors()])) from error
    except pydantic_settings.SettingsError as error:
        raise ConfigError(_wrong([str(error)])) from error
    except RecursionError:
        raise ConfigError(f"{file}: its values are nested too deep; correct the file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}; correct the file, or name another with --config") from error


def _wrong(lines: list[str]) -> str:
    return "\n  ".join(["The configuration is wrong:", *lines])


def _wrong_variables() -> list[str]:
    """What no source would tell: the library overlooks a variable whose first name is misspelt."""
    settings, lines = settings_of(Config), []
    for variable in sorted(os.environ):
        if not variable.upper().startswith(PREFIX):
            continue
        name = variable[len(PREFIX) :].lower().replace("__", ".")
        if name.split(".")[0] not in settings:
            lines.append(f"{variable}: {closest(name, settings)}")
        elif settings.get(name):
            example = f"{variable}__{settings[name][0].upper()}"
            lines.append(f"{variable}: {name} is a table of settings; set each by itself, such as {example}")
    return lines
