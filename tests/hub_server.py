"""A small server of the hub's HTTP protocol: data sets in memory, small files inline, Parquet through LFS."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_of_the_test"


@dataclass
class Repository:
    private: bool
    commits: list[dict[str, bytes]] = field(default_factory=lambda: [{".gitattributes": b""}])

    def sha(self, number: int) -> str:
        return hashlib.sha1(str((number, sorted(self.commits[number]))).encode()).hexdigest()

    def at(self, revision: str) -> int:
        known = {self.sha(number): number for number in range(len(self.commits))}
        return known[revision] if revision in known else {"main": len(self.commits) - 1, "first": 1}[revision]


@dataclass
class Hub:
    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, value: Any, status: int = 200, **headers: str) -> None:
        self._answer(json.dumps(value).encode(), status, Content_Type="application/json", **headers)

    def _missing(self) -> None:
        self._json({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

    def _handle(self) -> None:
        body = self._body()
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        self.hub.bodies.append(body)
        if path.startswith("/large/"):
            self.hub.large[path.removeprefix("/large/")] = body
            return self._answer(b"")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._json({"error": "Invalid credentials"}, 401)
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        found = re.fullmatch(r"/(?:api/)?datasets/([^/]+/[^/]+?)(?:\.git)?(?:/(.*))?", path)
        if found is None or found[1] not in self.hub.repositories:
            return self._missing()
        return self._of(found[1], self.hub.repositories[found[1]], found[2] or "", body)

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _create(self, wanted: dict[str, Any]) -> None:
        name = f"{wanted['organization']}/{wanted['name']}"
        there = name in self.hub.repositories
        private = wanted.get("private", False) or wanted.get("visibility") == "private"
        self.hub.repositories.setdefault(name, Repository(private))
        url = f"{self.hub.address}/datasets/{name}"
        self._json({"url": url, "name": name, "id": name}, 409 if there else 200)

    def _of(self, name: str, repository: Repository, rest: str, body: bytes) -> None:
        kind, _, rest = rest.partition("/")
        if kind == "preupload":
            modes = ((file["path"], "lfs" if file["path"].endswith(".parquet") else "regular")
                     for file in json.loads(body)["files"])  # fmt: skip
            return self._json({"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": None}
                                         for path, mode in modes]})  # fmt: skip
        if kind == "info":  # of LFS
            return self._json(
                {"transfer": "basic", "objects": [self._upload(each) for each in json.loads(body)["objects"]]}
            )
        if kind == "commit":
            return self._commit(name, repository, body)
        revision, _, path = rest.partition("/")
        try:
            number = repository.at("main" if kind == "" else revision)
        except KeyError:
            return self._json({"error": "Invalid rev id"}, 404, X_Error_Code="RevisionNotFound")
        files, sha = repository.commits[number], repository.sha(number)
        if kind == "resolve":
            if path not in files:
                return self._json({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
            return self._answer(files[path], ETag=f'"{_oid(files[path])}"', X_Repo_Commit=sha)
        if kind == "tree":
            recursive = "recursive=true" in self.path.lower()
            return self._json(_inside(files, path, recursive))
        if kind == "paths-info":
            wanted = self._paths(body)
            return self._json([each for each in _inside(files, "", True) if each["path"] in wanted])
        siblings = [{"rfilename": path} for path in files]
        return self._json({"id": name, "sha": sha, "private": repository.private, "gated": False, "disabled": False,
                           "downloads": 0, "likes": 0, "tags": [], "siblings": siblings})  # fmt: skip

    def _paths(self, body: bytes) -> list[str]:
        if self.headers.get("Content-Type", "").startswith("application/json"):
            return json.loads(body)["paths"]  # type: ignore[no-any-return]
        return parse_qs(body.decode())["paths"]

    def _upload(self, wanted: dict[str, Any]) -> dict[str, Any]:
        return wanted | {"actions": {"upload": {"href": f"{self.hub.address}/large/{wanted['oid']}"}}}

    def _commit(self, name: str, repository: Repository, body: bytes) -> None:
        files = dict(repository.commits[-1])
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                content = self.hub.large[value["oid"]]
                assert hashlib.sha256(content).hexdigest() == value["oid"]
                files[value["path"]] = content
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        repository.commits.append(files)
        sha = repository.sha(len(repository.commits) - 1)
        url = f"{self.hub.address}/datasets/{name}/commit/{sha}"
        self._json({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _inside(files: dict[str, bytes], folder: str, recursive: bool) -> list[dict[str, Any]]:
    """What a folder holds, folders included."""
    start = f"{folder}/" if folder else ""
    inside = [path for path in files if path.startswith(start)]
    parents = {"/".join(path.split("/")[:depth]) for path in inside for depth in range(1, path.count("/") + 1)}
    found = [{"type": "directory", "path": path, "size": 0, "oid": _oid(path.encode())} for path in sorted(parents)]
    found += [_listed(path, files[path]) for path in inside]
    wanted = (each for each in found if each["path"].startswith(start) and each["path"] != folder)
    return [each for each in wanted if recursive or "/" not in each["path"].removeprefix(start)]


def _listed(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}
