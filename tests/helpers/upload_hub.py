"""A Hub on loopback that takes uploads: repositories, LFS objects and commits."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


class UploadHub:
    """Takes uploads as the Hub does; a file of at least `large` bytes goes through LFS.

    Attributes:
        repos: of each repository, the bytes of its files.
        private: what each repository was made with.
        requests: (method, path, headers) of all requests so far.
        status: answers by the beginning of a path: (status, body) instead of the usual answer,
            (status, body, headers), or a function that returns one of them, or None.
        chunk: bytes of the parts in which a large file is to be sent, 0 for the whole file.
        silent: beginnings of paths that get no answer, while the Hub is there.
        slow: beginnings of paths that get their answer one byte in 50 ms.
        ignored: names of files that are in a .gitignore of the repository.
        dropped: names of files that a commit leaves out.
        verify: address to which the client is sent to confirm an LFS object, empty for none.
    """

    def __init__(self, *, large: int = 4096) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, Any] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.status: dict[str, Any] = {}
        self.chunk = 0
        self.parts: dict[str, bytes] = {}
        self.silent: set[str] = set()
        self.slow: set[str] = set()
        self.ignored: set[str] = set()
        self.dropped: set[str] = set()
        self.closed = threading.Event()
        self.verify = ""
        self.large = large
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()

    def paths(self) -> list[str]:
        """Return method and path of every request."""
        return [f"{method} {path}" for method, path, _ in self.requests]

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        """Return (status, data) of the answer to a request."""
        self.requests.append((method, path, headers))
        for start, stated in self.status.items():
            found = stated() if callable(stated) else stated
            if path.startswith(start) and found is not None:
                return found
        usual: dict[str, Callable[[], Any]] = {
            "/api/validate-yaml": lambda: (200, {"errors": [], "warnings": []}),
            "/api/repos/create": lambda: self._create(json.loads(body)),
            "/info/lfs/objects/batch": lambda: self._batch(json.loads(body)),
            "/preupload/main": lambda: self._modes(json.loads(body)),
            "/commit/main": lambda: self._commit(path, body),
            f"/paths-info/{COMMIT}": lambda: self._listed(path, body),
        }
        for end, call in usual.items():
            if path.endswith(end):
                return call()
        if path.startswith("/part/"):
            self.parts[path] = body
            return 200, "", {"ETag": path}
        if path.startswith("/whole/"):
            named = [part["etag"] for part in json.loads(body)["parts"]]
            return self._object(path[7:], b"".join(map(self.parts.__getitem__, named)))
        return self._object(path[5:], body) if path.startswith("/lfs/") else (404, "nothing here")

    def _create(self, asked: dict[str, Any]) -> Any:
        repo = f"{asked['organization']}/{asked['name']}"
        if repo in self.repos:
            return 409, {"error": "already created", "url": f"{self.endpoint}/{repo}"}
        self.repos[repo] = {}
        self.private[repo] = asked.get("visibility")
        return 200, {"url": f"{self.endpoint}/{repo}"}

    def _modes(self, asked: dict[str, Any]) -> Any:
        found = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] >= self.large else "regular",
                "shouldIgnore": file["path"] in self.ignored,
                "oid": None,
            }
            for file in asked["files"]
        ]
        return 200, {"files": found}

    def _batch(self, asked: dict[str, Any]) -> Any:
        return 200, {"transfer": "basic", "objects": [*map(self._actions, asked["objects"])]}

    def _actions(self, wanted: dict[str, Any]) -> dict[str, Any]:
        if wanted["oid"] in self.objects:
            return dict(wanted)
        actions = {"upload": {"href": f"{self.endpoint}/lfs/{wanted['oid']}", "header": {}}}
        if self.chunk:
            numbers = range(1, -(-wanted["size"] // self.chunk) + 1)
            header = {str(n): f"{self.endpoint}/part/{wanted['oid']}/{n}" for n in numbers}
            href = f"{self.endpoint}/whole/{wanted['oid']}"
            actions["upload"] = {"href": href, "header": header | {"chunk_size": str(self.chunk)}}
        if self.verify:
            actions["verify"] = {"href": self.verify, "header": {}}
        return {**wanted, "actions": actions}

    def _object(self, sha256: str, body: bytes) -> Any:
        if hashlib.sha256(body).hexdigest() != sha256:
            return 400, "another sha256"
        self.objects[sha256] = body
        return 200, {}

    def _commit(self, path: str, body: bytes) -> Any:
        repo = path.removeprefix("/api/models/").partition("/commit/")[0]
        if repo not in self.repos:
            return 404, "no such repository"
        files = self.repos[repo]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
        for name in self.dropped:
            files.pop(name, None)
        url = f"{self.endpoint}/{repo}/commit/{COMMIT}"
        return 200, {"commitUrl": url, "commitOid": COMMIT, "pullRequestUrl": None}

    def _listed(self, path: str, body: bytes) -> Any:
        files = self.repos[path.removeprefix("/api/models/").partition("/paths-info/")[0]]
        names = [name for name in parse_qs(body.decode())["paths"] if name in files]
        return 200, [self._row(name, files[name]) for name in names]

    def _row(self, name: str, data: bytes) -> dict[str, Any]:
        row = {"type": "file", "path": name, "size": len(data)}
        row["oid"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        if len(data) >= self.large:
            oid = hashlib.sha256(data).hexdigest()
            row |= {"oid": "0" * 40, "lfs": {"oid": oid, "size": len(data), "pointerSize": 130}}
        return row


def _handler(hub: UploadHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = urlsplit(self.path).path
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, data, *more = hub.answer(self.command, path, headers, body)
            if path.startswith(tuple(hub.silent)):
                hub.closed.wait(30)
            text = (data if isinstance(data, str) else json.dumps(data)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            for name, value in more[0].items() if more else ():
                self.send_header(name, value)
            if path.startswith(tuple(hub.slow)):
                text, self._headers_buffer = b"".join([*self._headers_buffer, b"\r\n", text]), []
                for i in range(len(text)):
                    self.wfile.write(text[i : i + 1])
                    hub.closed.wait(0.05)
                return
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = do_HEAD = do_POST  # noqa: N815  # the base's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    return Handler
