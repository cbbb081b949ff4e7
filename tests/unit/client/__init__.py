"""The client against a server in this process that can be made to break the contract."""
