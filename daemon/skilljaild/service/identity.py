"""Who calls. The tenant comes from the connection, never from a request."""

from collections.abc import Collection
from typing import Any

import grpc

from skilljaild.errors import Reason, Refusal

__all__ = ["LOCAL_TENANT", "check_operator", "tenant_of"]

LOCAL_TENANT = "local"
"""Whoever may connect to the unix socket, or to an insecure loopback address."""


def tenant_of(context: grpc.aio.ServicerContext[Any, Any], *, tls: bool) -> str:
    """The tenant of a call. With TLS: the common name of the client certificate, which gRPC has verified."""
    if not tls:
        return LOCAL_TENANT
    names = list(context.auth_context().get("x509_common_name", []))
    name = names[0].decode(errors="replace") if len(names) == 1 else ""
    if not name or not name.isprintable():
        raise Refusal(
            Reason.UNAUTHENTICATED,
            "the client certificate has no single, printable common name; issue one whose CN is the tenant",
        )
    return f"cn:{name}"


def check_operator(context: grpc.aio.ServicerContext[Any, Any], operators: Collection[str], *, tls: bool) -> None:
    """Lets an operator pass: without TLS everybody, with TLS the common names in `operators`.

    Raises Refusal OPERATOR_ONLY or UNAUTHENTICATED.
    """
    tenant = tenant_of(context, tls=tls)
    if tls and tenant.removeprefix("cn:") not in operators:
        raise Refusal(
            Reason.OPERATOR_ONLY,
            "this call is for operators; have yours add the common name of your certificate to admin.tenants, or call "
            "a daemon on its unix socket",
        )
