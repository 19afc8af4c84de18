"""`vitzoo embed` against a script with timm and a DataLoader, as whole processes.

Both read the same JPEG files, use both cores, compute the same numbers and write one Parquet file
or several.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch

import vitzoo
from helpers import photographs

pytestmark = pytest.mark.benchmark

FULL = os.environ.get("VITZOO_BENCH") == "full"
NETWORK = ("vit_s16", "vit_small_patch16_224")
COUNT = 256 if FULL else 128  # parts of 64 rows, one or two for each core
SCRIPT = """
import os, sys
from pathlib import Path

import numpy as np, pyarrow as pa, pyarrow.parquet as pq, safetensors.torch, timm, torch
from PIL import Image
from timm.data import create_transform

name, weights, folder, out = sys.argv[1:]
FILES = sorted(Path(folder).glob("*.jpg"))
PREPARE = create_transform(
    (3, 224, 224), interpolation="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3, crop_pct=0.9
)

class Photos(torch.utils.data.Dataset):
    def __len__(self):
        return len(FILES)

    def __getitem__(self, i):
        with Image.open(FILES[i]) as image:
            return PREPARE(image.convert("RGB"))

if __name__ == "__main__":
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    model = timm.create_model(name, num_classes=0).eval()
    model.load_state_dict(safetensors.torch.load_file(weights), strict=False)
    loader = torch.utils.data.DataLoader(Photos(), batch_size=32, num_workers=cores)
    with torch.inference_mode():
        rows = np.concatenate([model(batch).numpy() for batch in loader])
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    table = pa.table({"key": [str(file) for file in FILES], "pooled": column})
    pq.write_table(table, out)
"""


@pytest.fixture
def place(tmp_path, timm):
    """A folder with photographs, the same weights for both sides, and the script."""
    draw, photos = random.Random(0), photographs()
    (tmp_path / "photos").mkdir()
    for i in range(COUNT):
        photo = photos[i % 2]
        x, y = draw.randrange(photo.width - 500), draw.randrange(photo.height - 375)
        crop = photo.crop((x, y, x + 500, y + 375))  # a usual size of ImageNet
        crop.save(tmp_path / "photos" / f"{i:05}.jpg", quality=90)
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    ours, reference = NETWORK
    file = tmp_path / "timm.safetensors"
    safetensors.torch.save_file(timm.create_model(reference).state_dict(), file)
    model = vitzoo.create(ours, weights=file)
    model.preprocessing = vitzoo.Preprocessing(crop_pct=0.9)
    vitzoo.save(model, tmp_path / "ours.safetensors")
    return tmp_path


def test_embed_against_timm_and_a_data_loader(compare, place, capsys):
    turns, said = iter(range(100)), []
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    env["PYTHONPATH"] = str(Path(vitzoo.__file__).parents[1])

    def process(*args):
        command = [sys.executable, *map(str, args)]
        return subprocess.run(command, check=True, cwd=place, env=env, capture_output=True).stdout

    def ours():
        out = place / f"ours-{next(turns)}"
        command = ("-m", "vitzoo", "embed", "ours.safetensors", "photos", "--out", out, "--json")
        said.append(json.loads(process(*command)))

    def reference():
        process("script.py", NETWORK[1], "timm.safetensors", "photos", "reference.parquet")

    title = f"embed {COUNT} photographs, {NETWORK[0]}"
    result = compare(title, {"vitzoo": ours, "timm": reference}, rounds=3)
    with capsys.disabled():
        shares = ", ".join(f"{stage} {share:.0%}" for stage, share in said[-1]["shares"].items())
        print(f"share of the work: {shares}")
    found = pq.read_table(place / "ours-0")["pooled"].combine_chunks()
    expected = pq.read_table(place / "reference.parquet")["pooled"].combine_chunks()
    found, expected = (np.stack(vectors.to_numpy(False)) for vectors in (found, expected))
    assert np.abs(found - expected).max() <= 5e-5 * max(1, np.abs(expected).max())
    result.check("timm", at_least=1)
