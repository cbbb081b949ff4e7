"""`skilljail digest`: what names a skill folder exactly, for an operator who grants it a secret."""

import argparse
import json
import pathlib
from typing import Any

from skilljail import InvalidRequest, SkillInvalid
from skilljail._bundle import Bounds, Bundle
from skilljail._request import SECRET_NAME
from skilljail._skill_name import skill_name
from skilljail.cli.terminal import one_line

__all__ = ["add_command"]

_DESCRIPTION = """\
Print the name of a skill, from its SKILL.md, and the digest of its folder: of every file and directory that a run
takes along. No daemon is asked. An operator grants secrets to a skill by both; any change of the folder changes the
digest and ends the grant.
"""

_EPILOG = """\
exit status:
  0    it was printed
  125  the folder is no skill, or its name could not be read

examples:
  skilljail digest skills/web-search
  skilljail digest skills/web-search --grant cn:acme --secret openai >> /etc/skilljail/skilljaild.toml
"""

_BOUNDS = Bounds(entries=50_000, size_bytes=1 << 40)
"""Beyond what any daemon takes: which one will run the skill is not known here."""


def add_command(commands: Any) -> None:
    """Adds the command to what `add_subparsers` returned."""
    parser = commands.add_parser(
        "digest", help="tell a skill's name and digest, to grant it secrets", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("skill_dir", metavar="SKILL_DIR", help="the folder that holds SKILL.md")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of two lines")
    parser.add_argument(
        "--grant",
        metavar="TENANT",
        help="print the grant for the daemon's TOML file instead; TENANT is local (the unix socket), or cn: and the "
        "common name of a client certificate",
    )
    parser.add_argument("--secret", metavar="NAME", help="with --grant: the secret that is granted")
    parser.set_defaults(perform=_perform, parser=parser, takes_rest=False)


def _perform(options: argparse.Namespace) -> int:
    _check_options(options)
    digest = Bundle.read(options.skill_dir, _BOUNDS).digest
    name = _name(pathlib.Path(options.skill_dir) / "SKILL.md")
    if options.grant:
        print(_grant(options.secret, options.grant, name, digest), end="")
    elif options.json:
        print(json.dumps({"name": name, "bundle_digest": digest}, indent=2))
    else:
        print(f"name    {name}\ndigest  {digest}")
    return 0


def _check_options(options: argparse.Namespace) -> None:
    if (options.grant is None) is not (options.secret is None):
        options.parser.error("--grant TENANT and --secret NAME go together: who is granted which secret")
    if options.grant is None:
        return
    if options.json:
        options.parser.error("--json and --grant exclude each other; a grant is TOML")
    if options.grant != "local" and not (options.grant.startswith("cn:") and options.grant[3:].isprintable()):
        raise InvalidRequest(f"--grant {one_line(options.grant)}: write local, or cn: and a certificate's common name")
    if SECRET_NAME.fullmatch(options.secret) is None:
        raise InvalidRequest(
            f"--secret {one_line(options.secret)}: a name has 1 to 64 of a-z 0-9 . _ - and begins with a "
            "letter or a digit"
        )


def _name(file: pathlib.Path) -> str:
    try:
        name = skill_name(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SkillInvalid(f"{file} cannot be read: {error}") from error
    if name is None:
        raise SkillInvalid(
            f"{file} has no single line 'name: …' of letters a-z, digits and - in its frontmatter; correct it"
        )
    return name


def _grant(secret: str, tenant: str, name: str, digest: str) -> str:
    key = json.dumps(secret) if "." in secret else secret
    return (
        f"\n[[secrets.{key}.grants]]\n"
        f"tenant = {json.dumps(tenant, ensure_ascii=False)}\n"
        f"skill = {json.dumps(name)}\n"
        f"bundle_digest = {json.dumps(digest)}\n"
    )
