"""What makes it impossible for init to go on. Each ends the conversation."""

__all__ = ["InitError", "StreamClosed"]


class InitError(Exception):
    """init gives up. The message goes to the daemon in a FATAL frame: it names the thing and the mend."""


class StreamClosed(Exception):  # noqa: N818 - the end of the stream is news, not an error
    """The daemon's end of the stream is closed: nobody is left to run anything for."""
