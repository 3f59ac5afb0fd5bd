"""A MariaDB of our own, from Debian's package: on a socket and a port, in a folder that goes with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.debian import require
from tests.support.guard import kill_tree
from tests.support.services import free_port, unavailable
from tests.support.waiting import PATIENCE_S, wait_for

# The core package has no service that would start with the machine.
PROGRAM, PACKAGE = "mariadbd", "mariadb-server-core"
DATABASE, USER, PASSWORD = "shop", "asked", "hunter2%40/ö"
_SMALL = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0")
_USERS = f"""
FLUSH PRIVILEGES;
CREATE USER root@localhost;
GRANT ALL ON *.* TO root@localhost WITH GRANT OPTION;
CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4;
CREATE USER {USER} IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON {DATABASE}.* TO {USER};
CREATE USER stranger;
"""


class MariaServer:
    """`stop` and `start` are what a restart is made of."""

    def __init__(self) -> None:
        program = require(PROGRAM, PACKAGE)
        # A short name, since that of a socket is limited.
        self.folder = Path(tempfile.mkdtemp(prefix="shardmill-maria-"))
        self.port = free_port()
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        self._command = [program, "--no-defaults", *as_root, f"--datadir={self.folder}/data", *_SMALL]
        self._bootstrap()
        self.start()

    def _bootstrap(self) -> None:
        (self.folder / "data").mkdir()
        tables = next(Path("/usr/share").glob("m*/m*_system_tables.sql"), None)
        if tables is None:
            unavailable(f"mariadbd has no tables to begin with: apt-get install {PACKAGE}")
            return
        script = f"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n{tables.read_text()}{_USERS}"
        command = [*self._command, "--bootstrap", "--skip-networking"]
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]

    def start(self, *options: str) -> None:
        address = [f"--socket={self.socket}", f"--port={self.port}", "--bind-address=127.0.0.1"]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *address, f"--pid-file={self.folder}/pid", *options], stdout=log, stderr=log
            )
        wait_for(self._answers)

    def _answers(self) -> bool:
        import pymysql

        if self._process.poll() is not None:
            raise AssertionError((self.folder / "log").read_text()[-2000:])
        try:
            self.execute("SELECT 1")
        except pymysql.Error:
            return False
        return True

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def remove(self) -> None:
        kill_tree(self._process)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def socket(self) -> str:
        return str(self.folder / "socket")

    def url(self, user: str = USER, password: str = PASSWORD, database: str = DATABASE, by: str = "socket") -> str:
        """By the socket, or by TCP; the user `asked` needs its password."""
        word = f":{quote(password, safe='')}" if password else ""
        if by == "socket":
            return f"mysql://{user}{word}@/{database}?unix_socket={self.socket}"
        return f"mysql://{user}{word}@127.0.0.1:{self.port}/{database}"

    def execute(self, *statements: str) -> list[Any]:
        """As root, by the socket."""
        import pymysql

        place: dict[str, Any] = {"unix_socket": self.socket, "user": "root", "database": DATABASE, "ssl_disabled": True}
        with pymysql.connect(**place, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []
