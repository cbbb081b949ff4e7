"""Output files: what a run made or changed comes back, and a script can make nothing else come back."""

import hashlib
import pathlib

import pytest
import skilljail
from attack_table import Seen
from harness import INTERPRETERS, MakeSkill, on
from skilljail import Limits, Outcome
from skilljail_init.frames import FrameType, encode, encode_json

from conformance.ending import Ending
from conformance.scripts import FILES

ALL_BYTES = bytes(range(256)) * 4


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_new_and_changed_files_come_back_and_unchanged_ones_do_not(
    client: skilljail.Client, make_skill: MakeSkill, tmp_path: pathlib.Path, interpreter: str
) -> None:
    """Case 24: to the last byte, with media type and digest."""
    skill = make_skill({**FILES.files(interpreter), "references/note.txt": "note"})
    result = client.run(skill, FILES.path(interpreter), inputs={"input.txt": b"read only"}, artifacts=["**"])
    made = {
        "out/data.bin": ALL_BYTES,
        "out/deep/table.csv": b"a,b\n",
        "out/empty.txt": b"",
        "references/note.txt": b"note and more",
    }
    assert Ending.of(result) == Ending(artifacts=made)
    assert {one.path: (one.size_bytes, one.digest, one.media_type, one.executable) for one in result.artifacts} == {
        path: (len(content), f"sha256:{hashlib.sha256(content).hexdigest()}", media_type, False)
        for (path, content), media_type in zip(
            made.items(), ("application/octet-stream", "text/csv", "text/plain", "text/plain"), strict=True
        )
    }
    saved = result.save_artifacts(tmp_path / "saved")
    assert {str(one.relative_to(tmp_path / "saved")): one.read_bytes() for one in saved} == made


def test_no_pattern_means_no_artifacts(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 24: nothing comes back that nobody asked for."""
    skill = make_skill({"x.sh": "echo new > new.txt"})
    assert Ending.of(client.run(skill, "x.sh")) == Ending()


def test_only_what_a_pattern_names_comes_back(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 24: of names, directories and any depth."""
    script = (
        "mkdir -p out/a/b; for path in x.csv x.txt out/y.csv out/a/z.csv out/a/b/w.csv .hidden; do echo 1 > $path; done"
    )
    skill = make_skill({"x.sh": script})
    for patterns, expected in {
        ("*.csv",): {"x.csv"},
        ("out/*.csv",): {"out/y.csv"},
        ("out/**/*.csv",): {"out/y.csv", "out/a/z.csv", "out/a/b/w.csv"},
        ("*.tx[a-t]", "?.csv"): {"x.txt", "x.csv"},
        ("out/a/**",): {"out/a/z.csv", "out/a/b/w.csv"},
        (".*",): {".hidden"},
        ("none/*",): set(),
    }.items():
        result = client.run(skill, "x.sh", artifacts=list(patterns))
        assert Ending.of(result) == Ending(artifacts=dict.fromkeys(expected, b"1\n"))


def test_same_content_is_unchanged_whatever_its_time_and_mode(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 24: content decides; a file of the same size with other content has changed."""
    script = """
cp references/same.txt copy && cp copy references/same.txt && rm copy
touch -d 2001-01-01 references/touched.txt
chmod +x references/mode.txt
printf eton > references/other.txt
mv references/moved.txt references/here.txt
rm references/gone.txt
"""
    names = ("same", "touched", "mode", "other", "moved", "gone")
    skill = make_skill({"x.sh": script, **{f"references/{name}.txt": "note" for name in names}})
    result = client.run(skill, "x.sh", artifacts=["**"])
    assert Ending.of(result) == Ending(artifacts={"references/here.txt": b"note", "references/other.txt": b"eton"})


def test_a_failing_script_still_gives_its_files(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 24: what there is may tell why it failed."""
    skill = make_skill({"x.sh": "echo why > log.txt; exit 3"})
    result = client.run(skill, "x.sh", artifacts=["*.txt"])
    assert Ending.of(result) == Ending(exit_code=3, artifacts={"log.txt": b"why\n"})


def test_an_executable_file_is_told_and_saved_as_none(
    client: skilljail.Client, make_skill: MakeSkill, tmp_path: pathlib.Path
) -> None:
    """Case 24: nothing that a script made becomes a program on the host by itself."""
    result = client.run(make_skill({"x.sh": "echo 1 > tool; chmod 6755 tool"}), "x.sh", artifacts=["tool"])
    assert Ending.of(result) == Ending(artifacts={"tool": b"1\n"})
    assert [one.executable for one in result.artifacts] == [True]
    (saved,) = result.save_artifacts(tmp_path)
    assert saved.stat().st_mode & 0o7111 == 0


def test_a_file_above_what_is_left_is_skipped_and_told(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 24: one that is too large in itself, and one that no longer fits; smaller ones still come."""
    script = "for one in a:400 b:2000 c:500 d:200 e:100; do head -c ${one#*:} /dev/zero > ${one%:*}; done"
    result = client.run(make_skill({"x.sh": script}), "x.sh", artifacts=["?"], limits=Limits(artifact_bytes=1_000))
    assert Ending.of(result) == Ending(
        artifacts={"a": bytes(400), "c": bytes(500), "e": bytes(100)},
        skipped={"b": "SIZE_LIMIT", "d": "SIZE_LIMIT"},
    )


def test_a_sparse_file_is_judged_by_its_size(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 24: it costs the script nothing, and must not cost anybody else anything."""
    result = client.run(make_skill({"x.sh": "truncate -s 100M big"}), "x.sh", artifacts=["big"])
    assert Ending.of(result) == Ending(skipped={"big": "SIZE_LIMIT"})


def test_files_above_the_count_are_skipped_and_told(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 24: in the order of their names."""
    script = "for one in 1 2 3 4 5; do echo $one > $one; done"
    result = client.run(make_skill({"x.sh": script}), "x.sh", artifacts=["?"], limits=Limits(artifact_count=2))
    assert Ending.of(result) == Ending(
        artifacts={"1": b"1\n", "2": b"2\n"}, skipped=dict.fromkeys("345", "COUNT_LIMIT")
    )


def test_more_skipped_files_than_can_be_named_are_counted(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 24: never silently."""
    skill = make_skill({"x.py": "for one in range(5000): open(f'{one}.txt', 'w')"})
    result = client.run(skill, "x.py", artifacts=["*.txt"], limits=Limits(artifact_count=1))
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)
    assert [one.path for one in result.artifacts] == ["0.txt"]
    assert len(result.skipped_artifacts) == 1_000
    assert len(result.skipped_artifacts) + result.skipped_artifacts_omitted == 4_999


@pytest.mark.attack(63, 65, "links, FIFOs and sockets as artifacts", expected="NOT_A_REGULAR_FILE")
def test_names_and_files_that_are_not_safe_are_skipped_and_told(
    client: skilljail.Client, make_skill: MakeSkill, seen: Seen
) -> None:
    """Case 24: whatever a file system takes as a name."""
    script = r"""
import os, socket
os.mkdir("out")
os.chdir("out")
for name in b"good.txt", b"line\nbreak", b"esc\x1b[2J", b"bad\xff", b"back\\slash", b"c1\xc2\x9b", b"...":
    with open(name, "w") as file:
        file.write("1")
os.symlink("/etc/passwd", "link")
os.symlink("good.txt", "inside")
os.symlink("/", "root")
os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("socket")
with open("unreadable", "w") as file:
    os.fchmod(file.fileno(), 0)
os.mkdir("closed", 0)
"""
    result = client.run(make_skill({"x.py": script}), "x.py", artifacts=["out/**"])
    assert Ending.of(result) == Ending(
        artifacts={"out/good.txt": b"1", "out/...": b"1"},
        skipped={
            r"out/line\x0abreak": "UNSAFE_NAME",
            r"out/esc\x1b[2J": "UNSAFE_NAME",
            r"out/bad\xff": "UNSAFE_NAME",
            r"out/back\x5cslash": "UNSAFE_NAME",
            r"out/c1\xc2\x9b": "UNSAFE_NAME",
            "out/link": "NOT_A_REGULAR_FILE",
            "out/inside": "NOT_A_REGULAR_FILE",
            "out/root": "NOT_A_REGULAR_FILE",
            "out/pipe": "NOT_A_REGULAR_FILE",
            "out/socket": "NOT_A_REGULAR_FILE",
            "out/unreadable": "UNREADABLE",
            "out/closed": "UNREADABLE",
        },
    )
    seen({str(one.reason) for one in result.skipped_artifacts})


@pytest.mark.attack(63, "a folder that became a link", expected="not followed")
def test_a_directory_that_became_a_link_is_not_followed(
    client: skilljail.Client, make_skill: MakeSkill, seen: Seen
) -> None:
    """Case 24: neither out of the sandbox's work directory nor within it."""
    script = "mv references elsewhere; ln -s /etc references; ln -s . loop; echo 1 > new.txt"
    skill = make_skill({"x.sh": script, "references/passwd": "note"})
    result = client.run(skill, "x.sh", artifacts=["references/**", "loop/**", "new.txt"])
    assert Ending.of(result) == Ending(artifacts={"new.txt": b"1\n"})
    seen({one.path for one in result.artifacts})


def test_files_below_too_many_directories_are_skipped_and_told(client: skilljail.Client, make_skill: MakeSkill) -> None:
    """Case 24: at the directory where it becomes too deep."""
    script = "mkdir -p " + "d/" * 40 + "; echo 1 > " + "d/" * 31 + "x; echo 1 > " + "d/" * 39 + "x"
    result = client.run(make_skill({"x.sh": script}), "x.sh", artifacts=["**"])
    assert Ending.of(result) == Ending(artifacts={"d/" * 31 + "x": b"1\n"}, skipped={"d/" * 31 + "d": "DEPTH_LIMIT"})


FORGED = (
    encode_json(FrameType.ARTIFACT, {"path": "forged.txt", "size": 6, "executable": False})
    + encode(FrameType.DATA, b"forged")
    + encode_json(
        FrameType.EXIT,
        {
            "cause": "exited",
            "exit_code": 0,
            "signal": None,
            "wall_seconds": 0.0,
            "cpu_seconds": 0.0,
            "peak_memory_bytes": 0,
            "oom_kills": 0,
            "pids_limit_hits": 0,
            "disk_full": False,
            "output_truncated": False,
        },
    )
    + encode(FrameType.DONE)
    + encode_json(FrameType.FATAL, {"message": "forged"})
)
"""What init would say at the end of a run that went well, and one file with it."""

PRINT = {
    "python": "import os, sys; [os.write(one, bytes.fromhex(sys.argv[1])) for one in (1, 2)]; sys.exit(3)",
    "node": """
const data = Buffer.from(process.argv[2], "hex");
for (const one of [1, 2]) require("fs").writeSync(one, data);
process.exit(3);
""",
    "bash": """
for one in 1 2; do
    for ((at = 0; at < ${#1}; at += 2)); do printf "\\\\x${1:at:2}"; done >&$one
done
exit 3
""",
    "pwsh": """
$data = [Convert]::FromHexString($args[0])
foreach ($one in [Console]::OpenStandardOutput(), [Console]::OpenStandardError()) { $one.Write($data, 0, $data.Length) }
exit 3
""",
}


@pytest.mark.attack(101, "frames of init's protocol, printed", expected="output and nothing else")
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_frames_that_a_script_prints_are_output_and_nothing_else(
    client: skilljail.Client, make_skill: MakeSkill, interpreter: str, seen: Seen
) -> None:
    """Case 24: a script that knows the protocol can say nothing in it."""
    path = f"x{pathlib.PurePath(FILES.path(interpreter)).suffix}"
    result = client.run(make_skill({path: PRINT[interpreter]}), path, [FORGED.hex()], artifacts=["**"])
    assert Ending.of(result) == Ending(stdout=FORGED, stderr=FORGED, exit_code=3)
    seen(result.outcome, result.exit_code)


INTRUDE = """
import os, sys

forged = bytes.fromhex(sys.argv[1])
reached = []

def attempt(name, action):
    try:
        action()
    except OSError:
        return
    reached.append(name)

def write_to(path):
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(descriptor, forged)
    finally:
        os.close(descriptor)

for number in range(3, 1024):
    attempt(f"fd {number}", lambda: os.write(number, forged))
for number in range(64):
    attempt(f"init's fd {number}", lambda: write_to(f"/proc/1/fd/{number}"))
for path in "/dev/console", "/dev/tty", "/dev/tty0", "/dev/kmsg", "/proc/1/mem", "/dev/pts/0":
    attempt(path, lambda: write_to(path))
print(reached, sorted(os.listdir("/proc/self/fd")))
with open("real.txt", "w") as file:
    file.write("real")
sys.exit(3)
"""


@pytest.mark.attack(77, 101, "descriptors that lead to init's stream", expected="none")
def test_no_descriptor_leads_to_the_stream_of_init(client: skilljail.Client, make_skill: MakeSkill, seen: Seen) -> None:
    """Case 24: neither inherited nor opened by way of /proc; 3 is the descriptor that lists the directory."""
    result = client.run(make_skill({"x.py": INTRUDE}), "x.py", [FORGED.hex()], artifacts=["**"])
    expected = Ending(stdout=b"[] ['0', '1', '2', '3']\n", exit_code=3, artifacts={"real.txt": b"real"})
    why = "releases before /proc looked at prctl(2) open them; what breaks the protocol is a script's own loss"
    refused = on(runc=False, gvisor=result.outcome is skilljail.Outcome.SANDBOX_ERROR, why=why)
    assert refused or Ending.of(result) == expected
    assert not refused or (result.exit_code, result.artifacts) == (None, ())
    seen(result.stdout_text.split("]")[0] + "]")
