"""The daemon's own modules, without an engine and without a container."""
