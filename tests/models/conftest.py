"""Shared by the models' tests: a hub on this machine."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class LocalHub:
    """A small server that speaks the part of the hub's protocol that a download uses."""

    endpoint: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=lambda: {"main": COMMIT, "v1/x": COMMIT})
    sizes: dict[str, int] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: bool = False
    requests: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a path."""
        if self.broken:
            return 500, {}, b""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        api = parts[:2] == ["api", "models"]
        repo, rest = "/".join(parts[2:4] if api else parts[:2]), parts[4:] if api else parts[2:]
        if repo in self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        if repo not in self.files:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if api and rest[0] == "commits":
            commit = {"id": COMMIT, "authors": [], "date": "2026-01-01T00:00:00.000Z", "title": "", "message": ""}
            return 200, {}, json.dumps([commit]).encode()
        revision = "/".join(rest[1:]) if api else rest[1]
        commit = self.branches.get(revision, revision)
        if commit != COMMIT:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if api:
            siblings = [
                {"rfilename": name, "size": self.sizes.get(name, len(body))} for name, body in self.files[repo].items()
            ]
            return 200, {}, json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
        headers = {"X-Repo-Commit": COMMIT}
        body = self.files[repo].get("/".join(rest[2:]))
        if body is None:
            return 404, headers | {"X-Error-Code": "EntryNotFound"}, b""
        return 200, headers | {"ETag": f'"{hashlib.sha256(body).hexdigest()}"'}, body


@pytest.fixture
def local_hub(monkeypatch, tmp_path):
    """A running hub, an empty cache, and `huggingface_hub` pointed at both."""
    hub = LocalHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path = urlsplit(self.path).path
            hub.requests.append(f"{self.command} {path}")
            hub.tokens.add(self.headers.get("Authorization"))
            status, headers, body = hub.answer(path)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self):
            self.do_GET()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"

    from huggingface_hub import constants

    for name, value in {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()
