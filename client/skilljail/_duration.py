"""Seconds as floats here, as google.protobuf messages on the wire."""

import datetime

from google.protobuf import duration_pb2, timestamp_pb2

__all__ = ["datetime_from_timestamp", "duration_from_seconds", "seconds_from_duration"]

_NANOS = 1_000_000_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROS_MIN = (datetime.datetime(1, 1, 1, tzinfo=datetime.UTC) - _EPOCH) // datetime.timedelta(microseconds=1)
_MICROS_MAX = (datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC) - _EPOCH) // datetime.timedelta(microseconds=1)


def duration_from_seconds(seconds: float) -> duration_pb2.Duration:
    """A duration, rounded to a microsecond so that 0.1 does not become 0.100000000000000005."""
    micros = round(seconds * 1_000_000)
    return duration_pb2.Duration(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1_000)


def seconds_from_duration(duration: duration_pb2.Duration) -> float:
    """The same in seconds."""
    return duration.seconds + duration.nanos / _NANOS


def datetime_from_timestamp(timestamp: timestamp_pb2.Timestamp) -> datetime.datetime:
    """The same in UTC; the nearest time that Python has, when the daemon sends one out of its range."""
    micros = timestamp.seconds * 1_000_000 + timestamp.nanos // 1_000
    return _EPOCH + datetime.timedelta(microseconds=min(max(micros, _MICROS_MIN), _MICROS_MAX))
