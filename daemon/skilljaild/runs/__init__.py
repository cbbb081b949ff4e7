"""One execution of one script, from admission to its single outcome.

`run` is the state machine; `admission` decides when it may start; `gate` asks whether this host may run it; `sandbox`
makes and destroys what it runs in; `conversation` speaks with init; `delivery` brings output to the caller, `tunnels`
connections to the proxy and `collection` artifacts; `outcome` reads what init and the engine recorded. It knows tenants
only as names and engines only through `skilljaild.engines.base`; it knows nothing of gRPC.
"""
