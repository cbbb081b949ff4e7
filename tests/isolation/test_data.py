"""Data: output arrives byte by byte, stays its own run's, and nothing of the host is among what a script can see."""

import concurrent.futures
import hashlib
import json
import secrets
from typing import Any

import grpc
import pytest
import skilljail
from attack_table import Seen
from harness import INTERPRETERS, Daemon, MakeSkill, on, running_daemon
from skilljail import Limits, Outcome
from skilljail.v1 import script_runner_pb2, script_runner_pb2_grpc

from isolation.attacks import Attacks

HOSTILE_BYTES = {
    "not UTF-8": bytes(range(256)),
    "lone surrogates": b"\xed\xa0\x80\xed\xbf\xbf",
    "NUL": b"\0" * 1000,
    "a character cut short": "é".encode()[:1],
    "colours, titles, clipboard": b"\x1b[31mred\x1b]0;title\x07\x1b]52;c;aGk=\x07\x9b2J\x1bP+q\x1b\\",
    "keys that detach": b"\x10\x11" * 500,
    "frames of our own protocol": b"\x26\0\0\0\x12" + json.dumps({"cause": "exited"}).encode() + b"\x29\0\0\0\0",
    "header of the engine's stream": b"\x01\0\0\0\0\0\0\x05hello\x02\0\0\0\xff\xff\xff\xff",
    "carriage returns": b"100%\r 99%\r\n\x08\x08\x7f",
}


@pytest.mark.attack(73, 74, 75, "output of any bytes", expected="the same bytes")
@pytest.mark.parametrize("content", HOSTILE_BYTES.values(), ids=HOSTILE_BYTES.keys())
def test_output_is_carried_byte_by_byte(attacks: Attacks, content: bytes, seen: Seen) -> None:
    """On both streams, unchanged, whatever it would do to a terminal."""
    script = f"import os\nos.write(1, {content!r})\nos.write(2, {content[::-1]!r})\n"
    result = attacks.run(script)
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    assert (result.stdout, result.stderr) == (content, content[::-1])
    assert (result.usage.stdout_bytes, result.usage.stderr_bytes) == (len(content), len(content))
    seen(result.outcome, f"{len(result.stdout)} bytes")


@pytest.mark.attack(85, "twelve runs at once", expected="each its own output")
def test_runs_at_the_same_time_keep_their_output_apart(attacks: Attacks, seen: Seen) -> None:
    """Each gets all of its own, and nothing else."""
    tokens = [secrets.token_hex(8) for _ in range(12)]
    skill = attacks.make_skill(
        {"x.py": "import sys\nfor _ in range(2000): print(sys.argv[1])\nopen(sys.argv[1], 'w').write(sys.argv[1])"}
    )
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        runs = [pool.submit(attacks.client.run, skill, "x.py", [token], artifacts=["*"]) for token in tokens]
        results = [run.result() for run in runs]
    for token, result in zip(tokens, results, strict=True):
        assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
        assert result.stdout == f"{token}\n".encode() * 2000
        assert {one.path: one.content for one in result.artifacts} == {token: token.encode()}
    seen({one.outcome for one in results}, f"{len(results)} runs")


PSEUDO = {"tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "devtmpfs", "ramfs"}
"""File systems that hold nothing of a disk."""
ENGINE_FILES = {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/run/.containerenv"}
"""What engines put into each container, each a file of its own, read-only here."""


@pytest.mark.attack(76, "/proc/self/mountinfo", expected="no folder of the host")
def test_the_mounts_tell_of_nothing_but_the_sandbox(attacks: Attacks, daemon: Daemon, seen: Seen) -> None:
    """No folder of the host is mounted; what the engine itself puts there is in `docs/known-limits.md`."""
    found = attacks.report("""
import json
mounts = [line.split(" - ") for line in open("/proc/self/mountinfo").read().splitlines()]
print(json.dumps([[*before.split()[4:6], after.split()[0], before + after] for before, after in mounts]))
""")
    own = {path: options.split(",") for path, options, _, _ in found if not path.startswith(("/proc", "/sys", "/dev"))}
    places = on(runc={"/work"}, gvisor={"/work", "/tmp"}, why="gVisor mounts a /tmp of its own, to which we give a cap")
    assert {"/", *places} <= set(own) <= {"/", *places} | ENGINE_FILES
    assert {path for path, options in own.items() if "rw" in options} == places
    assert {path for path, _, kind, _ in found if kind not in PSEUDO} <= {"/"} | ENGINE_FILES
    assert str(daemon.directory) not in json.dumps(found)
    seen(set(own) - ENGINE_FILES)


@pytest.mark.attack(76, "variables, names and files of the host", expected="not there")
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_nothing_names_the_daemon_or_its_host(attacks: Attacks, daemon: Daemon, interpreter: str, seen: Seen) -> None:
    """Neither variables, names, command lines nor files of /etc."""
    script = """
import json, os, pathlib, socket
def text(path):
    try: return pathlib.Path(path).read_text(errors="replace")
    except OSError: return ""
print(json.dumps({
    "variables": dict(os.environ), "host": socket.gethostname(), "domain": text("/proc/sys/kernel/domainname").strip(),
    "command of init": text("/proc/1/cmdline").split("\\0")[:-1], "variables of init": text("/proc/1/environ"),
    "files": "".join(text(f"/etc/{name}") for name in ("hostname", "hosts", "resolv.conf", "mtab", "fstab")),
    "cgroup": text("/proc/self/cgroup") + text("/proc/1/cgroup"),
}))
"""
    found = attacks.report(script, interpreter)
    assert found["host"] == "sandbox"
    assert found["domain"] in {"", "(none)"}
    assert found["command of init"][:3] == ["/usr/bin/python3", "-I", "-S"]
    assert found["command of init"][3].startswith("/opt/skilljail/init")
    closed = on(runc=True, gvisor=False, why="releases before /proc looked at prctl(2) show them; they hold no secret")
    assert not closed or found["variables of init"] == ""
    everything = json.dumps({name: value for name, value in found.items() if name != "command of init"})
    for secret in (str(daemon.directory), daemon.owner, "DOCKER", "SKILLJAIL"):
        assert secret not in everything, secret
    seen(found["host"])


@pytest.mark.attack(78, "arguments with quotes, newlines, 100 kB", expected="passed literally")
def test_arguments_variables_and_input_are_passed_as_they_are(attacks: Attacks, seen: Seen) -> None:
    """Nothing is split, expanded, trimmed or interpreted; as large as they may be."""
    words = [
        "",
        " ",
        "a b",
        "'",
        '"',
        "$(id)",
        "`id`",
        "$HOME",
        "*",
        "\n",
        "\t\\n",
        "-rf",
        "--",
        ";rm -rf /",
        "é\U0001f600",
        "x" * 100_000,
    ]
    variables = {f"V{number}": word for number, word in enumerate(words)} | {"_": "underscore", "LONG": "y" * 100_000}
    variables |= {f"MANY{number}": str(number) for number in range(200)}
    stdin = bytes(range(256)) * 4_000
    script = """
import hashlib, json, os, sys
print(json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in json.loads(os.environ["NAMES"])},
    hashlib.sha256(sys.stdin.buffer.read()).hexdigest()]))
"""
    found = attacks.report(script, argv=words, env=variables | {"NAMES": json.dumps(list(variables))}, stdin=stdin)
    assert found == [words, variables, hashlib.sha256(stdin).hexdigest()]
    seen(f"{len(found[0])} the same")


@pytest.mark.attack(85, "requests beyond each bound", expected="INVALID_ARGUMENT or RESOURCE_EXHAUSTED")
def test_a_request_that_is_too_large_is_refused_and_others_are_served(
    attacks: Attacks, daemon: Daemon, seen: Seen
) -> None:
    """Beyond each bound, and beyond what a message may be at all."""
    small = script_runner_pb2.RunScriptRequest(script_path="x.py")
    small.files.add(path="SKILL.md", content=b"---\nname: x\ndescription: x\n---\n")
    small.files.add(path="x.py", content=b"print(1)")
    requests = []
    for change in (
        lambda one: one.argv.extend(["x" * 131_072]),
        lambda one: one.argv.extend(["x" * 100_000] * 11),
        lambda one: one.argv.extend(["x"] * 1_000_000),
        lambda one: one.env.update({f"N{number}": "" for number in range(257)}),
        lambda one: setattr(one, "stdin", bytes(4 * 1024 * 1024 + 1)),
        lambda one: setattr(one, "stdin", bytes(20 * 1024 * 1024)),
        lambda one: [one.files.add(path=f"f{number}", content=b"") for number in range(300)],
        lambda one: one.artifact_patterns.extend(["*"] * 65),
        lambda one: one.labels.update({f"n{number}": "" for number in range(33)}),
        lambda one: setattr(one, "request_id", "x" * 129),
    ):
        request = script_runner_pb2.RunScriptRequest()
        request.CopyFrom(small)
        change(request)
        requests.append(request)
    with grpc.insecure_channel(daemon.address) as channel:
        stub = script_runner_pb2_grpc.ScriptRunnerServiceStub(channel)
        for request in requests:
            with pytest.raises(grpc.RpcError) as caught:
                next(stub.RunScript(request))
            assert caught.value.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
            seen(caught.value.code().name)
    assert attacks.run("print('served')").stdout == b"served\n"


@pytest.mark.attack(83, "random numbers of three runs", expected="all different")
def test_random_numbers_differ_from_run_to_run(attacks: Attacks, seen: Seen) -> None:
    """The kernel's, and those that an interpreter seeds itself."""
    script = """
import json, os, random, secrets, uuid
print(json.dumps([os.urandom(16).hex(), secrets.token_hex(16), random.random(), str(uuid.uuid4()), hash("x"),
    open(path).read() if os.path.exists(path := "/proc/sys/kernel/random/uuid") else os.urandom(9).hex()]))
"""
    runs = [attacks.report(script) for _ in range(3)]
    for values in zip(*runs, strict=True):
        assert len(set(values)) == 3
        seen(f"{len(set(values))} different")


@pytest.mark.attack(81, "a secret in the daemon's log", expected="not there")
def test_nothing_that_a_caller_sends_or_a_script_writes_is_logged(make_skill: MakeSkill, seen: Seen) -> None:
    """Not even at the most talkative level, and whatever goes wrong."""
    marker = secrets.token_hex(12)
    script = f"""
import os, sys
open('{marker}-file', 'w').write('{marker}')
print('{marker}', file=sys.stderr)
print(sys.stdin.read())
"""
    with running_daemon() as own, skilljail.Client(own.address) as client:
        skill = make_skill({"x.py": script, "y.py": script + f"os.kill(1, 9)\nraise SystemExit('{marker}')"})
        options: dict[str, Any] = {"env": {"TOKEN": marker}, "stdin": marker.encode(), "artifacts": ["*"]}
        for name, limits in (("x.py", Limits()), ("y.py", Limits()), ("y.py", Limits(output_bytes=10))):
            result = client.run(skill, name, [marker], limits=limits, **options)
            assert result.usage.stdout_bytes + result.usage.stderr_bytes >= 10
        with pytest.raises(skilljail.InvalidRequest):
            client.run(skill, "x.py", env={"TOKEN": f"{marker}\0"})
        log = own.log.read_text()
        kept = b"".join(path.read_bytes() for path in (own.directory / "state").rglob("*") if path.is_file())
    assert log.count("run finished") == 3
    assert marker not in log
    assert marker.encode() in kept  # the skill itself is, of course
    seen(f"{log.count(marker)} times")
