"""Fuzzing: what comes from outside is mutated, and lives and deaths happen in any order.

`make test` spends a fixed number of examples on each target, `make fuzz MINUTES=n` that much time on all of them. A
target is a property under `hunt.target(strategy, examples=…)`, or a state machine under `hunt.machine`. It starts from
valid seeds, which are then mutated (`mutation`): pure noise is refused by the first byte. To fuzz one more parser,
write one more target; nothing else has to know of it.
"""
