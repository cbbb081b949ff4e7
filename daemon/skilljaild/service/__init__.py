"""The gRPC face. It turns messages into plain data and back, and refusals into statuses; it decides nothing.

It knows `runs` and `bundles`; it knows nothing of containers.
"""
