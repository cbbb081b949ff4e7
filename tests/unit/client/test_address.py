"""Where the daemon is, and what a client refuses to speak to."""

import pathlib

import pytest
import skilljail
from skilljail._address import Address


@pytest.mark.parametrize(
    ("text", "target", "is_loopback"),
    [
        ("unix:/run/x.sock", "unix:/run/x.sock", True),
        ("unix:///run/x.sock", "unix:/run/x.sock", True),
        ("/run/x.sock", "unix:/run/x.sock", True),
        ("localhost:50051", "localhost:50051", True),
        ("127.0.0.9:1", "127.0.0.9:1", True),
        ("[::1]:50051", "[::1]:50051", True),
        ("runner.example.com:443", "runner.example.com:443", False),
        ("10.0.0.1:65535", "10.0.0.1:65535", False),
        ("127.0.0.1.example.com:1", "127.0.0.1.example.com:1", False),
    ],
)
def test_address_is_read(text: str, target: str, is_loopback: bool) -> None:
    address = Address.parse(text)
    assert (address.target, address.is_loopback) == (target, is_loopback)
    assert (address.socket_path is not None) == target.startswith("unix:")


def test_relative_socket_is_below_the_working_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Address.parse("unix:s.sock").socket_path == tmp_path / "s.sock"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unix:",
        "unix://host/x",
        "localhost",
        "localhost:0",
        "host:70000",
        "http://host:1",
        "a b:1",
        "unix:/" + "x" * 104,
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(skilljail.InvalidAddress):
        Address.parse(text)


def test_default_socket_of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert skilljail.default_socket_path() == pathlib.Path("/run/skilljail/skilljaild.sock")


def test_default_socket_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert skilljail.default_socket_path() == pathlib.Path("/run/user/1000/skilljail/skilljaild.sock")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", "/home/me")
    assert skilljail.default_socket_path() == pathlib.Path("/home/me/.skilljail/skilljaild.sock")


def test_client_without_an_address_takes_the_variable_else_the_local_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLJAIL_ADDRESS", "unix:/tmp/mine.sock")
    with skilljail.Client() as client:
        assert client.address == "unix:/tmp/mine.sock"
    monkeypatch.setenv("SKILLJAIL_ADDRESS", "")
    with skilljail.Client() as client:
        assert client.address == f"unix:{skilljail.default_socket_path()}"


def test_plaintext_leaves_the_machine_never() -> None:
    with pytest.raises(skilljail.InvalidAddress, match="loopback"):
        skilljail.Client("runner.example.com:443", insecure=True)
    with pytest.raises(skilljail.InvalidAddress, match="exclude"):
        skilljail.Client("localhost:1", insecure=True, tls=skilljail.TLS())


def test_tls_files_come_from_the_environment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLJAIL_TLS_CA", str(tmp_path / "absent.pem"))
    with pytest.raises(skilljail.InvalidAddress, match=r"absent\.pem' cannot be read \(No such file"):
        skilljail.Client("localhost:1")


def test_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(skilljail.InvalidAddress, match="together"):
        skilljail.TLS(cert_file="cert.pem")
