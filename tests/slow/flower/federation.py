"""A SuperLink and SuperNodes as processes of their own, with TLS and authenticated nodes, on the loopback."""

import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

BIN = Path(sys.executable).parent
SOURCES = Path(__file__).resolve().parents[3] / "src"


class Federation:
    """Processes of one federation in a folder; all are killed when it is left, with their children."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.port = free_port()
        self.processes = {}
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(SOURCES),
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        certificates(self.folder)
        (self.folder / "home").mkdir()
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "test"\n[superlink.test]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.folder / "ca.pem"}"\n'
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for name in list(self.processes):
            self.kill(name)

    def start(self, name, *command):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ended(self, name):
        """Whether a process has ended by itself."""
        return self.processes[name].poll() is not None

    def kill(self, name):
        """Kill a process and all that it started, whatever sessions they are in."""
        process = self.processes.pop(name)
        for child in [process.pid, *descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.wait(timeout=10)

    def superlink(self):
        self.start(
            "superlink",
            "flower-superlink",
            *("--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "ca.pem", "--ssl-keyfile", "server.key"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        )
        wait_for(lambda: is_open(self.port), 60, "the SuperLink listens")

    def supernodes(self, configs, hosts):
        """Nodes with keys of their own, registered, one for each configuration, at these addresses."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.register, range(len(configs))))
        for number, (config, host) in enumerate(zip(configs, hosts, strict=True)):
            self.supernode(number, config, host)

    def register(self, number):
        """Make a key for a node, and tell the SuperLink."""
        key = ec.generate_private_key(ec.SECP384R1())
        private = self.folder / f"node{number}"
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        public = self.folder / f"node{number}.pub"
        public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
        self.flwr("supernode", "register", str(public), "test")

    def supernode(self, number, config, host):
        """Start a node that is registered, for the first time or again."""
        self.start(
            f"node{number}",
            "flower-supernode",
            *("--root-certificates", "ca.pem", "--superlink", f"127.0.0.1:{self.port}"),
            *("--auth-supernode-private-key", f"node{number}", "--host", host),
            *("--port", str(free_port()), "--node-config", config),
        )

    def flwr(self, *arguments):
        """Flower's own command; its output."""
        done = subprocess.run(
            ["flwr", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, app, **config):
        """Start a run of an app; its id."""
        options = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        found = json.loads(self.flwr("run", str(app), "test", "--format", "json", "--run-config", options))
        return found["run-id"]

    def server_process(self):
        """The process that runs the ServerApp now, or None."""
        for child in descendants(self.processes["superlink"].pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                if any(word.endswith(b"flwr-serverapp") for word in words):
                    return child
        return None


def lines(path):
    """What the server has written so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")


def descendants(pid):
    """Children of a process and theirs, from /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def is_open(port):
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


def certificates(folder):
    """A certificate for the loopback, which is its own authority."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .add_extension(x509.KeyUsage(True, False, False, False, False, True, True, False, False), True)
        .add_extension(loopback, False)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "server.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
