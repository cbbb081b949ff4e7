"""The commands `images build` and `images list`. They can be mounted on any argparse parser."""

import argparse
import contextlib
import pathlib
import re
import signal
import sys
import types
from collections.abc import Iterator
from typing import Any, NoReturn

from skilljaild.images import IMAGE_NAMES
from skilljaild.images.archive_source import PwshChoice
from skilljaild.images.base_source import BaseChoice
from skilljaild.images.build import BuildOptions, BuildResult, BuildState, build
from skilljaild.images.error import BuildFailed, ImageError
from skilljaild.images.listing import listing
from skilljaild.images.store import ImageStore

__all__ = ["add_parser"]

SHA256 = re.compile(r"[0-9a-fA-F]{64}")

BUILD_DESCRIPTION = """\
Builds the sandbox images on a Docker or Podman engine: base, python, node, bash and pwsh, or those that
are named, with the parents that they need. An image is left as it is when nothing that it is made from
has changed; with --refresh it is built anyway, with the newest packages of Debian.

The base stands on debian:trixie-slim when the engine has it or a registry serves it, and else on a
Debian that is made from Debian's packages with mmdebstrap. Node and PowerShell are downloaded by hash
(sandbox-images/pins.toml). An image whose interpreter does not start gets no name.
"""

BUILD_EPILOG = """\
exit status:
  0  every image is built or up to date
  1  an image failed; the others were still built
  2  the command was called wrongly, or no engine answers

examples:
  skilljail images build
  skilljail images build pwsh --pwsh-archive powershell-7.6.6-linux-x64.tar.gz
  skilljail images build --base-image registry.example/debian:trixie-slim
  skilljail images build --refresh python

files:
  $XDG_CACHE_HOME/skilljail/downloads   downloads, each in a directory named for its sha256
"""


def add_parser(subparsers: Any) -> None:
    """Adds `images` with its commands to what `ArgumentParser.add_subparsers()` returned.

    The chosen command is in the parsed arguments as `run`: a function from the arguments to an exit status.
    """
    parser = subparsers.add_parser("images", help="build and list the sandbox images")
    commands = parser.add_subparsers(dest="images_command", metavar="COMMAND", required=True)
    _add_build(commands)
    listed = commands.add_parser(
        "list",
        help="list the sandbox images of this version",
        description="Lists the images of this version of skilljail, and whether the engine has them.",
        epilog="exit status: 0 when all images are there, 1 when one is missing, 2 when no engine answers",
    )
    _add_engine(listed)
    listed.set_defaults(run=run_list)


def _add_build(commands: Any) -> None:
    parser = commands.add_parser(
        "build",
        help="build the sandbox images",
        description=BUILD_DESCRIPTION,
        epilog=BUILD_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(IMAGE_NAMES)} (default: all)")
    _add_engine(parser)
    base = parser.add_mutually_exclusive_group()
    base.add_argument("--base-image", metavar="REF", help="build the base on this image of Debian trixie")
    base.add_argument("--bootstrap", action="store_true", help="make the base from Debian's packages; ask no registry")
    parser.add_argument(
        "--pwsh-archive",
        metavar="FILE",
        type=pathlib.Path,
        help="unpack PowerShell from this release archive (.tar.gz) in place of the pinned download; later builds keep "
        "it until the image is removed",
    )
    parser.add_argument(
        "--pwsh-sha256",
        metavar="HEX",
        help="the hash that FILE must have (default: it is printed, and recorded in the image's label)",
    )
    parser.add_argument(
        "--refresh", action="store_true", help="build even if nothing changed, with Debian's newest packages"
    )
    parser.set_defaults(run=run_build, parser=parser)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine-url",
        metavar="URL",
        help="the engine's API, such as unix:///run/podman/podman.sock (default: $DOCKER_HOST, else Docker's socket)",
    )


def run_build(arguments: argparse.Namespace) -> int:
    """`images build`: progress on standard error, one line for each image on standard output."""
    parser: argparse.ArgumentParser = arguments.parser
    unknown = [name for name in arguments.names if name not in IMAGE_NAMES]
    if unknown:
        parser.error(f"there is no image {unknown[0]!r}: choose from {', '.join(IMAGE_NAMES)}")
    if arguments.pwsh_sha256 is not None:
        if arguments.pwsh_archive is None:
            parser.error("--pwsh-sha256 is the hash of --pwsh-archive, which is missing")
        if not SHA256.fullmatch(arguments.pwsh_sha256):
            parser.error("--pwsh-sha256 takes 64 hex digits")
    options = BuildOptions(
        base=BaseChoice(arguments.base_image, arguments.bootstrap),
        pwsh=PwshChoice(arguments.pwsh_archive, arguments.pwsh_sha256) if arguments.pwsh_archive else None,
        refresh=arguments.refresh,
    )
    try:
        with _unwound_by_signals(), ImageStore(arguments.engine_url) as store:
            results = build(arguments.names or IMAGE_NAMES, store, options, _say)
    except ImageError as error:
        _say(f"skilljail: {error}")
        return 2
    for result in results:
        _report(result)
    return int(any(result.state is BuildState.FAILED for result in results))


def run_list(arguments: argparse.Namespace) -> int:
    """`images list`: one line for each image."""
    try:
        with ImageStore(arguments.engine_url) as store:
            images = listing(store)
    except ImageError as error:
        _say(f"skilljail: {error}")
        return 2
    print(f"{'NAME':<8} {'IMAGE':<28} {'INTERPRETER':<12} {'SIZE':>8}  {'ID':<14} CREATED")
    for listed in images:
        if listed.image is None:
            print(f"{listed.name:<8} {listed.reference:<28} missing: run `skilljail images build {listed.name}`")
        else:
            size = f"{listed.image.size_bytes / 1e6:.0f} MB"
            short_id = listed.image.image_id.removeprefix("sha256:")[:12]
            version = listed.interpreter_version or "-"
            created = listed.image.created[:19]
            print(f"{listed.name:<8} {listed.reference:<28} {version:<12} {size:>8}  {short_id:<14} {created}")
    return int(any(listed.image is None for listed in images))


def _report(result: BuildResult) -> None:
    """One image's outcome. What failed is told on standard error, with the log of the build."""
    if result.image is not None:
        size = f"{result.image.size_bytes / 1e6:.0f} MB"
        print(f"{result.name:<6} {result.state.value:<10} {result.reference}  {size}  {result.seconds:.1f} s")
        return
    if isinstance(result.error, BuildFailed):
        _say(result.error.log.rstrip())
    _say(f"skilljail: {result.name} failed: {result.error}")


@contextlib.contextmanager
def _unwound_by_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the command as Ctrl-C does, so that temporary files are removed."""

    def end(number: int, _frame: types.FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    defaults = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    for number in defaults:  # what the caller ignores, as nohup does, stays ignored
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in defaults:
            signal.signal(number, signal.SIG_DFL)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
