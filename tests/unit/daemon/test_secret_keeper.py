"""Grants, and the sources of values: files, the daemon's environment, commands."""

import asyncio
import contextlib
import os
import pathlib
import sys
import time
from typing import Any

import pydantic
import pytest
import structlog
from harness import wait_until
from skilljaild.errors import Reason, Refusal
from skilljaild.secrets import keeper as module
from skilljaild.secrets.config import SecretConfig
from skilljaild.secrets.keeper import Grantee, SecretKeeper, SecretsError

DIGEST = "sha256:" + "d" * 64
ME = Grantee("local", "web-search", DIGEST)
GRANT = {"tenant": "local", "skill": "web-search", "bundle_digest": DIGEST}
VALUE = "canary-value-1"


def secret(**fields: Any) -> SecretConfig:
    """A secret that is granted to ME."""
    return SecretConfig.model_validate({"variable": "TOKEN", "grants": [GRANT]} | fields)


def keeping(**fields: Any) -> SecretKeeper:
    """A keeper of one secret, `it`."""
    return SecretKeeper({"it": secret(**fields)})


def python(code: str) -> list[str]:
    """A command."""
    return [sys.executable, "-c", code]


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file with the value, as it should be."""
    path = tmp_path / "token"
    path.write_text(VALUE + "\n")
    path.chmod(0o600)
    return path


def values(keeper: SecretKeeper, *names: str) -> dict[str, pydantic.SecretStr]:
    """Values by variable."""
    return asyncio.run(keeper.read(names))


def value(keeper: SecretKeeper) -> str:
    """The value of `it`."""
    (one,) = values(keeper, "it").values()
    assert VALUE not in repr(one) + str(one)
    return one.get_secret_value()


def cause(keeper: SecretKeeper) -> str:
    """Why `it` has no value: what the log says, after a refusal that says nothing but the name."""
    with structlog.testing.capture_logs() as lines, pytest.raises(Refusal) as caught:
        values(keeper, "it")
    assert caught.value.reason is Reason.SECRET_UNAVAILABLE
    assert caught.value.message == (
        "secrets: 'it': the operator's source gave no usable value; the daemon's log tells its operator why"
    )
    assert caught.value.__cause__ is None
    (line,) = lines
    assert "canary" not in str(line) + str(caught.value.metadata)
    return str(line["error"])


def alive(group: str) -> list[str]:
    """The processes of a group that are more than an entry that nobody has waited for yet."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = path.read_text().rpartition(") ")[2].split()[:3]
            if its_group == group and state not in "ZX":
                found.append(path.parent.name)
    return found


# Grants


@pytest.mark.parametrize(
    "grantee",
    [
        Grantee("cn:local", "web-search", DIGEST),
        Grantee("", "web-search", DIGEST),
        Grantee("local", "web-searc", DIGEST),
        Grantee("local", "Web-search", DIGEST),
        Grantee("local", "web-search", "sha256:" + "e" * 64),
        Grantee("local", "web-search", ""),
    ],
)
def test_tenant_name_and_digest_must_all_be_those_of_one_grant(grantee: Grantee) -> None:
    other = [
        {"tenant": "cn:a", "skill": "other", "bundle_digest": "sha256:" + "e" * 64},
        {"tenant": "cn:b", "skill": "web-searc", "bundle_digest": "sha256:" + "f" * 64},
    ]
    keeper = keeping(command=python("print('x' * 9)"), grants=[GRANT, *other])
    keeper.check(["it"], ME)
    with pytest.raises(Refusal) as caught:
        keeper.check(["it"], grantee)
    assert caught.value.reason is Reason.SECRET_NOT_GRANTED


def test_a_secret_that_there_is_and_one_that_there_is_not_are_told_alike() -> None:
    keeper = keeping(command=["x"])
    stranger = Grantee('cn:a"b', "web-search", DIGEST)
    texts = []
    for name in ("it", "no"):
        with pytest.raises(Refusal) as caught:
            keeper.check([name], stranger)
        texts.append(caught.value.message)
        assert caught.value.metadata["tenant"] == 'cn:a"b'
    assert texts[0] == texts[1].replace("'no'", "'it'").replace(".no.", ".it.")
    assert texts[0] == (
        "secrets: 'it' is not granted to this skill of yours. Its operator grants it with a table "
        rf'[[secrets.it.grants]] of tenant = "cn:a\"b", skill = "web-search", bundle_digest = "{DIGEST}".'
    )


def test_two_secrets_of_one_variable_are_refused() -> None:
    keeper = SecretKeeper({"a": secret(command=["x"]), "b": secret(command=["y"])})
    keeper.check(["a"], ME)
    with pytest.raises(Refusal, match="'a' and 'b' are both the variable TOKEN") as caught:
        keeper.check(["a", "b"], ME)
    assert caught.value.reason is Reason.REQUEST_INVALID


# Files


def test_a_file_is_read_anew_each_time(file: pathlib.Path) -> None:
    keeper = keeping(file=str(file))
    assert value(keeper) == VALUE
    file.write_bytes(b"canary-value-2\r\n")
    assert value(keeper) == "canary-value-2"
    file.write_bytes(b" canary\n\n")
    assert value(keeper) == " canary\n"  # one line break, and no more
    assert values(keeper) == {}


def test_a_link_is_followed_and_what_it_leads_to_is_checked(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    keeper = keeping(file=str(link))
    assert value(keeper) == VALUE
    open_to_all = tmp_path / "open"
    open_to_all.write_text(VALUE)
    open_to_all.chmod(0o644)
    link.unlink()
    link.symlink_to(open_to_all)
    assert cause(keeper) == f"{link} can be read or changed by others; chmod 600 it"


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o644, 0o666, 0o601])
def test_a_file_that_others_may_read_stops_the_daemon_and_later_the_run(file: pathlib.Path, mode: int) -> None:
    keeper = keeping(file=str(file))
    file.chmod(mode)
    with pytest.raises(SecretsError, match=r"^secrets\.it: .*/token can be read or changed by others; chmod 600 it$"):
        keeping(file=str(file))
    assert "chmod 600" in cause(keeper)
    file.chmod(0o640)
    assert value(keeping(file=str(file))) == VALUE


def test_a_file_of_another_user_is_refused(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = keeping(file=str(file))
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda one: os.stat_result([*real(one)[:4], 12_345, *real(one)[5:]]))
    assert "belongs to another user" in cause(keeper)


def test_what_is_no_file_does_not_hold_the_daemon_up(file: pathlib.Path) -> None:
    keeper = keeping(file=str(file))
    file.unlink()
    assert cause(keeper) == f"there is no file {file}"
    os.mkfifo(file, 0o600)
    assert cause(keeper) == f"{file} is no regular file"
    with pytest.raises(SecretsError, match="no regular file"):
        keeping(file=str(file))
    file.unlink()
    late = keeping(file=str(file))
    assert list(late.absent.values()) == [str(file)]
    file.write_text(VALUE)
    file.chmod(0o600)
    assert value(late) == VALUE


LENGTH = "the value is not 8 to 32,768 bytes long"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", LENGTH),
        (b"canary!\n", LENGTH),
        (b"x" * 32_769, LENGTH),
        (b"x" * 10_000_000, LENGTH),
        (b"canary\0canary", "NUL"),
        (b"canary\xffcanary", "not UTF-8"),
    ],
)
def test_a_value_that_no_variable_can_hold_is_refused(file: pathlib.Path, content: bytes, fault: str) -> None:
    file.write_bytes(content)
    assert fault in cause(keeping(file=str(file)))


@pytest.mark.parametrize("content", ["x" * 8, "x" * 32_768, "ä" * 4, "two\nlines\n"])
def test_values_at_the_bounds_are_taken(file: pathlib.Path, content: str) -> None:
    file.write_text(content + "\n")
    assert value(keeping(file=str(file))) == content


# The daemon's environment


def test_a_variable_is_taken_out_of_the_daemons_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_SOURCE", VALUE)
    one = secret(environment="CANARY_SOURCE")
    keeper = SecretKeeper({"it": one, "also": one.model_copy(update={"variable": "ALSO"})})
    assert "CANARY_SOURCE" not in os.environ
    assert value(keeper) == VALUE
    assert {name: one.get_secret_value() for name, one in values(keeper, "it", "also").items()} == {
        "TOKEN": VALUE,
        "ALSO": VALUE,
    }
    assert VALUE not in repr(vars(keeper))


def test_a_variable_that_is_not_there_or_no_value_stops_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SecretsError, match=r"secrets\.it: the daemon's environment has no variable CANARY_SOURCE"):
        keeping(environment="CANARY_SOURCE")
    monkeypatch.setenv("CANARY_SOURCE", "canary")
    with pytest.raises(SecretsError, match=r"secrets\.it: CANARY_SOURCE: the value is not 8 to") as caught:
        keeping(environment="CANARY_SOURCE")
    assert "canary" not in str(caught.value).replace("CANARY", "")


# Commands


def test_a_command_sees_little_and_its_output_is_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_SOURCE", VALUE)
    command = python("import os; print(sorted(os.environ), os.getcwd(), os.read(0, 9))")
    found = value(keeping(command=command))
    names, rest = found.split("] ")
    assert set(eval(names + "]")) <= {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_CTYPE", "XDG_RUNTIME_DIR"}
    assert rest == "/ b''"


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("raise SystemExit('canary')", "the command ended with status 1; try it by hand, as the daemon's user"),
        ("print('canary-value'); raise SystemExit(3)", "the command ended with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "the command ended with status -9"),
        ("while True: print('canary' * 1000)", "the command wrote more than 65,536 bytes"),
        ("print('canary', end='')", LENGTH),
        ("pass", LENGTH),
    ],
)
def test_a_command_that_fails_or_floods_gives_no_value(
    code: str, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert fault in cause(keeping(command=python(code)))
    assert capfd.readouterr() == ("", "")


def test_a_command_that_is_not_there_is_told() -> None:
    assert cause(keeping(command=["/no/such/program"])) == ("the command cannot be started: No such file or directory")


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(600)",
        "import os, time; os.close(1); time.sleep(600)",
        "import os, time; print('canary-value'); os.fork() or time.sleep(600)",
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])",
    ],
    ids=["hangs", "closes its output", "leaves a child", "leaves a program"],
)
def test_a_command_that_hangs_is_killed_with_its_children(
    code: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_SECONDS", 1.0)
    group = tmp_path / "group"
    keeper = keeping(command=python(f"import os; open({str(group)!r}, 'w').write(str(os.getpid()))\n{code}"))
    started = time.monotonic()
    assert cause(keeper) == "the command did not end in time and was killed"
    assert time.monotonic() - started < 15
    wait_until(lambda: not alive(group.read_text()))


def test_a_source_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, file: pathlib.Path) -> None:
    monkeypatch.setattr(module, "READ_SECONDS", 0.1)
    monkeypatch.setattr(module, "GIVE_UP_SECONDS", 0.1)
    monkeypatch.setattr(module, "from_file", lambda _: time.sleep(2))
    with pytest.raises(Refusal, match="gave no usable value") as caught:
        values(keeping(file=str(file)), "it")
    assert caught.value.reason is Reason.SECRET_UNAVAILABLE
