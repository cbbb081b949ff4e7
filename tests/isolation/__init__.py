"""Attacks, run as scripts in real sandboxes: what a hostile script tries, and what must come of it.

One file for each group of attacks; a test's marker has the attack's number in `docs/attacks.md`, and the test tells by
`seen` what it observed (`attack_table`). Every attack goes through the public client and the real daemon. What runs
inside is a script in the test itself, with the modules of `sandboxed` beside it. It knows nothing of the daemon's
inside; of the engine it asks only what is there.
"""
