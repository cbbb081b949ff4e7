"""Skills as content: blobs on disk under their digest, and manifests that name a bundle's files.

It knows files and digests. It knows nothing of runs, sandboxes or gRPC.
"""
