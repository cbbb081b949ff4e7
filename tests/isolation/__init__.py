"""Attacks, run as scripts in real sandboxes: what a hostile script tries, and what must come of it.

One file for each group of attacks; the number in a test's docstring is the attack's number in the list that
`docs/known-limits.md` refers to as well. Every attack goes through the public client and the real daemon. What runs
inside is a script in the test itself, with the modules of `sandboxed` beside it. It knows nothing of the daemon's
inside; of the engine it asks only what is there.
"""
