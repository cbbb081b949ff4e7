"""`sha256:` and 64 lower-case hex digits."""

import hashlib
import re

__all__ = ["digest_of", "is_digest"]

_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Whether `text` is a digest in the one form that skilljail uses."""
    return _PATTERN.fullmatch(text) is not None


def digest_of(data: bytes) -> str:
    """The digest of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
