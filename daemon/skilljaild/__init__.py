"""The daemon. A request walks through it in one direction and back once:

    service (gRPC) → identity → policy → admission → run → engine → sandbox

Each module knows its neighbour on the right and nobody on the left: an engine knows nothing of tenants, the service
nothing of containers.
"""

__version__ = "0.1.0"
