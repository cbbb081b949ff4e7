"""The tree's generated code is what the contract says."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def check(tree: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Runs `tools/generate-proto --check` of a tree."""
    return subprocess.run(
        [str(tree / "tools" / "generate-proto"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        # The development environment's own uv: the copy of a tree has none.
        env=os.environ | {"UV": str(pathlib.Path(sys.executable).parent / "uv")},
    )


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of what the check looks at."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "generate-proto", tmp_path / "tools")
    for folder in ("proto", "client/skilljail/v1"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_trees_code_is_fresh() -> None:
    done = check(ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_contract_that_was_changed_makes_the_code_stale(tree: pathlib.Path) -> None:
    contract = tree / "proto" / "skilljail" / "v1" / "run.proto"
    contract.write_text(contract.read_text().replace("OUTCOME_SHUTDOWN = 11;", "OUTCOME_STOPPED = 11;"))
    done = check(tree)
    assert done.returncode == 1
    assert "OUTCOME_STOPPED" in done.stdout
    assert done.stderr == "The generated code is stale: run 'make generate' and commit what it writes.\n"


def test_code_that_was_changed_by_hand_is_stale_and_left_as_it_is(tree: pathlib.Path) -> None:
    code = tree / "client" / "skilljail" / "v1" / "limits_pb2.py"
    changed = code.read_text() + "# by hand\n"
    code.write_text(changed)
    done = check(tree)
    assert (done.returncode, "# by hand" in done.stdout) == (1, True)
    assert code.read_text() == changed


def test_a_file_that_is_missing_is_stale(tree: pathlib.Path) -> None:
    (tree / "client" / "skilljail" / "v1" / "run_pb2.pyi").unlink()
    done = check(tree)
    assert (done.returncode, "run_pb2.pyi" in done.stdout) == (1, True)


def test_the_generated_code_asks_no_runtime_for_its_version() -> None:
    """Else code of one major version would refuse a runtime two majors newer."""
    for path in (ROOT / "client" / "skilljail" / "v1").glob("*.py"):
        text = path.read_text()
        assert "import runtime_version" not in text  # a field of the contract has that name, too
        assert "ValidateProtobufRuntimeVersion" not in text
        assert "GRPC_GENERATED_VERSION" not in text
