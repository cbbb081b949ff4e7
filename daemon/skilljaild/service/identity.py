"""Who calls. The tenant comes from the connection, never from a request."""

from typing import Any

import grpc

from skilljaild.errors import Reason, Refusal

__all__ = ["LOCAL_TENANT", "tenant_of"]

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
