"""Measures what it costs to run a script: as a bare subprocess, with `docker run`, and with skilljail.

`make bench` runs it. All contenders take turns within one run, so the ratios hold on a noisy machine; the absolute
figures say little beyond the machine that is printed with them.
"""
