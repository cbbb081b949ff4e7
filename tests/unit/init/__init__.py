"""Tests of init without a container: as PID 1 of a pid namespace of its own, or module by module."""
