"""Tests that a page of the documentation names, and whether they are there."""

import dataclasses
import pathlib
import re

__all__ = ["ROOT", "NamedTest", "named_tests"]

ROOT = pathlib.Path(__file__).parent.parent
_NAME = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")


@dataclasses.dataclass(frozen=True, order=True)
class NamedTest:
    """A file below `tests/`, and one test in it, or "" for the whole file."""

    file: str
    test: str

    def exists(self) -> bool:
        """Whether there is such a file, and such a test in it."""
        path = ROOT / "tests" / self.file
        if not path.is_file():
            return False
        return not self.test or re.search(rf"^(async )?def {self.test}\(", path.read_text(), re.MULTILINE) is not None


def named_tests(text: str) -> list[NamedTest]:
    """Each test that a text names, once."""
    return sorted({NamedTest(file.removeprefix("tests/"), test) for file, test in _NAME.findall(text)})
