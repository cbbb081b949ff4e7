"""The builder of the sandbox images and the seccomp profile, without an engine."""
