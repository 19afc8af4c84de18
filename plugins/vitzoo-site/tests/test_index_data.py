"""Tasks, licenses and measurements of the index."""

from dataclasses import replace

import pytest

from tables import cases
from vitzoo import Throughput, Weights, describe
from vitzoo_site.index_data import commercial, measurements, results, task

NET = describe("vit_b16")
ROW = Weights("w", file="x.safetensors", repo="acme/net", license="MIT", top1=80.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"label_set": "imagenet-1k"}, "classification"),
        ({"labels": ("a", "b"), "pretraining": "image-text"}, "classification"),
        ({"num_classes": 7}, "classification"),
        ({"num_classes": 512, "pretraining": "image-text"}, "image-text"),
        ({"num_classes": 0, "pretraining": "image-text"}, "image-text"),
        ({"num_classes": 0, "pretraining": "self-supervised"}, "features"),
        ({}, "classification"),
    ],
)
def test_the_task_follows_from_outputs_and_training(changes, expected):
    assert task(NET, replace(ROW, **changes)) == expected


@cases(
    ("license_", "gated", "expected"),
    [
        ("Apache-2.0", False, "yes"),
        ("MIT", False, "yes"),
        ("MIT", True, "read"),
        ("dinov3-license", True, "read"),
        ("LicenseRef-Apple-ASCL", False, "read"),
        ("", False, "read"),
        ("CC-BY-NC-4.0", False, "no"),
        ("CC-BY-NC-4.0", True, "no"),
        ("fair-noncommercial-research-license", False, "no"),
    ],
)
def test_commercial_use_follows_from_license_and_terms(license_, gated, expected):
    assert commercial(replace(ROW, license=license_, gated=gated)) == expected


def test_results_are_those_on_the_classes_of_imagenet():
    assert results(ROW) == {}
    assert results(replace(ROW, label_set="imagenet-21k")) == {}
    row = replace(ROW, label_set="imagenet-1k", imagenet_a=0.0)
    assert results(row) == {"top1": 80.0, "imagenet_a": 0.0}


def test_a_measurement_is_named_with_its_hardware():
    row = Throughput(
        name="gpu",
        images_per_second=10.5,
        hardware="H200",
        precision="bf16",
        mode="eager",
        source="bench.csv",
    )
    nets = [NET, replace(NET, throughput=(row,)), replace(NET, throughput=(row,))]
    assert measurements(nets)["gpu"] == "H200, bf16, eager"
    large = replace(row, name="gpu8", batch_size=8, software="torch 2.15")
    found = measurements([replace(NET, throughput=(row, large))])
    assert list(found.values()) == ["H200, bf16, eager", "H200, bf16, eager, batch 8, torch 2.15"]
