"""The generated code of the wire contract, `proto/skilljail/v1`. Made by `make generate`; never edited."""
