"""Numbers that others report, judged strictly."""

from typing import TypeGuard

__all__ = ["PAGE_BYTES", "at_most", "both_at_most", "is_count"]

PAGE_BYTES = 65_536
"""The largest page of any kernel that we meet; limits are rounded down to pages."""


def at_most(value: object, limit: int, slack: int = PAGE_BYTES) -> bool:
    """Whether a limit that was read is the one asked for, give or take the kernel's rounding to pages."""
    return is_count(value) and value <= limit + slack


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a number from 0 on. Some kernels write -1 for no limit."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def both_at_most(values: object, limit: int) -> bool:
    """Whether a soft and a hard limit are no larger than a limit."""
    return isinstance(values, list) and len(values) == 2 and all(at_most(one, limit, slack=0) for one in values)
