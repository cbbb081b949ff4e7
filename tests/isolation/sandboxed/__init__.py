"""What attacks have beside them inside a sandbox: standard library only, one file for each kind of attempt."""
