"""The daemon's configuration: where it comes from, and what is refused."""

import argparse
import os
import pathlib
from typing import Any

import pytest
from skilljaild import images
from skilljaild.cli.flags import add_config_flags, config_of
from skilljaild.config import Config, ConfigError, load

MIB = 1024 * 1024
TLS = {"certificate_file": "/c", "key_file": "/k", "client_ca_file": "/ca"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing from the environment of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("SKILLJAILD_")]:
        monkeypatch.delenv(name)


def fault(flags: dict[str, Any]) -> str:
    """Why flags are refused."""
    with pytest.raises(ConfigError) as caught:
        load(None, flags)
    return str(caught.value)


def from_flags(*words: str) -> Config:
    """The configuration of a command line."""
    parser = argparse.ArgumentParser()
    add_config_flags(parser)
    return config_of(parser.parse_args(words))


def test_the_defaults_stand_by_themselves() -> None:
    config = load(None, {})
    assert config.listen.startswith("unix:/")
    assert config.socket_mode == "600"
    assert (config.insecure, config.tls) == (False, None)
    assert (config.limits.default.memory_bytes, config.limits.ceiling.memory_bytes) == (512 * MIB, 2048 * MIB)
    assert config.images.python == images.reference("python")
    assert config.engine.kind == "docker"


def test_flags_win_over_variables_which_win_over_the_file_which_wins_over_the_defaults(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "skilljaild.toml"
    file.write_text(
        '[limits.ceiling]\npids = 201\nopen_files = 202\nartifact_count = 203\nmemory_bytes = "3GiB"\n'
        '[log]\nlevel = "error"\n'
    )
    monkeypatch.setenv("SKILLJAILD_LIMITS__CEILING__PIDS", "301")
    monkeypatch.setenv("SKILLJAILD_LIMITS__CEILING__OPEN_FILES", "600")
    monkeypatch.setenv("SKILLJAILD_LOG__FORMAT", "json")
    config = from_flags("--config", str(file), "--set", "limits.ceiling.pids=401", "--log-level", "debug")
    ceiling = config.limits.ceiling
    # One of each source, in the same table.
    assert (ceiling.pids, ceiling.open_files, ceiling.artifact_count) == (401, 600, 203)
    assert ceiling.memory_bytes == 3 * 1024 * MIB
    assert ceiling.wall_seconds == 600.0
    assert (config.log.level, config.log.format) == ("debug", "json")


@pytest.mark.parametrize(
    ("text", "size"),
    [("256MiB", 256 * MIB), ("1GB", 10**9), ("1.5 GiB", 1536 * MIB), ("67108864", 64 * MIB), (64 * MIB, 64 * MIB)],
)
def test_sizes_are_bytes_or_text(text: str | int, size: int) -> None:
    config = load(None, {"bundles": {"bundle_bytes": text}, "limits": {"ceiling": {"memory_bytes": "8GiB"}}})
    assert config.bundles.bundle_bytes == size


def test_every_setting_can_be_set_by_its_dotted_name() -> None:
    config = from_flags(
        "--set",
        "limits.default.wall_seconds=1.5",
        "--set",
        "admission.queued_runs=0",
        "--set",
        "images.pwsh=registry/pwsh@sha256:0",
        "--set",
        "engine.url=tcp://h:2376/?a=b",
        "--listen",
        "unix:/x",
        "--state-dir",
        "/s",
        "--runtime",
        "runsc",
    )
    assert config.limits.default.limits().wall_seconds == 1.5
    assert config.admission.queued_runs == 0
    assert config.images.pwsh == "registry/pwsh@sha256:0"
    assert (config.engine.url, config.engine.runtime) == ("tcp://h:2376/?a=b", "runsc")
    assert (config.listen, config.state_directory) == ("unix:/x", pathlib.Path("/s"))


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"listn": "unix:/x"}, "listn"),
        ({"limits": {"ceiling": {"memory": 1}}}, "limits.ceiling.memory"),
        ({"limits": {"ceilng": {"pids": 5}}}, "limits.ceilng"),
        ({"engine": {"privileged": True}}, "engine.privileged"),
        ({"tls": TLS | {"client_ca": "/x"}}, "tls.client_ca"),
    ],
)
def test_an_unknown_name_is_refused(flags: dict[str, Any], name: str) -> None:
    assert fault(flags) == f"The configuration is wrong:\n  {name}: Extra inputs are not permitted"


def test_an_unknown_name_in_the_file_or_in_a_variable_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "skilljaild.toml"
    file.write_text("[limits.ceiling]\nmemry_bytes = 1\n")
    with pytest.raises(ConfigError, match=r"limits\.ceiling\.memry_bytes: Extra inputs"):
        load(file, {})
    monkeypatch.setenv("SKILLJAILD_LIMITS__CEILING__MEMRY_BYTES", "1")
    with pytest.raises(ConfigError, match=r"limits\.ceiling\.memry_bytes: Extra inputs"):
        load(None, {})


def test_a_file_that_is_not_there_or_broken_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: there is no such configuration file"):
        load(tmp_path / "nowhere.toml", {})
    broken = tmp_path / "broken.toml"
    broken.write_text("limits = [")
    with pytest.raises(ConfigError, match=r"broken\.toml: Invalid value"):
        load(broken, {})


def test_every_fault_is_told_at_once() -> None:
    found = fault({"socket_mode": "rw", "log": {"level": "loud"}, "admission": {"concurrent_runs": 0}})
    assert [line.split(":")[0].strip() for line in found.splitlines()[1:]] == [
        "socket_mode",
        "admission.concurrent_runs",
        "log.level",
    ]


@pytest.mark.parametrize("limit", ["wall_seconds", "memory_bytes", "pids", "artifact_count"])
def test_a_default_above_its_ceiling_is_refused(limit: str) -> None:
    ceiling = getattr(load(None, {}).limits.ceiling, limit)
    assert f"limits.default is above limits.ceiling in {limit};" in fault({"limits": {"default": {limit: ceiling + 1}}})


def test_a_work_directory_as_large_as_the_memory_is_refused() -> None:
    found = fault({"limits": {"default": {"disk_bytes": "512MiB"}}})
    assert "limits.default.disk_bytes must be below memory_bytes" in found


@pytest.mark.parametrize("listen", ["unix:/x", "unix:///run/x.sock"])
def test_a_unix_socket_needs_nothing_more(listen: str) -> None:
    assert load(None, {"listen": listen}).listen == listen


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "0.0.0.0:8443", "[::]:8443", "runner.example:8443"])
def test_tcp_without_tls_is_refused(listen: str) -> None:
    assert "is a TCP address, which needs a [tls] table" in fault({"listen": listen})
    assert load(None, {"listen": listen, "tls": TLS}).tls is not None


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "localhost:0", "[::1]:1"])
def test_insecure_tcp_is_possible_on_loopback(listen: str) -> None:
    assert load(None, {"listen": listen, "insecure": True}).insecure


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:1", "[::]:1", "127.0.0.1.example:1", "10.0.0.1:1", "localhost.example:1", "*:1"]
)
def test_insecure_tcp_is_possible_nowhere_else(listen: str) -> None:
    assert "Without TLS only a loopback address is possible" in fault({"listen": listen, "insecure": True})


@pytest.mark.parametrize("listen", ["", "nowhere", ":8443", "host:", "host:port", "http://h:x"])
def test_what_is_no_address_is_refused(listen: str) -> None:
    assert "is neither unix:/path nor host:port" in fault({"listen": listen, "tls": TLS})


@pytest.mark.parametrize("missing", list(TLS))
def test_half_a_tls_table_is_refused(missing: str) -> None:
    assert f"tls.{missing}" in fault({"tls": {name: value for name, value in TLS.items() if name != missing}})


@pytest.mark.parametrize("mode", ["600", "0660", "777"])
def test_a_socket_mode_is_octal(mode: str) -> None:
    assert load(None, {"socket_mode": mode}).socket_mode == mode


@pytest.mark.parametrize("mode", ["", "6", "6600", "0x600", "888", "rw-------", "1777"])
def test_another_socket_mode_is_refused(mode: str) -> None:
    assert "socket_mode" in fault({"socket_mode": mode})


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"--set listen: write it as NAME=VALUE"):
        from_flags("--set", "listen")
