"""A fault of ours as the log tells it: what it is and where it happened. Its words are left out, because those of the
libraries repeat what they met, which may be a script's output or a caller's secret."""

import pathlib
import traceback

__all__ = ["traced"]

CHAIN_MAX = 8
"""Errors behind an error that are told."""


def traced(error: BaseException) -> dict[str, str]:
    """Fields of a line in the log: `error`, its type and those of the errors behind it; `trace`, where each was raised,
    innermost last."""
    chain: list[BaseException] = []
    behind: BaseException | None = error
    while behind is not None and len(chain) < CHAIN_MAX:
        chain.append(behind)
        behind = _behind(behind)
    return {
        "error": " from ".join(type(one).__name__ for one in chain),
        "trace": " from ".join(_trace(one) for one in chain),
    }


def _behind(error: BaseException) -> BaseException | None:
    """What an error was made of, else what it came from, as a traceback would tell it."""
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _trace(error: BaseException) -> str:
    return " > ".join(
        f"{'/'.join(pathlib.PurePath(one.filename).parts[-2:])}:{one.lineno} {one.name}"
        for one in traceback.extract_tb(error.__traceback__)
    )
