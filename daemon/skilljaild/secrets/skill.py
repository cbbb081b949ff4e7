"""What a skill calls itself: `name` in the frontmatter of its SKILL.md. Hostile input."""

import re

import yaml

from skilljaild.errors import Reason, Refusal

__all__ = ["SKILL_FILE", "SKILL_FILE_BYTES_MAX", "skill_name"]

SKILL_FILE = "SKILL.md"
SKILL_FILE_BYTES_MAX = 1024 * 1024
FRONTMATTER_BYTES_MAX = 16 * 1024
BRACKETS_MAX = 256
"""Lists and mappings in one line: the parser takes seconds for thousands of them, one in the other."""
NAME_LENGTH_MAX = 64
_FRONTMATTER = re.compile(rb"\A(?:\xef\xbb\xbf)?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_TEXT = "tag:yaml.org,2002:str"


def skill_name(content: bytes) -> str:
    """The name in SKILL.md. Raises Refusal SKILL_INVALID when there is none that everybody would read the same."""
    frontmatter = _FRONTMATTER.match(content[:FRONTMATTER_BYTES_MAX])
    if frontmatter is None:
        raise _invalid(f"has no frontmatter between two lines of ---, in its first {FRONTMATTER_BYTES_MAX:,} bytes")
    if frontmatter[1].count(b"[") + frontmatter[1].count(b"{") > BRACKETS_MAX:
        raise _invalid(f"has more than {BRACKETS_MAX} opening brackets in its frontmatter")
    try:
        # Nodes alone: no value is made of them, so neither tags nor aliases nor merge keys can do or cost anything.
        root = yaml.compose(frontmatter[1].decode(), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise _invalid("has a frontmatter that is no YAML") from None
    if not isinstance(root, yaml.MappingNode):
        raise _invalid("has a frontmatter that is no mapping")
    names = [value for key, value in root.value if isinstance(key, yaml.ScalarNode) and key.value == "name"]
    if len(names) != 1 or not isinstance(names[0], yaml.ScalarNode) or names[0].tag != _TEXT:
        raise _invalid("does not have one name in its frontmatter, as text")
    name: str = names[0].value
    if not 0 < len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        raise _invalid(f"has a name in its frontmatter that is not 1 to {NAME_LENGTH_MAX} printable characters")
    return name


def _invalid(fault: str) -> Refusal:
    return Refusal(
        Reason.SKILL_INVALID,
        f"{SKILL_FILE} {fault}; secrets are granted to a skill by its name, so correct it",
        field="bundle_digest",
    )
