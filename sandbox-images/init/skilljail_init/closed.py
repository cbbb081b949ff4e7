"""Closed sets of named values: the part of the standard library's enum that frames need.

For whoever checks types these are `enum.IntEnum` and `enum.StrEnum`. At run time they are the few lines below,
because importing `enum` takes 4 ms, and init's start is part of every cold run.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import IntEnum, StrEnum

__all__ = ["IntEnum", "StrEnum"]

if not TYPE_CHECKING:

    class _Closed(type):
        """Turns the values in a class's body into its only instances."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, object]) -> _Closed:
            values = {key: value for key, value in body.items() if not key.startswith("_")}
            made = super().__new__(cls, name, bases, {key: body[key] for key in body.keys() - values.keys()})
            made._members = {}
            for key, value in values.items():
                member = made.__new__(made, value)
                member.name, member.value = key, value
                made._members[value] = member
                setattr(made, key, member)
            return made

        def __call__(cls, value: object) -> object:
            """The member with a value. Raises ValueError."""
            try:
                return cls._members[value]
            except (KeyError, TypeError):
                raise ValueError(f"{value!r} is no {cls.__name__}") from None

        def __iter__(cls) -> Iterator[object]:
            return iter(cls._members.values())

        def __len__(cls) -> int:
            return len(cls._members)

        def __contains__(cls, value: object) -> bool:
            return value in cls._members

    class IntEnum(int, metaclass=_Closed):
        """Named integers."""

        __str__ = int.__repr__

        def __repr__(self) -> str:
            return f"<{type(self).__name__}.{self.name}: {int(self)}>"

        def __reduce__(self) -> tuple[object, ...]:
            return type(self), (self.value,)  # a copy is the member itself

    class StrEnum(str, metaclass=_Closed):
        """Named strings."""

        def __repr__(self) -> str:
            return f"<{type(self).__name__}.{self.name}: {self.value!r}>"

        def __reduce__(self) -> tuple[object, ...]:
            return type(self), (self.value,)  # a copy is the member itself
