"""Commands that are refused for an argument, a path or a missing package."""

from __future__ import annotations

from pathlib import Path

# Arguments, exit code, and a word of the message. `taken` is a file, `full` a folder with a file.
REFUSED = [
    ("plot filters vit_digits --out taken.png", 2, "taken.png already exists"),
    ("plot filters vit_digits --out no/a.png", 2, "no folder no"),
    ("plot filters vit_digits --out a.txt", 2, "a.txt"),
    ("plot filters vit_digits --out a.png --layers 1", 2, "does not use layers"),
    ("plot attention vit_digits --out a.png", 2, "needs one image, got 0"),
    ("plot attention vit_digits gone.png --out a.png", 1, "no file gone.png"),
    ("predict vit_digits gone.png", 1, "no file gone.png"),
    ("predict vit_digits taken.png --top 0", 2, "--top"),
    ("predict vit_digits taken.png --weights none", 1, "'none'"),
    ("predict gone.safetensors taken.png", 1, "gone.safetensors"),
    ("export vit_digits full --to torch", 2, "full has other files"),
    ("export vit_digits taken.png --to torch", 2, "not a folder"),
    ("export vit_digits no/new --to torch", 2, "no folder"),
    ("export vit_digits new --to torch --int8 taken.png", 2, "onnx only"),
    ("export vit_digits new --to onnx --int8 gone.png", 1, "no file gone.png"),
    ("convert vit_digits --to timm a.txt", 2, "a.txt"),
    ("convert vit_digits --to timm taken.safetensors", 2, "already exists"),
    ("convert vit_digits --to timm no/a.safetensors", 2, "no folder no"),
    ("convert gone.safetensors --to timm a.safetensors", 1, "gone.safetensors"),
    ("convert a.bin --from-pickle a.txt", 2, "a.txt"),
    ("embed vit_digits taken.png --out taken.png", 2, "not a folder"),
    ("embed vit_digits taken.png --out full", 2, "full has other files"),
    ("embed vit_digits gone.png --out new", 1, "no file gone.png"),
    ("predict vit_digits taken.png --device nope", 2, "'nope'"),
    ("convert full --to timm a.safetensors", 1, "full is a folder without weights"),
    ("predict full taken.png", 1, "full is a folder without weights"),
    ("embed vit_digits full --out new", 1, "full contains no images"),
    ("embed vit_digits *.jpg --out new", 1, "no files that match *.jpg"),
    ("embed vit_digits {a,b}.png --out new", 1, "no file a.png"),
    ("predict vit_digits full", 1, "full contains no images"),
    ("embed vit_digits taken.png --out new --shard 1", 2, "INDEX/COUNT"),
    ("embed vit_digits taken.png --out new --shard 5/2", 2, "INDEX/COUNT"),
    ("embed vit_digits taken.png --out new --output poled", 2, "'pooled'"),
    ("embed vit_digits taken.png --out new --output blocks.99", 2, "'blocks.99'"),
    ("push vit_digits net --dry-run --folder new", 2, "owner/name"),
    ("push vit_digits acme/net --dry-run", 2, "--folder"),
    ("push vit_digits acme/net --dry-run --folder full", 2, "full has other files"),
    ("push vit_digits acme/net --dry-run --folder new --license =", 2, "license"),
    ("push vit_digits acme/net", 4, "offline"),
    ("link vit_digits full --for timm", 2, "full has other files"),
    ("probe vit_digits gone", 2, "gone: there is no such folder"),
    ("probe vit_digits taken.png", 2, "taken.png: this file lists no labelled images"),
    ("probe vit_digits full --test-share 2", 2, "--test-share"),
    ("bench vit_digits --ways eager,nope", 2, "nope"),
    ("predict hf://acme taken.png", 2, "hf://owner/repo"),
    ("probe vit_digits full --save a.txt", 2, "a.txt"),
    ("probe vit_digits full --confusion taken.png", 2, "taken.png already exists"),
]
NO_TOKEN = ("push taken.safetensors acme/net", 4, "no token")
NEED_PACKAGES = [  # the exit code is 1 and the message says `pip install`
    "plot filters vit_digits --out a.png",
    "export vit_digits new --to onnx",
    "export vit_digits new --to openvino",
    "embed vit_digits taken.png --out new",
    "probe vit_digits full",
    "probe vit_digits full --confusion a.png",
]
UNKNOWN = [  # the name of a network; the exit code is 1
    "plot filters vit_nope --out a.png",
    "predict vit_nope taken.png",
    "export vit_nope new --to torch",
    "convert vit_nope --to timm a.safetensors",
    "embed vit_nope taken.png --out new",
    "push vit_nope acme/net --dry-run --folder new",
    "link vit_nope new --for timm",
    "probe vit_nope full",
    "bench vit_nope",
    "summary vit_nope",
]


def without_token(folder: Path) -> dict[str, str]:
    """Return the variables of a user who is online and has no token."""
    names = ("VITZOO_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN")
    return dict.fromkeys((*names, "HUGGING_FACE_HUB_TOKEN"), "") | {"HF_HOME": str(folder / "hf")}


def make_files(folder: Path) -> None:
    """Make what the commands name."""
    for name in ("taken.png", "taken.safetensors"):
        (folder / name).touch()
    (folder / "full").mkdir()
    (folder / "full" / "other").touch()
