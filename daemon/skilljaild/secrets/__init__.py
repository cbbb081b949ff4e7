"""Secrets of the operator's, granted to exact skills of exact callers.

`config` is what the operator writes; `keeper` decides who gets what and reads values when a script is about to start;
`source` reads one value from where it is kept; `skill` tells what a skill calls itself; `mask` takes values out of
output and `mask_decision` out of what is told of connections; `automaton` finds them for both. A value is never kept
longer than its run needs it, and never shown: it travels as `pydantic.SecretStr`.
"""
