"""One execution of one script, from admission to its single outcome.

`run` is the state machine; `admission` decides when it may start; `sandbox` makes and destroys what it runs in;
`conversation` speaks with init; `outcome` reads what init and the engine recorded. It knows tenants only as names and
engines only through `skilljaild.engines.base`; it knows nothing of gRPC.
"""
