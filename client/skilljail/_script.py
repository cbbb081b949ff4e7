"""Which file of a skill is to be run."""

from collections.abc import Collection, Sequence

from skilljail._errors import ScriptNotFound, Violation
from skilljail._paths import shown

__all__ = ["check_script"]

_MEANT_MAX = 3
_LISTED_CHARACTERS_MAX = 600


def check_script(script: str, files: Collection[str], directories: Collection[str]) -> None:
    """Raises ScriptNotFound when `script` is none of `files`, with what may have been meant.

    The daemon checks this, too. Here it is told before anything is sent.
    """
    if script in files:
        return
    fault = f"script: the skill has no file {shown(script)}"
    beside = sorted(one for one in files if _folder(one) == _folder(script)) or sorted(files)
    if script in directories:
        inside = sorted(one for one in files if one.startswith(f"{script}/"))
        raise _not_found(f"{fault}: that is a folder; name a file. There are: {_listed([*inside, *beside])}")
    meant = sorted(one for one in files if _name(one) == _name(script))
    if meant:
        raise _not_found(f"{fault}; did you mean {' or '.join(map(shown, meant[:_MEANT_MAX]))}?")
    raise _not_found(f"{fault}. There are: {_listed(beside)}")


def _not_found(message: str) -> ScriptNotFound:
    return ScriptNotFound(message, violations=[Violation("script_path", message)])


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2].lower()


def _listed(paths: Sequence[str]) -> str:
    text = ""
    for path in dict.fromkeys(paths):
        if len(text) > _LISTED_CHARACTERS_MAX:
            return f"{text}, …"
        text += f", {shown(path)}" if text else shown(path)
    return text
