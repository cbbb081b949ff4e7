"""What is wrong with a setting, in the words of docs/configuration.md instead of the library's."""

import difflib
import json
import typing
from collections.abc import Mapping

import pydantic

__all__ = ["closest", "settings_of", "told"]

CLOSE = 0.7
"""How much two names must have in common for one to be offered for the other, from 0 to 1."""
VALUE_MAX = 80
"""Characters of a wrong value that are repeated."""

_BOUNDS = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}
_KINDS = {
    "bool": "true or false",
    "dict": "a table of tables, one for each name",
    "byte": 'a number of bytes, or text such as "256MiB"',
    "finite": "a finite number",
    "float": "a number",
    "int": "a whole number",
    "path": "a path",
    "string": "text",
    "tuple": "a list",
}
"""What a value must be, by the first word of the library's name for the fault."""


_QUIET = frozenset({"secrets"})
"""Tables whose wrong values are not repeated: a secret may have been put there by mistake."""
ANY = "*"
"""Stands for the name of a table among several that the user names, and for a number in a list of tables."""


def settings_of(model: type[pydantic.BaseModel], table: str = "") -> dict[str, tuple[str, ...]]:
    """Every dotted name below a table; those of tables come with the names in them, the others with none."""
    found: dict[str, tuple[str, ...]] = {}
    for name, field in model.model_fields.items():
        dotted = f"{table}.{name}" if table else name
        inner = _model_of(field.annotation)
        if inner and typing.get_origin(field.annotation) in {dict, tuple}:
            found[dotted] = ()
            dotted = f"{dotted}.{ANY}"
        found[dotted] = tuple(inner.model_fields) if inner else ()
        if inner:
            found |= settings_of(inner, dotted)
    return found


def _key(name: str, settings: Mapping[str, tuple[str, ...]]) -> str:
    """A name as `settings_of` has it: with ANY where the user chose a name."""
    key = ""
    for part in name.split("."):
        exact, chosen = f"{key}.{part}".lstrip("."), f"{key}.{ANY}"
        key = chosen if exact not in settings and chosen in settings else exact
    return key


def _model_of(annotation: object) -> type[pydantic.BaseModel] | None:
    """The table that a field is, also where it may be left out."""
    for one in (annotation, *typing.get_args(annotation)):
        if isinstance(one, type) and issubclass(one, pydantic.BaseModel):
            return one
    return None


def closest(name: str, settings: Mapping[str, tuple[str, ...]]) -> str:
    """That there is no such setting, and which one may be meant. `settings`: from `settings_of`."""
    key = _key(name, settings)
    table = settings.get(key.rpartition(".")[0], ())
    close = difflib.get_close_matches(key, settings, n=1, cutoff=CLOSE)
    if close:
        meant = close[0] if key == name else f"{name.rpartition('.')[0]}.{close[0].rpartition('.')[2]}"
        mend = f"did you mean {meant}?"
    elif table:
        mend = f"{name.rpartition('.')[0]} has {', '.join(table)}"
    else:
        mend = "docs/configuration.md lists them all"
    return f"there is no such setting; {mend}"


def told(fault: Mapping[str, typing.Any], model: type[pydantic.BaseModel]) -> str:
    """One fault of a ValidationError of the model, as `name: what it must be`."""
    name = ".".join(map(str, fault["loc"]))
    settings = settings_of(model)
    key = _key(name, settings)
    kind, context = fault["type"], fault.get("ctx") or {}
    if kind == "value_error":
        # The sentence is ours. One about several settings names them itself.
        sentence = str(context["error"])
        if ANY in key and settings.get(key):
            return f"{name}: {sentence}"
        return f"{name}: {_not(sentence, fault)}" if key in settings and not settings[key] else sentence
    if kind == "extra_forbidden":
        return f"{name}: {closest(name, settings)}"
    if kind == "missing":
        if ANY in key:
            return f"{name}: is needed"
        table = name.rpartition(".")[0]
        return f"{name}: is needed; [{table}] takes {', '.join(settings[table])} together"
    if settings.get(key):
        inner = ", ".join(settings[key])
        return f"{name}: {_not(f'is a table of settings ({inner})', fault)}"
    bound = _BOUNDS.get(kind, "").format(**{key: _plain(value) for key, value in context.items()})
    must = _KINDS.get(kind.partition("_")[0])
    sentence = bound or (f"must be {must}" if must else str(fault["msg"]))
    return f"{name}: {_not(sentence, fault)}"


def _plain(bound: object) -> object:
    """5 for 5.0."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _not(sentence: str, fault: Mapping[str, typing.Any]) -> str:
    if fault["loc"][0] in _QUIET:
        return sentence
    value = json.dumps(fault["input"], default=str, ensure_ascii=False)
    return f"{sentence}, not {value if len(value) <= VALUE_MAX else value[:VALUE_MAX] + '…'}"
