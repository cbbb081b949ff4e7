"""What makes sandboxes. `base` is the seam that every engine implements; each engine is one module beside it.

An engine knows containers, images and the container floor. It knows nothing of tenants, requests or scripts.
"""
