"""What every caller of `run_skill_script` may rely on, asked of a real daemon.

The cases are those that today's skill providers test, or should: arguments, names, staging, interpreters, ends,
environment, output, artifacts, and the text that a model gets to see. Each runs through the public client, and where
a case is about an adapter, through the framework itself. It knows nothing of the daemon's inside.

`scripts` has one small script for each interpreter and behaviour; `ending` says how a run ended, whole.
"""
