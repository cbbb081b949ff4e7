"""The daemon's configuration: where it comes from, and what is refused."""

import argparse
import os
import pathlib
from typing import Any

import pytest
from skilljaild import images
from skilljaild.cli.flags import add_config_flags, config_of
from skilljaild.config import CeilingLimits, Config, ConfigError, DefaultLimits, load
from skilljaild.network import Network, NetworkCeiling

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
    ("flags", "name", "mend"),
    [
        ({"listn": "unix:/x"}, "listn", "did you mean listen?"),
        ({"limits": {"ceiling": {"memory": 1}}}, "limits.ceiling.memory", "did you mean limits.ceiling.memory_bytes?"),
        ({"limits": {"ceilng": {"pids": 5}}}, "limits.ceilng", "did you mean limits.ceiling?"),
        ({"engine": {"privileged": True}}, "engine.privileged", "engine has kind, url, runtime, timeout_seconds"),
        ({"tls": TLS | {"client_ca": "/x"}}, "tls.client_ca", "did you mean tls.client_ca_file?"),
        ({"zzz": 1}, "zzz", "docs/configuration.md lists them all"),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest_one(flags: dict[str, Any], name: str, mend: str) -> None:
    assert fault(flags) == f"The configuration is wrong:\n  {name}: there is no such setting; {mend}"


LIMIT_BOUNDS: dict[str, tuple[object, ...]] = {
    "wall_seconds": (0, -5, 86_401, "nan", "inf", "-inf", "soon"),
    "cpu_seconds": (0, -5, 86_401, "nan", "inf", "-inf"),
    "cpus": (0, -1, 0.009, 1_025, "nan", "inf"),
    "memory_bytes": (0, -1, 100, 32 * MIB - 1, "31MiB", "inf"),
    "pids": (0, -1, 3, 32_769, 4.5, "nan"),
    "disk_bytes": (0, -1, 64 * 1024 - 1, "1KiB"),
    "disk_inodes": (0, -1, 63, "inf"),
    "open_files": (0, -1, 15, 1_048_577),
    "output_bytes": (0, -1, "-1"),
    "artifact_count": (-1, 10_001),
    "artifact_bytes": (-1, "-1MiB"),
    "egress_bytes": (-1, "-1MiB"),
    "egress_connections": (-1, 100_001),
}


def test_every_limit_has_bounds() -> None:
    for limits in (DefaultLimits, CeilingLimits):
        assert set(LIMIT_BOUNDS) == set(limits.model_fields)
        assert [name for name, field in limits.model_fields.items() if not field.metadata] == []


@pytest.mark.parametrize("table", ["default", "ceiling"])
@pytest.mark.parametrize(
    ("limit", "value"), [(limit, value) for limit, values in LIMIT_BOUNDS.items() for value in values]
)
def test_a_limit_out_of_bounds_is_refused(table: str, limit: str, value: object) -> None:
    lines = fault({"limits": {table: {limit: value}}}).splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(f"  limits.{table}.{limit}: must be ")


@pytest.mark.parametrize("setting", ["engine.timeout_seconds", "shutdown_grace_seconds"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_no_time_is_without_end(setting: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"  {setting}: must be "):
        from_flags("--set", f"{setting}={value}")


@pytest.mark.parametrize("table", ["default", "ceiling"])
def test_two_limits_in_the_file_leave_the_others_at_their_defaults(tmp_path: pathlib.Path, table: str) -> None:
    file = tmp_path / "skilljaild.toml"
    file.write_text(
        f'[limits.{table}]\npids = 99\noutput_bytes = "9MiB"\n'.replace("99", "129" if table == "ceiling" else "99")
    )
    before, after = getattr(load(None, {}).limits, table), getattr(load(file, {}).limits, table)
    changed = {name: value for name, value in after if value != getattr(before, name)}
    assert changed == {"pids": 129 if table == "ceiling" else 99, "output_bytes": 9 * MIB}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("limits.ceiling.pids", "-1", 'must be at least 4, not "-1"'),
        ("limits.ceiling.pids", "99999", 'must be at most 32768, not "99999"'),
        ("limits.ceiling.pids", "many", 'must be a whole number, not "many"'),
        ("limits.ceiling.cpus", "many", 'must be a number, not "many"'),
        ("limits.ceiling.wall_seconds", "nan", 'must be a finite number, not "nan"'),
        ("limits.ceiling.wall_seconds", "0", 'must be above 0, not "0"'),
        ("limits.ceiling.memory_bytes", "lots", 'must be a number of bytes, or text such as "256MiB", not "lots"'),
        ("limits.ceiling.memory_bytes", "4 GiBs", 'must be a number of bytes, or text such as "256MiB", not "4 GiBs"'),
        ("insecure", "perhaps", 'must be true or false, not "perhaps"'),
        ("log.level", "loud", "must be 'debug', 'info', 'warning' or 'error', not \"loud\""),
        ("socket_mode", "rw", 'must be three octal digits such as 600, not "rw"'),
        ("engine", "docker", 'is a table of settings (kind, url, runtime, timeout_seconds), not "docker"'),
        ("limits", "5", 'is a table of settings (default, ceiling), not "5"'),
        ("tls", "on", 'is a table of settings (certificate_file, key_file, client_ca_file), not "on"'),
        ("tls.key_file", "/k", None),
        ("network.ceiling", "all", "must be 'none', 'allowlist' or 'open', not \"all\""),
        (
            "network.allowed_hosts",
            "a.com,10.0.0.1",
            "must name hosts, such as example.com, *.example.com or * for every one ('10.0.0.1': an IP address is no "
            'host name; ask for the host by its name), not "a.com,10.0.0.1"',
        ),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(name: str, value: str, message: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        from_flags("--set", f"{name}={value}")
    lines = str(caught.value).splitlines()
    if message is not None:
        assert lines[1:] == [f"  {name}: {message}"]
    else:
        needed = "is needed; [tls] takes certificate_file, key_file, client_ca_file together"
        assert lines[1:] == [f"  tls.certificate_file: {needed}", f"  tls.client_ca_file: {needed}"]


@pytest.mark.parametrize(
    "flags",
    [
        {"limits": {"default": {"pids": 4_000}}},
        {"limits": {"default": {"disk_bytes": "600MiB"}}},
        {"listen": "nowhere"},
        {"listen": "0.0.0.0:1"},
    ],
)
def test_a_rule_between_settings_is_told_without_words_of_the_library(flags: dict[str, Any]) -> None:
    message = fault(flags)
    assert "Value error" not in message
    assert message.splitlines()[1].startswith(("  limits.default", "  listen: "))
    assert message.count("listen: ") <= 1


@pytest.mark.parametrize("pairs", [("limits=5", "limits.default.pids=4"), ("limits.default.pids=4", "limits=5")])
def test_a_table_cannot_be_set_to_a_value_and_have_settings_too(pairs: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_flags("--set", pairs[0], "--set", pairs[1])
    assert str(caught.value) == f"--set {pairs[1]}: limits is a table of settings and no value; set only names in it"


def test_the_last_of_two_values_of_one_setting_counts() -> None:
    assert from_flags("--set", "log.level=error", "--set", "log.level=debug").log.level == "debug"


def test_a_variable_of_an_unknown_name_or_for_a_whole_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLJAILD_LISTN", "unix:/x")
    with pytest.raises(ConfigError, match="  SKILLJAILD_LISTN: there is no such setting; did you mean listen"):
        load(None, {})
    monkeypatch.delenv("SKILLJAILD_LISTN")
    monkeypatch.setenv("SKILLJAILD_LIMITS", "five")
    with pytest.raises(ConfigError, match=r"SKILLJAILD_LIMITS: limits is a table of settings; .*SKILLJAILD_LIMITS__"):
        load(None, {})


def test_an_unknown_name_in_the_file_or_in_a_variable_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "skilljaild.toml"
    file.write_text("[limits.ceiling]\nmemry_bytes = 1\n")
    with pytest.raises(
        ConfigError, match=r"limits\.ceiling\.memry_bytes: there is no .* limits\.ceiling\.memory_bytes\?"
    ):
        load(file, {})
    monkeypatch.setenv("SKILLJAILD_LIMITS__CEILING__MEMRY_BYTES", "1")
    with pytest.raises(
        ConfigError, match=r"limits\.ceiling\.memry_bytes: there is no .* limits\.ceiling\.memory_bytes\?"
    ):
        load(None, {})


def test_a_file_that_is_not_there_or_broken_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: there is no such configuration file"):
        load(tmp_path / "nowhere.toml", {})
    broken = tmp_path / "broken.toml"
    broken.write_text("limits = [")
    with pytest.raises(ConfigError, match=r"broken\.toml: Invalid value"):
        load(broken, {})
    broken.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"broken\.toml: "):
        load(broken, {})
    broken.write_text("limits = " + "[" * 5_000)
    with pytest.raises(ConfigError, match=r"broken\.toml: its values are nested too deep; correct the file"):
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


@pytest.mark.parametrize("port", ["65536", "99999", "1" * 30])
def test_a_port_is_at_most_65535(port: str) -> None:
    found = fault({"listen": f"127.0.0.1:{port}", "insecure": True})
    assert found == f"The configuration is wrong:\n  listen: the port of '127.0.0.1:{port}' is not one from 0 to 65535"
    assert load(None, {"listen": "127.0.0.1:65535", "insecure": True})


@pytest.mark.parametrize("missing", list(TLS))
def test_half_a_tls_table_is_refused(missing: str) -> None:
    assert f"tls.{missing}" in fault({"tls": {name: value for name, value in TLS.items() if name != missing}})


@pytest.mark.parametrize("mode", ["600", "0660", "777"])
def test_a_socket_mode_is_octal(mode: str) -> None:
    assert load(None, {"socket_mode": mode}).socket_mode == mode


@pytest.mark.parametrize("mode", ["", "6", "6600", "0x600", "888", "rw-------", "1777"])
def test_another_socket_mode_is_refused(mode: str) -> None:
    assert "socket_mode" in fault({"socket_mode": mode})


def test_the_network_is_closed_until_the_operator_opens_it() -> None:
    assert load(None, {}).network.network() == NetworkCeiling(Network.NONE, ())


def test_hosts_come_from_the_file_as_a_list_and_from_elsewhere_with_commas(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "skilljaild.toml"
    file.write_text('[network]\nceiling = "allowlist"\nallowed_hosts = ["*.Example.com", "a.com:8443", "*"]\n')
    ceiling = load(file, {}).network.network()
    assert (ceiling.network, list(map(str, ceiling.hosts))) == (Network.ALLOWLIST, ["*.example.com", "a.com:8443", "*"])
    monkeypatch.setenv("SKILLJAILD_NETWORK__ALLOWED_HOSTS", "b.com, c.com")
    assert load(file, {}).network.allowed_hosts == ("b.com", "c.com")
    flags = from_flags("--config", str(file), "--set", "network.allowed_hosts=d.com", "--set", "network.ceiling=open")
    assert (flags.network.ceiling, flags.network.allowed_hosts) == ("open", ("d.com",))


def test_hosts_that_grant_nothing_are_refused() -> None:
    assert "network.allowed_hosts grants nothing while network.ceiling is none" in fault(
        {"network": {"allowed_hosts": ["a.com"]}}
    )


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"--set listen: write it as NAME=VALUE"):
        from_flags("--set", "listen")


def test_nothing_is_demanded_and_nobody_is_an_operator_over_tls_by_default() -> None:
    config = load(None, {})
    assert (config.isolation.minimum, config.isolation.strict, config.admin.tenants) == ("container", False, ())


def test_operators_are_a_list_in_a_file_and_separated_by_commas_elsewhere(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[admin]\ntenants = ["ops, and more", "sre"]\n')
    assert load(file, {}).admin.tenants == ("ops, and more", "sre")
    assert load(None, {"admin": {"tenants": "ops, sre,"}}).admin.tenants == ("ops", "sre")
    monkeypatch.setenv("SKILLJAILD_ADMIN__TENANTS", "ops,sre")
    assert load(None, {}).admin.tenants == ("ops", "sre")


def test_a_level_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"isolation\.minimum.*'container', 'gvisor' or 'vm'"):
        load(None, {"isolation": {"minimum": "kata"}})
