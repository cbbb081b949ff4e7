"""Tests of the egress proxy, without a sandbox and without a network."""
