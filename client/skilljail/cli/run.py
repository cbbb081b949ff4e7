"""`skilljail run`: runs one script and shows what comes out, as it comes."""

import argparse
import os
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from skilljail import (
    ArtifactRefused,
    InvalidRequest,
    Limits,
    Network,
    Outcome,
    Output,
    RunOptions,
    RunResult,
    RunStream,
    SkilljailError,
)
from skilljail.cli import report
from skilljail.cli.parser import Parser, add_connection_options, client_of
from skilljail.cli.quantity import duration, number, size
from skilljail.cli.terminal import Sink, say

__all__ = ["add_command"]

COULD_NOT_RUN = 125
INTERRUPTED = 130
_SIGNALED = 128
_STDIN_BYTES_MAX = 4 * 1024 * 1024
_STATUSES = {
    Outcome.WALL_TIMEOUT: 124,
    Outcome.CPU_TIMEOUT: 124,
    Outcome.OOM_KILLED: 137,
    Outcome.PIDS_LIMIT: 122,
    Outcome.DISK_LIMIT: 122,
    Outcome.OUTPUT_LIMIT: 122,
    Outcome.START_FAILED: 126,
}

_DESCRIPTION = """\
Run SCRIPT, a file below SKILL_DIR, in a fresh sandbox, and show its output as it comes. The whole skill folder goes
along, without .git, .hg, .svn and __pycache__. Everything after -- is given to the script as it is.
"""

_EPILOG = """\
exit status:
  0-255  the script ended by itself: its own status
  122    a limit on processes, disk or output ended it
  124    a limit on time ended it (--timeout, --cpu-time)
  125    it could not run, there is no result, or an artifact was not saved: see standard error
  126    the interpreter could not be executed in the sandbox
  130    you pressed Ctrl-C; the run was killed
  137    it ran out of memory (--memory)
  128+N  signal N ended it
  141    nobody reads the output any more; the run was killed

  A script may itself end with one of these. Standard error tells the two apart: it ends with a line
  "skilljail: OUTCOME: ..." whenever the script did not end with status 0, and "skilljail: EXITED: ..." is the
  script's own status. A script can write such a line, too; --json gives the outcome where no script can write it.

output:
  A pipe or a file gets the script's bytes as they are. On a terminal everything but text, newlines and tabs is shown
  as an escape, because a terminal obeys what it is sent.

sizes and durations:
  256MiB, 64k, 1GB, 1000; k, M, G and KiB, MiB, GiB are powers of 1024, and kB, MB, GB powers of 1000
  30s, 2m, 500ms, 1h, 1.5 (seconds)

examples:
  skilljail run skills/unit-converter scripts/convert.py -- --value 26.2 --factor 1.60934
  skilljail run skills/report scripts/make.py --input data.csv --artifacts out --timeout 2m --memory 512MiB
  skilljail run skills/weather scripts/get.py --allow-host api.example.com
  echo '{"a": 1}' | skilljail run skills/filter scripts/filter.js --stdin - --json
"""


def add_command(commands: Any) -> None:
    """Adds the command to what `add_subparsers` returned."""
    parser: Parser = commands.add_parser(
        "run",
        help="run a script of a skill",
        usage="skilljail run [options] SKILL_DIR SCRIPT [-- ARGS...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.usage_status = COULD_NOT_RUN  # 2 is a status that scripts themselves use
    parser.add_argument("skill_dir", metavar="SKILL_DIR", help="the folder that holds SKILL.md")
    parser.add_argument("script", metavar="SCRIPT", help="the script's path below it, such as scripts/convert.py")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end, in place of the output")
    parser.add_argument("--quiet", action="store_true", help="no lines of skilljail's own on standard error")
    _add_script_options(parser)
    _add_network_options(parser)
    _add_limit_options(parser)
    _add_artifact_options(parser)
    add_connection_options(parser)
    parser.set_defaults(perform=_perform, parser=parser, takes_rest=True)


def _add_script_options(parser: Parser) -> None:
    group = parser.add_argument_group("script")
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE|NAME",
        help="a variable for the script; NAME alone passes on your own (repeatable)",
    )
    group.add_argument("--stdin", metavar="FILE|-", help="what it reads; - is your standard input (default: nothing)")
    group.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="FILE[=PATH]",
        help="put a file into the skill folder of the run, as PATH or under its own name (repeatable)",
    )
    group.add_argument(
        "--cwd",
        default="",
        metavar="PATH",
        help="start there, below the skill root (default: the skill root itself; the adapter for the Microsoft Agent "
        "Framework starts scripts in their own folder instead, see its start_in)",
    )
    group.add_argument(
        "--interpreter", metavar="NAME", help="python, node, bash or pwsh (default: by shebang, then by suffix)"
    )
    group.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="NAME",
        help="a secret that the operator grants to this very skill; excludes --env, --input and --interpreter "
        "(repeatable)",
    )
    group.add_argument(
        "--mask-secrets", action="store_true", help="show *** in place of secrets; helps against accidents only"
    )
    group.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE", help="kept with the run (repeatable)"
    )


def _add_network_options(parser: Parser) -> None:
    group = parser.add_argument_group("network (HTTP and HTTPS, of what the operator grants)")
    group.add_argument(
        "--network",
        choices=[one.value.lower() for one in Network],
        help="none, the hosts of --allow-host, or every public host (default: none, or allowlist with --allow-host)",
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="a host that the script may talk to, such as api.example.com or '*.example.com' (repeatable)",
    )


def _add_limit_options(parser: Parser) -> None:
    group = parser.add_argument_group("limits (default: what the operator set)")
    group.add_argument("--timeout", type=duration, metavar="DURATION", help="wall time")
    group.add_argument("--cpu-time", type=duration, metavar="DURATION", help="processor time")
    group.add_argument("--memory", type=size, metavar="SIZE", help="memory, with the files in the work directory")
    group.add_argument("--cpus", type=float, metavar="CORES", help="processors; 0.5 is half of one")
    group.add_argument("--pids", type=number, metavar="COUNT", help="processes and threads at one time")
    group.add_argument("--disk", type=size, metavar="SIZE", help="size of the work directory")
    group.add_argument("--output-limit", type=size, metavar="SIZE", help="standard output and error together")
    group.add_argument(
        "--egress-limit", type=size, metavar="SIZE", help="sent to hosts and received from them together"
    )


def _add_artifact_options(parser: Parser) -> None:
    group = parser.add_argument_group("artifacts (files that the script makes)")
    group.add_argument(
        "--artifact",
        action="append",
        default=[],
        metavar="PATTERN",
        help="which new or changed files come back, such as 'out/*.csv' or '**/*.png'; needs --artifacts or --json "
        "(repeatable)",
    )
    group.add_argument(
        "--artifacts", metavar="DIR", help="save them there; without --artifact that is every new or changed file"
    )
    group.add_argument("--overwrite", action="store_true", help="replace files that are there already")


def _perform(options: argparse.Namespace) -> int:
    if options.artifact and not options.artifacts and not options.json:
        options.parser.error("--artifact says which files come back, and --artifacts DIR where to; add --artifacts DIR")
    try:
        with client_of(options) as client:
            stream = client.stream(options.skill_dir, _below(options.script), options.rest, **_run_options(options))
            return _follow(options, stream)
    except SkilljailError as error:
        if options.json:
            print(report.error_json(error))
        if not options.json or not options.quiet:
            say(report.error_line(error))
        return COULD_NOT_RUN


def _follow(options: argparse.Namespace, stream: RunStream) -> int:
    sinks = {} if options.json else {"stdout": Sink(sys.stdout), "stderr": Sink(sys.stderr)}
    try:
        with stream:
            for event in stream:
                if isinstance(event, Output) and sinks:
                    sinks[event.stream].write(event.data)
    except KeyboardInterrupt:
        say("interrupted; the run was killed")
        return INTERRUPTED
    finally:
        for sink in sinks.values():
            sink.finish()
    return _conclude(options, stream.result)


def _conclude(options: argparse.Namespace, result: RunResult) -> int:
    status = _status(result)
    saved: Sequence[pathlib.Path] = ()
    refusals: Sequence[ArtifactRefused] = ()
    try:
        if options.artifacts:
            saved = result.save_artifacts(options.artifacts, overwrite=options.overwrite)
    except ArtifactRefused as error:
        saved, refusals = error.saved, error.refusals
        status = COULD_NOT_RUN
    for refusal in refusals:
        say(report.error_line(refusal))
    if options.json:
        print(report.result_json(result, saved, refusals))
    if not options.quiet:
        for line in report.lines(result, saved, options.artifact):
            say(line)
    return status


def _status(result: RunResult) -> int:
    """Zero for a script that ended with status 0 and for nothing else."""
    if result.outcome is Outcome.EXITED and result.exit_code is not None:
        return result.exit_code
    # A process has 8 bits of status: a larger number would wrap around.
    if result.outcome is Outcome.SIGNALED and result.signal is not None and 0 < result.signal < _SIGNALED:
        return _SIGNALED + result.signal
    return _STATUSES.get(result.outcome, COULD_NOT_RUN)


def _below(path: str) -> str:
    """A shell completes to ./scripts/ or ./scripts/run.py; the contract wants the shortest form of a path."""
    shortest = path.removeprefix("./").removesuffix("/")
    return "" if shortest == "." else shortest


def _run_options(options: argparse.Namespace) -> RunOptions:
    return {
        "env": dict(map(_variable, options.env)),
        "stdin": _stdin(options.stdin),
        "working_directory": _below(options.cwd),
        "inputs": dict(map(_input, options.input)),
        "limits": Limits(
            wall_seconds=options.timeout,
            cpu_seconds=options.cpu_time,
            cpus=options.cpus,
            memory_bytes=options.memory,
            pids=options.pids,
            disk_bytes=options.disk,
            output_bytes=options.output_limit,
            egress_bytes=options.egress_limit,
        ),
        "artifacts": options.artifact or (["**/*"] if options.artifacts else []),
        "labels": dict(_pairs("--label", options.label)),
        "interpreter": options.interpreter,
        "network": options.network or (Network.ALLOWLIST if options.allow_host else None),
        "allowed_hosts": options.allow_host,
        "secrets": options.secret,
        "mask_secrets": options.mask_secrets,
    }


def _variable(text: str) -> tuple[str, str]:
    name, given, value = text.partition("=")
    if given:
        return name, value
    if name not in os.environ:
        raise InvalidRequest(f"--env {name}: there is no such variable here to pass on; write {name}=VALUE")
    return name, os.environ[name]


def _input(text: str) -> tuple[str, pathlib.Path]:
    file, given, path = text.rpartition("=")
    if not given:
        file, path = text, pathlib.Path(text).name
    return path, pathlib.Path(file)


def _pairs(option: str, texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in texts:
        name, given, value = text.partition("=")
        if not given:
            raise InvalidRequest(f"{option} {text}: write NAME=VALUE")
        yield name, value


def _stdin(source: str | None) -> bytes:
    if source is None:
        return b""
    try:
        if source == "-":
            return sys.stdin.buffer.read(_STDIN_BYTES_MAX + 1)
        with pathlib.Path(source).open("rb") as file:
            return file.read(_STDIN_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidRequest(f"--stdin {source}: {error.strerror}") from error
