"""Places where a book is kept: a file, and a PostgreSQL server of the test's own where the system has one."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def program(name):
    """Path of a program of PostgreSQL, on the path or where Debian puts it; None for none."""
    found = [*sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True), shutil.which(name)]
    return next((str(one) for one in found if one), None)


@pytest.fixture(scope="session")
def server():
    """Address of a database of a server that ends with the tests."""
    pytest.importorskip("psycopg", reason="anechoic[postgres] installs it")
    initdb, control = program("initdb"), program("pg_ctl")
    if initdb is None or control is None:
        pytest.skip("no PostgreSQL here")
    user = {}
    if os.getuid() == 0:  # the server refuses to run as root
        if not any(one.pw_name == "postgres" for one in pwd.getpwall()):
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
        user = {"user": "postgres"}
    folder = Path(tempfile.mkdtemp(prefix="budget"))
    if user:
        shutil.chown(folder, "postgres")
    how = {**user, "cwd": folder, "check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    data = ["-D", str(folder / "data")]
    subprocess.run([initdb, *data, "-A", "trust", "-U", "book", "--no-sync"], **how)
    options = f"-c listen_addresses='' -c unix_socket_directories={folder}"
    log = ["-l", str(folder / "log")]
    try:
        subprocess.run([control, *data, *log, "-o", options, "-w", "start"], **how)
        yield f"postgresql://book@/postgres?host={folder}"
    finally:
        subprocess.run([control, *data, "-m", "immediate", "stop"], **{**how, "check": False})
        shutil.rmtree(folder)


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request, tmp_path):
    """Where a fresh book is kept."""
    if request.param == "file":
        return str(tmp_path / "budget.db")
    import psycopg

    address = request.getfixturevalue("server")
    with psycopg.connect(address) as connection:
        connection.execute("DROP TABLE IF EXISTS budget")
    return address
