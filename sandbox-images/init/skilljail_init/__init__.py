"""PID 1 of every sandbox: stages a skill, runs one script at a time, reports what the kernel recorded.

Standard library only, Python 3.11 or newer; run as `python3 -I -S /opt/skilljail/init/__main__.py`. It knows frames,
processes and files. It knows nothing of tenants, policies or engines, and it trusts what it reads from standard
input, which is the daemon's end; the daemon in turn trusts nothing of what init writes.
"""
