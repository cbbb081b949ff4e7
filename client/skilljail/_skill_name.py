"""The name in the frontmatter of a SKILL.md, without a YAML parser: the plain forms that the specification allows."""

import re

__all__ = ["skill_name"]

_FRONTMATTER = re.compile(r"\A\ufeff?---[ \t]*\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"""^name:[ \t]+(?P<quote>["']?)(?P<name>[a-z0-9-]{1,64})(?P=quote)[ \t]*(?:#.*)?$""", re.MULTILINE)
_ANY_NAME = re.compile(r"""^["']?name["']?[ \t]*:""", re.MULTILINE)


def skill_name(text: str) -> str | None:
    """The name, or None when there is none, more than one, or one that only a YAML parser could read."""
    frontmatter = _FRONTMATTER.match(text.replace("\r\n", "\n"))
    if frontmatter is None or len(_ANY_NAME.findall(frontmatter[1])) != 1:
        return None
    name = _NAME.search(frontmatter[1])
    return name["name"] if name else None
