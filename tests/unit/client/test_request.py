"""What a client refuses before anything is sent, and what it sends."""

import pathlib
from typing import Any

import pytest
import skilljail
from skilljail.v1 import run_pb2

from .fake_daemon import FakeDaemon


@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        ("--value 1", r"argv must be a list of strings .*, got str"),
        ({"value": 1}, r"argv must be a list of strings .*, got dict"),
        ([1], r"argv\[0\] must be text, got int"),
        (["a", ["b"]], r"argv\[1\] must be text, got list"),
        ([None], r"argv\[0\] must be text, got NoneType"),
        (None, r"argv must be a list of strings .*, got NoneType"),
        (b"ab", r"argv must be a list of strings .*, got bytes"),
        (["a\0b"], r"argv\[0\] holds a NUL"),
        (["\ud800"], r"argv\[0\] is not valid Unicode"),
        (["x" * 131_072], r"argv\[0\] is longer than 131,071 bytes"),
        (["x" * 131_071] * 9, r"argv and env are 1,179,639 bytes together"),
    ],
)
def test_arguments_of_another_shape_are_refused_before_anything_is_sent(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, argv: Any, fault: str
) -> None:
    with pytest.raises(skilljail.InvalidRequest, match=fault) as caught:
        client.run(skill, "scripts/run.py", argv)
    assert caught.value.reason == "ARGUMENT_INVALID"
    assert fake.calls == []


@pytest.mark.parametrize(
    "script",
    [
        "",
        "/etc/passwd",
        "../x.py",
        "a/../b.py",
        "a//b.py",
        "./a.py",
        "a\\b.py",
        "C:\\a.py",
        "a\nb",
        "a/" * 32 + "b",
        "x" * 256,
    ],
)
def test_script_path_stays_below_the_skill(client: skilljail.Client, skill: pathlib.Path, script: str) -> None:
    with pytest.raises(skilljail.InvalidRequest) as caught:
        client.run(skill, script)
    assert caught.value.reason == "PATH_INVALID"
    assert str(caught.value).startswith("script ")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"env": {"A B": "x"}}, "env has the name 'A B'"),
        ({"env": {"1A": "x"}}, "env has the name '1A'"),
        ({"env": {"A": 1}}, r"env\['A'\] must be text, got int"),
        ({"env": {"A": "x\0"}}, r"env\['A'\] holds a NUL"),
        ({"env": ["A=1"]}, "env must be a mapping, got list"),
        ({"env": {f"A{number}": "" for number in range(257)}}, "more than 256 variables"),
        ({"stdin": "text"}, "stdin must be bytes, got str; encode the text first"),
        ({"stdin": b"x" * (4 * 1024 * 1024 + 1)}, "stdin is 4,194,305 bytes"),
        ({"working_directory": "/etc"}, "working_directory '/etc' is absolute"),
        ({"inputs": {"a": "text"}}, "must be bytes .* or a pathlib.Path .*, got str"),
        ({"inputs": {"../a": b""}}, "input path '../a'"),
        ({"inputs": [b""]}, "inputs must be a mapping, got list"),
        ({"limits": {"wall_seconds": 1}}, "limits must be skilljail.Limits, got dict"),
        ({"artifacts": "*.txt"}, "artifacts must be a list of strings .*, got str"),
        ({"artifacts": [""]}, "must have 1 to 1,024 bytes"),
        ({"labels": {"": "x"}}, "is too long"),
        ({"labels": {"a": "x" * 257}}, "is too long"),
        ({"request_id": "a b"}, "request_id must be"),
        ({"interpreter": 3}, "interpreter must be text, got int"),
        ({"network": "host"}, "network must be 'none', 'allowlist', 'open' or None, got 'host'"),
        ({"network": 2}, "network must be .* got '2'"),
        ({"network": "allowlist", "allowed_hosts": "a.com"}, "allowed_hosts must be a list of strings .*, got str"),
        ({"network": "allowlist", "allowed_hosts": [1]}, r"allowed_hosts\[0\] must be text, got int"),
        ({"network": "allowlist", "allowed_hosts": ["a.com"] * 257}, "more than 256 hosts"),
        ({"network": "allowlist", "allowed_hosts": ["*"]}, "ask for network='open'"),
        ({"allowed_hosts": ["a.com"]}, "network='allowlist' only; ask for network='allowlist'"),
        ({"network": "none", "allowed_hosts": ["a.com"]}, "ask for network='allowlist'"),
        ({"network": "open", "allowed_hosts": ["a.com"]}, "leave the hosts out"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(skilljail.InvalidRequest, match=fault):
        client.run(skill, "scripts/run.py", **options)
    assert fake.calls == []


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("timeout", 3, "a run has no option 'timeout'; ask for a limit with limits=Limits(wall_seconds=3)"),
        (
            "memory_bytes",
            1 << 30,
            "a run has no option 'memory_bytes'; ask for a limit with limits=Limits(memory_bytes=10",
        ),
        ("cwd", "scripts", "a run has no option 'cwd'; it is called working_directory"),
        ("runtime", "host", "a run has no option 'runtime'; there are env, stdin, working_directory, inputs, limits, "),
    ],
)
async def test_unknown_option_is_a_mistake_of_the_program_and_named_with_the_mend(
    client: skilljail.Client, skill: pathlib.Path, option: str, value: Any, message: str
) -> None:
    with pytest.raises(TypeError) as caught:
        client.run(skill, "scripts/run.py", **{option: value})
    assert str(caught.value).startswith(message)
    with pytest.raises(TypeError) as caught:
        await skilljail.AsyncClient(client.address).run(skill, "scripts/run.py", **{option: value})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("run.py", "script: the skill has no file 'run.py'; did you mean 'scripts/run.py'?"),
        ("Scripts/Run.py", "script: the skill has no file 'Scripts/Run.py'; did you mean 'scripts/run.py'?"),
        ("demo/scripts/run.py", "script: the skill has no file 'demo/scripts/run.py'; did you mean 'scripts/run.py'?"),
        (
            "scripts",
            "script: the skill has no file 'scripts': that is a folder; name a file. There are: 'scripts/run.py', "
            "'SKILL.md'",
        ),
        ("scripts/no.py", "script: the skill has no file 'scripts/no.py'. There are: 'scripts/run.py'"),
        ("no/no.py", "script: the skill has no file 'no/no.py'. There are: 'SKILL.md', 'scripts/run.py'"),
    ],
)
def test_script_that_the_skill_does_not_have_is_told_before_anything_is_sent(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, script: str, message: str
) -> None:
    with pytest.raises(skilljail.ScriptNotFound) as caught:
        client.run(skill, script)
    assert (str(caught.value), caught.value.reason) == (message, "SCRIPT_NOT_FOUND")
    assert caught.value.violations == (skilljail.Violation("script_path", message),)
    assert fake.calls == []


def test_list_of_files_in_an_error_is_not_endless(client: skilljail.Client, skill: pathlib.Path) -> None:
    for number in range(50):
        (skill / "scripts" / f"{number}{'x' * 100}.py").touch()
    with pytest.raises(skilljail.ScriptNotFound, match=r", …$") as caught:
        client.run(skill, "scripts/no.py")
    assert len(str(caught.value)) < 1_000


def test_input_may_be_the_script(fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path) -> None:
    assert client.run(skill, "given.py", inputs={"given.py": b"print()"}).ok
    assert fake.requests[-1].script_path == "given.py"


@pytest.mark.parametrize(
    "limits",
    [
        {"wall_seconds": 0},
        {"wall_seconds": -1},
        {"wall_seconds": float("nan")},
        {"wall_seconds": float("inf")},
        {"wall_seconds": 0.0001},
        {"wall_seconds": "30"},
        {"memory_bytes": 1.5},
        {"memory_bytes": True},
        {"memory_bytes": 2**63},
        {"pids": 2**31},
        {"artifact_count": 0},
    ],
)
def test_limits_are_numbers_above_zero(limits: dict[str, Any]) -> None:
    with pytest.raises(skilljail.InvalidRequest) as caught:
        skilljail.Limits(**limits)
    assert caught.value.reason == "LIMIT_INVALID"
    assert f"limits.{next(iter(limits))} must be" in str(caught.value)


def test_limits_go_and_come_unchanged() -> None:
    limits = skilljail.Limits(
        wall_seconds=0.1,
        cpu_seconds=2.5,
        cpus=0.5,
        memory_bytes=1 << 33,
        pids=10,
        disk_bytes=1 << 34,
        disk_inodes=7,
        open_files=8,
        output_bytes=9,
        artifact_count=1,
        artifact_bytes=2,
    )
    assert skilljail.Limits.from_wire(limits.to_wire()) == limits
    assert limits.to_wire().wall_time.nanos == 100_000_000
    assert skilljail.Limits.from_wire(skilljail.Limits().to_wire()) == skilljail.Limits()


def test_everything_that_was_asked_for_is_sent_as_it_is(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path
) -> None:
    argv = ["", "a b", '"q"', "$(id)", "é\n", "--", "-x"]
    client.run(
        str(skill),
        "scripts/run.py",
        tuple(argv),
        env={"A": "b=c", "_E": ""},
        stdin=bytearray(b"in\xff"),
        working_directory="scripts",
        limits=skilljail.Limits(wall_seconds=1.5, memory_bytes=5),
        artifacts=["out/*", "**/*.csv"],
        labels={"team": "a"},
        request_id="my.run-1",
        interpreter="python",
    )
    request = fake.requests[-1]
    assert list(request.argv) == argv
    assert dict(request.env) == {"A": "b=c", "_E": ""}
    assert request.stdin == b"in\xff"
    assert (request.script_path, request.working_directory) == ("scripts/run.py", "scripts")
    assert (request.limits.wall_time.seconds, request.limits.wall_time.nanos) == (1, 500_000_000)
    assert request.limits.memory_bytes == 5
    assert list(request.artifact_patterns) == ["out/*", "**/*.csv"]
    assert dict(request.labels) == {"team": "a"}
    assert (request.request_id, request.interpreter) == ("my.run-1", "python")


def test_nothing_of_the_callers_environment_is_sent(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    client.run(skill, "scripts/run.py")
    assert dict(fake.requests[-1].env) == {}
    assert list(fake.requests[-1].argv) == []


@pytest.mark.parametrize("network", ["allowlist", "ALLOWLIST", skilljail.Network.ALLOWLIST])
async def test_network_reaches_the_request(
    fake: FakeDaemon, client: skilljail.Client, skill: pathlib.Path, network: Any
) -> None:
    client.run(skill, "scripts/run.py", network=network, allowed_hosts=("a.com", "*.b.com:8443"))
    async with skilljail.AsyncClient(client.address) as twin:
        await twin.run(skill, "scripts/run.py", network=network, allowed_hosts=["a.com", "*.b.com:8443"])
    for request in fake.requests[-2:]:
        assert (request.network, request.allowed_hosts) == (run_pb2.NETWORK_ALLOWLIST, ["a.com", "*.b.com:8443"])
    client.run(skill, "scripts/run.py")
    assert (fake.requests[-1].network, fake.requests[-1].allowed_hosts) == (run_pb2.NETWORK_UNSPECIFIED, [])
