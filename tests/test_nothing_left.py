"""After the whole suite nothing of ours is left. `conftest` makes this file run last."""

import docker
from harness import Daemon, Traces, wait_until


def test_no_container_directory_or_process_of_ours_is_left(
    daemon: Daemon, engine_api: docker.APIClient, traces_before: Traces
) -> None:
    assert daemon.stop() == 0
    assert not (daemon.directory / "sock").exists()
    assert list((daemon.directory / "state").rglob("new-*")) == []
    assert Traces.of(engine_api).directories - traces_before.directories <= {daemon.directory}
    assert Traces.of(engine_api).containers - traces_before.containers == set()
    wait_until(lambda: Traces.of(engine_api).processes - traces_before.processes == set())
