"""A Hugging Face hub of one dataset on localhost: as much of its protocol as `datasets` asks for."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit


def _below(path: str, folder: str, recursive: bool) -> bool:
    parents = [str(p) for p in Path(path).parents]
    return (folder or ".") in (parents if recursive else parents[:1])


@contextmanager
def fake_hub(folder: Path, repo: str, revision: str) -> Iterator[tuple[str, list[str]]]:
    """Serve the files of `folder` as dataset `repo` at `revision`. Yields the endpoint and the log of requests."""
    log: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), "X-Repo-Commit": revision, **headers}.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _json(self, content: object) -> None:
            self._answer(200, json.dumps(content).encode(), Content_Type="application/json")

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            path = unquote(urlsplit(self.path).path)
            log.append(f"{self.command} {path}")
            files = sorted(p for p in folder.rglob("*") if p.is_file())
            listing = [
                {
                    "type": "file",
                    "path": str(p.relative_to(folder)),
                    "size": p.stat().st_size,
                    "oid": hashlib.sha1(p.read_bytes()).hexdigest(),
                }
                for p in files
            ]
            api, resolve = f"/api/datasets/{repo}", f"/datasets/{repo}/resolve/{revision}/"
            if path in (api, f"{api}/revision/{revision}"):
                siblings = [{"rfilename": entry["path"]} for entry in listing]
                self._json(
                    {"_id": "0", "id": repo, "sha": revision, "siblings": siblings, "tags": [], "private": False}
                )
            elif path.startswith(f"{api}/tree/{revision}"):
                below = path.removeprefix(f"{api}/tree/{revision}").strip("/")
                folders = sorted({p.parent for p in files} - {folder})
                found = [{"type": "directory", "path": str(p.relative_to(folder)), "oid": "0"} for p in folders]
                found += listing
                wanted = parse_qs(urlsplit(self.path).query).get("recursive") == ["True"]
                self._json([e for e in found if _below(str(e["path"]), below, wanted)])
            elif path == f"{api}/paths-info/{revision}":
                self._json(listing)
            elif path.startswith(resolve) and (file := folder / path.removeprefix(resolve)).is_file():
                body = file.read_bytes()
                self._answer(200, body, ETag=f'"{hashlib.sha1(body).hexdigest()}"')
            else:
                self._answer(404, b"{}", X_Error_Code="EntryNotFound", Content_Type="application/json")

        do_GET = do_HEAD = do_POST = _serve

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", log
    finally:
        server.shutdown()
