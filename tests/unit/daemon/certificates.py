"""Certificates of small authorities, made by the openssl command."""

import dataclasses
import pathlib
import subprocess

__all__ = ["Authority", "Identity"]


@dataclasses.dataclass(frozen=True)
class Identity:
    """A certificate and its key."""

    certificate: pathlib.Path
    key: pathlib.Path


class Authority:
    """An authority that signs certificates, in a directory of its own."""

    def __init__(self, directory: pathlib.Path, name: str) -> None:
        self._directory = directory / name
        self._directory.mkdir()
        self.certificate = self._directory / "ca.pem"
        self._key = self._directory / "ca.key"
        self._openssl(
            *["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"],
            *[
                "-subj",
                f"/CN={name}",
                "-addext",
                "keyUsage=critical,keyCertSign,cRLSign",
                "-keyout",
                str(self._key),
                "-out",
                str(self.certificate),
            ],
        )

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True)

    def issue(self, name: str, subject: str, hosts: tuple[str, ...] = ("localhost",)) -> Identity:
        """A certificate for these hosts and 127.0.0.1 with this subject, such as `/CN=alice`."""
        request, key, certificate = (self._directory / f"{name}.{suffix}" for suffix in ("csr", "key", "pem"))
        extensions = self._directory / f"{name}.ext"
        names = ",".join(f"DNS:{host}" for host in hosts)
        extensions.write_text(
            f"subjectAltName={names},IP:127.0.0.1\nbasicConstraints=CA:FALSE\nauthorityKeyIdentifier=keyid\n"
        )
        self._openssl(
            *["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-utf8"],
            *["-subj", subject, "-keyout", str(key), "-out", str(request)],
        )
        self._openssl(
            *["x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)],
            *["-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(certificate)],
        )
        return Identity(certificate, key)
