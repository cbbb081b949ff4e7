"""Names of environment variables that may carry a secret: those that nothing else in a sandbox listens to."""

import re

from skilljaild.policy import SANDBOX_ENVIRONMENT

__all__ = ["variable_fault"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SHELL = (
    "BASH BASHOPTS CDPATH ENV GLOBIGNORE IFS LOGNAME OLDPWD POSIXLY_CORRECT PS0 PS1 PS2 PS4 PWD SHELL SHELLOPTS TERM"
)
_LIBRARY = (
    "GCONV_PATH GETCONF_DIR GLIBC_TUNABLES HOSTALIASES HOSTNAME LANGUAGE LOCALDOMAIN LOCPATH NLSPATH RES_OPTIONS TEMP "
    "TMP TZ TZDIR"
)
_INTERPRETERS = (
    "CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS NODE_OPTIONS NODE_PATH NODE_TLS_REJECT_UNAUTHORIZED NODE_USE_ENV_PROXY "
    "NODE_V8_COVERAGE OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES PERL5LIB PERL5OPT PSMODULEPATH REQUESTS_CA_BUNDLE "
    "RUBYLIB RUBYOPT SSL_CERT_DIR SSL_CERT_FILE"
)
_TAKEN = frozenset(" ".join([*SANDBOX_ENVIRONMENT, _SHELL, _LIBRARY, _INTERPRETERS]).upper().split())
_TAKEN_BEGINNINGS = ("BASH_", "COMPLUS_", "CORECLR_", "DOTNET_", "LC_", "LD_", "MALLOC_", "PYTHON", "SKILLJAIL")
_TAKEN_ENDS = ("_PROXY",)


def variable_fault(name: str) -> str | None:
    """Why a variable cannot carry a secret, or None when it can. Case makes no difference: proxies have both."""
    if not _NAME.fullmatch(name):
        return "must be a variable's name: letters, digits and _, not starting with a digit, at most 128"
    upper = name.upper()
    if upper in _TAKEN or upper.startswith(_TAKEN_BEGINNINGS) or upper.endswith(_TAKEN_ENDS):
        return "must not be a variable that the sandbox, a loader, a shell or an interpreter reads; choose another name"
    return None
