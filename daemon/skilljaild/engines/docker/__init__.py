"""The `docker` engine: any Docker or Podman API, through the `docker` package.

`engine` makes the calls; `config` puts the container floor and a run's limits into the API's words; `inspection`
reads them back; `dialect` holds what Docker and Podman do differently; `podman` says a container in Podman's own
words; `report` reads what an engine says about itself; `attach` is the byte stream to init.
"""

from skilljaild.engines.docker.engine import DockerEngine

__all__ = ["DockerEngine"]
