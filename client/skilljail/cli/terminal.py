"""Hostile bytes on their way to a person.

A terminal obeys what is written to it: a script could retitle the window, hide lines, or type into the clipboard.
So on a terminal everything but text, newlines and tabs is shown as an escape. A pipe or a file gets the bytes as
they are, since what reads them there is a program.
"""

import codecs
import io
import sys
import unicodedata
from typing import BinaryIO, TextIO

__all__ = ["Sink", "harmless", "one_line", "say"]

# Cc: controls. Cs: halves of characters. Zl, Zp: line ends that are not \n. Cf: invisible and direction marks,
# with which a line can show something else than it holds.
_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_KEPT = frozenset({"\n", "\t", "\u200d"})  # the joiner holds emoji together


def harmless(text: str) -> str:
    """`text` with everything that a terminal could obey written as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one in _KEPT or unicodedata.category(one) not in _ESCAPED else _escape(one) for one in text)


def one_line(text: str) -> str:
    """`text` made harmless and in one line: text from elsewhere must not look like a line of our own."""
    return harmless(text).replace("\n", "\\n")


def _escape(character: str) -> str:
    return character.encode("unicode_escape", errors="surrogatepass").decode("ascii")


def say(text: str) -> None:
    """One line to standard error, in skilljail's own name."""
    print(f"skilljail: {one_line(text)}", file=sys.stderr, flush=True)


class Sink:
    """Where one of the script's streams goes: as it is, or made harmless when a person watches."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._binary: BinaryIO | None = getattr(stream, "buffer", None)
        self._harmless = stream.isatty()
        # \r\n is one line end on a terminal; a lone \r could overwrite the line and is escaped.
        self._decoder = io.IncrementalNewlineDecoder(
            codecs.getincrementaldecoder("utf-8")(errors="replace"), translate=False
        )

    def write(self, data: bytes) -> None:
        """Writes and flushes. Raises BrokenPipeError when nobody reads any more."""
        if self._binary is not None and not self._harmless:
            self._binary.write(data)
        else:
            self._write_text(self._decoder.decode(data))
        self.flush()

    def finish(self) -> None:
        """Writes what an unfinished character has left over."""
        if self._harmless or self._binary is None:
            self._write_text(self._decoder.decode(b"", final=True))
            self.flush()

    def flush(self) -> None:
        """Sends on what was written."""
        (self._binary or self._stream).flush()

    def _write_text(self, text: str) -> None:
        shown = harmless(text.replace("\r\n", "\n"))
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        if self._binary is not None:
            self._binary.write(shown.encode(encoding, errors="backslashreplace"))
        else:
            self._stream.write(shown)
