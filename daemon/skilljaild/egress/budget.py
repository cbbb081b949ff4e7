"""What a run may send and receive in all, over all of its connections together."""

from collections.abc import Callable

__all__ = ["Budget", "BudgetUsedUp"]


class BudgetUsedUp(Exception):
    """The run has sent and received all that it may."""


class Budget:
    """Counts bytes to and from hosts, exactly up to the limit."""

    def __init__(self, bytes_max: int, used_up: Callable[[], None]) -> None:
        """`used_up` is called when more is wanted than there is, once for each time."""
        self.bytes_max = bytes_max
        self._used_up = used_up
        self.sent = 0
        self.received = 0

    @property
    def left(self) -> int:
        """Bytes that may still be sent or received."""
        return self.bytes_max - self.sent - self.received

    def take_sent(self, count: int) -> int:
        """How many of `count` bytes may be sent; they are counted. With less than `count`, the run is cut off."""
        granted = min(count, self.left)
        self.sent += granted
        if granted < count:
            self._used_up()
        return granted

    def take_received(self, count: int) -> int:
        """As `take_sent`, for what was received."""
        granted = min(count, self.left)
        self.received += granted
        if granted < count:
            self._used_up()
        return granted
