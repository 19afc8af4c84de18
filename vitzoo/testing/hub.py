"""A Hub on loopback: it serves files and the model API, and tests can replace its answers.

It can redirect, limit requests and refuse tokens as the official Hub did in November 2026.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CACHED = "/api/resolve-cache/models/"
Behaviour = Callable[[BaseHTTPRequestHandler, Any], None]
"""Answers one request. It takes the handler and the right bytes, None if the file is missing."""


class Hub:
    """Serves `/{owner}/{name}/resolve/{revision}/{file}` and the model API on 127.0.0.1.

    Every file but `.json` counts as stored in LFS, so the model API states its SHA-256. A file is
    served at any revision.

    Attributes:
        files: bytes by (repo, file).
        commits: commit by repo; `COMMIT` for the others.
        anything: bytes of every other path; None answers 404.
        script: behaviours for the next requests for files, one for each; None serves the file.
        always: behaviour for the requests after `script`; None serves the file.
        api: behaviour for requests to the model API (it gets the path); None answers normally.
        storage: another Hub, to which requests for large files are redirected (302, with the
            headers `X-Linked-Etag` and `X-Linked-Size`); requests for a config are redirected to
            `/api/resolve-cache` of this one (307). None: this Hub serves every file at once.
        buckets: requests in `window` that are answered, by bucket (`api` or `resolvers`); to more
            requests it answers 429 with the header `RateLimit`.
        window: seconds.
        clock: returns the time in seconds.
        tokens: valid tokens; it answers 401 to a request with another one. None: all are valid.
        requests: (method, path, headers) of all requests so far.

    >>> with Hub() as hub:
    ...     sha256 = hub.add("acme/net", "model.safetensors", b"bytes")
    ...     len(hub.requests)
    0
    """

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], bytes] = {}
        self.commits: dict[str, str] = {}
        self.anything: bytes | None = None
        self.script: deque[Behaviour | None] = deque()
        self.always: Behaviour | None = None
        self.api: Behaviour | None = None
        self.storage: Hub | None = None
        self.buckets: dict[str, int] = {}
        self.window = 300.0
        self.clock: Callable[[], float] = time.monotonic
        self.tokens: set[str] | None = None
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self._counts: Counter[tuple[str, int]] = Counter()
        self._counting = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self._answer))
        serve_forever = self._server.serve_forever
        self._thread = threading.Thread(target=serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def add(self, repo: str, file: str, data: bytes, *, revision: str = COMMIT) -> str:
        """Put a file into a repository and return its sha256.

        Args:
            repo: `owner/name`.
            file: path in the repository.
            data: its bytes.
            revision: the newest commit of the repository.
        """
        self.files[repo, file] = data
        self.commits[repo] = revision
        return hashlib.sha256(data).hexdigest()

    @property
    def endpoint(self) -> str:
        """URL for `VITZOO_ENDPOINTS` and `VITZOO_TRUST_ENDPOINT`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def host(self) -> str:
        """Host and port."""
        return urlsplit(self.endpoint).netloc

    @property
    def ranges(self) -> list[str | None]:
        """The Range header of each request for a file so far; None for a request without it."""
        return [headers.get("Range") for _, _, headers in self.file_requests()]

    def file_requests(self) -> list[tuple[str, str, dict[str, str]]]:
        """Return the requests for files, without those to the model API."""
        return [request for request in self.requests if "/resolve/" in request[1]]

    def environment(self, home: str | os.PathLike[str]) -> dict[str, str]:
        """Return variables: vitzoo downloads from this Hub alone and keeps its files in `home`."""
        return {
            "VITZOO_HOME": os.fspath(home),
            "VITZOO_LOCK": str(Path(home, "vitzoo.lock")),
            "VITZOO_ENDPOINTS": self.endpoint,
            "VITZOO_TRUST_ENDPOINT": self.endpoint,
            "VITZOO_TIMEOUT": "10",
            "VITZOO_OFFLINE": "0",
            "VITZOO_PINS": "",
            "VITZOO_FROZEN": "0",
            "VITZOO_TOKEN_HOSTS": "",
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path).path
        self.requests.append((handler.command, handler.path, dict(handler.headers)))
        api = path.startswith("/api/models/")
        if self._denies(handler) or self._limits(handler, "api" if api else "resolvers"):
            return
        if api:
            (self.api or self._model)(handler, unquote(path))
            return
        repo, _, rest = path.strip("/").partition("/resolve/")
        if cached := path.startswith(CACHED):
            owner, name, rest = path.removeprefix(CACHED).split("/", 2)
            repo = f"{owner}/{name}"
        file = unquote(rest.partition("/")[2])
        data = self.files.get((unquote(repo), file), self.anything)
        behaviour = None if cached else self.script.popleft() if self.script else self.always
        if behaviour is not None:
            behaviour(handler, data)
        elif data is None:
            reply(handler, 404, {"X-Error-Code": "EntryNotFound"})
        elif self.storage and not cached:
            self._redirect(handler, repo, file, data)
        else:
            serve(handler, data, headers={"X-Repo-Commit": self.commits.get(repo, COMMIT)})

    def _denies(self, handler: BaseHTTPRequestHandler) -> bool:
        """Answer a request with a token that is not valid."""
        token = handler.headers.get("Authorization")
        if self.tokens is None or not token or token.removeprefix("Bearer ") in self.tokens:
            return False
        reason = "Invalid credentials in Authorization header"
        scheme = 'Bearer realm="Authentication required"'
        headers = {"X-Error-Message": reason, "WWW-Authenticate": scheme}
        reply(handler, 401, headers, b"Invalid username or password.")
        return True

    def _limits(self, handler: BaseHTTPRequestHandler, bucket: str) -> bool:
        """Answer a request that is one too many in this window."""
        most, now = self.buckets.get(bucket), self.clock()
        if most is None:
            return False
        window, elapsed = divmod(now, self.window)
        with self._counting:
            self._counts[bucket, int(window)] += 1
            if self._counts[bucket, int(window)] <= most:
                return False
        left = int(self.window - elapsed) + 1
        policy = f'"fixed window";"{bucket}";q={most};w={self.window:.0f}'
        headers = {"RateLimit": f'"{bucket}";r=0;t={left}', "RateLimit-Policy": policy}
        reply(handler, 429, headers)
        return True

    def _redirect(self, handler: BaseHTTPRequestHandler, repo: str, file: str, data: bytes) -> None:
        """Redirect a request for a file to the storage, and for a config to the cache."""
        commit = self.commits.get(repo, COMMIT)
        if file.endswith(".json") or self.storage is None:
            target = f"{CACHED}{repo}/{commit}/{quote(file)}?etag=x"
            reply(handler, 307, {"Location": target, "X-Repo-Commit": commit})
            return
        self.storage.files[repo, file] = data
        sha256, path = hashlib.sha256(data).hexdigest(), f"{repo}/resolve/{commit}/{quote(file)}"
        headers = {
            "Location": f"{self.storage.endpoint}/{path}?Signature=x",
            "X-Repo-Commit": commit,
            "X-Linked-Size": str(len(data)),
            "X-Linked-ETag": f'"{sha256}"',
            "X-Xet-Hash": hashlib.sha256(sha256.encode()).hexdigest(),
        }
        reply(handler, 302, headers, b"Found")

    def _model(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        repo = path.removeprefix("/api/models/").partition("/revision/")[0]
        siblings = [
            _sibling(file, data) for (owner, file), data in self.files.items() if owner == repo
        ]
        if not siblings:
            reply(handler, 404, {"X-Error-Code": "RepoNotFound"})
            return
        commit = self.commits.get(repo, COMMIT)
        info = {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": []}
        reply(handler, 200, {"Content-Type": "application/json"}, json.dumps(info).encode())


def reply(
    handler: BaseHTTPRequestHandler,
    status: int,
    headers: Mapping[str, str | None] | tuple[()] = (),
    body: bytes = b"",
) -> None:
    """Answer with exactly these headers; the length of the body is added if they lack it."""
    handler.send_response(status)
    all_headers: dict[str, str | None] = dict(headers)
    all_headers.setdefault("Content-Length", str(len(body)))
    for name, value in all_headers.items():
        if value is not None:
            handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
        handler.wfile.flush()


def serve(
    handler: BaseHTTPRequestHandler,
    data: bytes,
    *,
    headers: Mapping[str, str | None] | tuple[()] = (),
) -> None:
    """Serve a file, or the range of it that the request names."""
    start = 0
    wanted = handler.headers.get("Range", "")
    if wanted.startswith("bytes="):
        start = int(wanted[6:].partition("-")[0])
    if start >= len(data) > 0 and wanted:
        reply(handler, 416, {"Content-Range": f"bytes */{len(data)}"})
        return
    base: dict[str, str | None] = {
        "X-Repo-Commit": COMMIT,
        "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
        "Content-Type": "application/octet-stream",
    }
    if wanted:
        base["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
    reply(handler, 206 if wanted else 200, base | dict(headers), data[start:])


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing; tests close connections on purpose."""


def _handler(answer: Callable[[BaseHTTPRequestHandler], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # otherwise the body follows its headers after 40 ms

        def do_GET(self) -> None:
            answer(self)

        do_HEAD = do_CONNECT = do_GET  # noqa: N815  # the base's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base's name
            pass

    return Handler


def _sibling(file: str, data: bytes) -> dict[str, Any]:
    if file.endswith(".json"):
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        return {"rfilename": file, "size": len(data), "blobId": blob}
    lfs = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}
    return {"rfilename": file, "size": len(data), "blobId": "0" * 40, "lfs": lfs}
