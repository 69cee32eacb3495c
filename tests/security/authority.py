"""An authority of one's own, and certificates of clients that it vouches for."""

import subprocess
from pathlib import Path

from support.tls_proxy import certificate


class Authority:
    """Its certificate is `ca`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.ca, self._key = certificate(folder)

    def client(self, name: str) -> Path:
        """A certificate and its key, in one file."""
        return self._issued(name)

    def node(self, name: str, host: str = "localhost") -> Path:
        """The same, good for a server at this host too."""
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=DNS:{host}")
        return self._issued(name, "-extfile", str(extensions))

    def _issued(self, name: str, *options: str) -> Path:
        key, request, made = (self._folder / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
        asked = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"]
        subprocess.run([*asked, "-keyout", str(key), "-out", str(request)], check=True, capture_output=True)
        signed = ["openssl", "x509", "-req", "-in", str(request), "-CA", str(self.ca), "-CAkey", str(self._key)]
        subprocess.run([*signed, "-days", "2", "-out", str(made), *options], check=True, capture_output=True)
        both = self._folder / f"{name}.pem"
        both.write_bytes(made.read_bytes() + key.read_bytes())
        return both
