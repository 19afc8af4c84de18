"""Classify images by texts: transformers makes the vectors, vitzoo the classifier.

    python docs/examples/zero_shot.py openai/clip-vit-base-patch32 photo.jpg --labels cat dog
    vitzoo predict zero_shot.safetensors other.jpg

The first argument is a repository of the Hub, or a folder, with a CLIP or SigLIP of transformers.
"""

import argparse
import json
import sys
from pathlib import Path

import safetensors.torch
import torch

import vitzoo

try:
    import transformers
except ImportError:
    raise SystemExit(
        f"install transformers: {sys.executable} -m pip install transformers"
    ) from None

parser = argparse.ArgumentParser(description="Classify images by texts.")
parser.add_argument("model")
parser.add_argument("images", nargs="+")
parser.add_argument("--labels", nargs="+", required=True)
parser.add_argument("--template", default="a photo of a {}.")
given = parser.parse_args()

texts = [given.template.format(label) for label in given.labels]
both = transformers.AutoModel.from_pretrained(given.model).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
length = {"max_length": both.config.text_config.max_position_embeddings}  # as SigLIP was trained
tokens = tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt", **length)
with torch.no_grad():
    vectors = both.get_text_features(input_ids=tokens["input_ids"])
    tensors = {"class_embeddings": getattr(vectors, "pooler_output", vectors)}
    tensors["logit_scale"] = both.logit_scale.exp()
    tensors["logit_bias"] = getattr(both, "logit_bias", torch.zeros(()))  # CLIP has none
metadata = {"labels": json.dumps(given.labels)}
safetensors.torch.save_file(tensors, "texts.safetensors", metadata)

name = given.model if Path(given.model).exists() else f"hf://{given.model}"
network = vitzoo.create(name, class_embeddings="texts.safetensors")
vitzoo.save(network, "zero_shot.safetensors")
for prediction in vitzoo.predict(network, given.images):
    print(prediction.image, *(f"{label} {p:.3f}" for _, label, p in prediction.classes))
