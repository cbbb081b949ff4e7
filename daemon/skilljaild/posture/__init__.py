"""What holds on this host: what the engine tells about itself, and what was seen from inside a sandbox.

`probe` is the program that tries a sandbox's walls from inside; `sight` reads what it printed; `self_test` makes the
sandbox and runs it there; `kernels` tells a virtual machine from a container; `posture` says what all of it adds up
to and what the operator demands; `examiner` does it at the right moments: at start, when asked, and before the first
run of an image. The package knows engines and sandboxes. It knows nothing of tenants, requests or gRPC.
"""
