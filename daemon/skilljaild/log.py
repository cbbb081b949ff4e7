"""Structured logs on standard error: for a person, or one JSON object a line. Never output, secrets or tokens."""

import logging
import sys

import structlog

from skilljaild.config import LogConfig

__all__ = ["set_up_log"]


def set_up_log(config: LogConfig) -> None:
    """Sets the process's log up once."""
    if config.format == "json":
        renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(config.level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
