"""A Hub on loopback that takes uploads: repositories, LFS objects and commits."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


class UploadHub:
    """Takes uploads as the Hub does; a file of at least `large` bytes goes through LFS.

    Attributes:
        repos: of each repository, the bytes of its files.
        private: what each repository was made with.
        requests: (method, path, headers) of all requests so far.
        status: answers by the beginning of a path: (status, body) instead of the usual answer.
        verify: address to which the client is sent to confirm an LFS object, empty for none.
    """

    def __init__(self, *, large: int = 4096) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, Any] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.status: dict[str, tuple[int, str]] = {}
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
        self._server.shutdown()
        self._server.server_close()

    def paths(self) -> list[str]:
        """Return method and path of every request."""
        return [f"{method} {path}" for method, path, _ in self.requests]

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        """Return (status, data) of the answer to a request."""
        self.requests.append((method, path, headers))
        for start, found in self.status.items():
            if path.startswith(start):
                return found
        usual: dict[str, Callable[[], Any]] = {
            "/api/validate-yaml": lambda: (200, {"errors": [], "warnings": []}),
            "/api/repos/create": lambda: self._create(json.loads(body)),
            "/info/lfs/objects/batch": lambda: self._batch(json.loads(body)),
            "/preupload/main": lambda: self._modes(json.loads(body)),
            "/commit/main": lambda: self._commit(path, body),
        }
        for end, call in usual.items():
            if path.endswith(end):
                return call()
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
                "shouldIgnore": False,
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
        url = f"{self.endpoint}/{repo}/commit/{COMMIT}"
        return 200, {"commitUrl": url, "commitOid": COMMIT, "pullRequestUrl": None}


def _handler(hub: UploadHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = urlsplit(self.path).path
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, data = hub.answer(self.command, path, headers, body)
            text = (data if isinstance(data, str) else json.dumps(data)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = do_HEAD = do_POST  # noqa: N815  # the base's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    return Handler
