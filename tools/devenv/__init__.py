"""Sets up a machine for work on skilljail: the Python environment, an engine, the images.

It runs before anything is installed, so it imports the standard library alone, and nothing of skilljail. Each
step is a module that makes the step's state true, quickly when it is true already:

    python → engine → images → podman (only when asked for)

A step installs Debian packages only as root on Debian; elsewhere it says exactly what to install.
"""
