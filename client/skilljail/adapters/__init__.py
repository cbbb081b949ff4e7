"""Adapters: skilljail as the script runner of an agent framework.

One module for each framework, imported by name, so that none of them is needed but the one in use. An adapter knows
its framework and the public names of `skilljail`; it turns arguments into argv and results into what that framework
shows its model. It must not know how the client speaks to the daemon.
"""
