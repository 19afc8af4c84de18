"""Runs the benchmarks in full, and writes their figures into docs/benchmarks.md.

    python tests/update_benchmarks.py [--anyway | --pages] [--only FILE...]

The run needs an idle machine and about 50 minutes. Its figures are kept in
tests/facts/benchmarks.json, also those that miss a promise; the exit code is then 1. With --anyway
it also runs on a busy machine, and the page states the load. With --pages nothing is measured: the
pages are written again from the data. With --only, these files of tests/benchmarks are measured and
the other figures kept; say on the page which figures are from a run of their own. What stands on a
page between `<!-- benchmarks: BLOCK -->` and `<!-- end -->` is replaced.
"""

from __future__ import annotations

import argparse
import ast
import datetime as dt
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "benchmarks"
DATA = ROOT / "tests" / "facts" / "benchmarks.json"
PAGES = (ROOT / "docs" / "benchmarks.md",)
BY_HAND = "python tests/update_benchmarks.py"
IDLE = 0.3  # the highest load average of a minute at which a run starts
Row = dict[str, Any]
Data = dict[str, Any]  # machine, versions, failed tests and rows of a run

# What vitzoo is compared with. Every side of a comparison has to be explained here.
SIDES = {
    "timm": "timm, with the same weights, file and settings",
    "a loop of timm's parts": "a loop of 90 lines with timm's optimizer, schedule and transforms, "
    "and the same network and images",
    "timm's features_only": "timm's `features_only` network, with the same weights",
    "transformers' Dinov2Backbone": "transformers' `Dinov2Backbone`, with the same weights",
    "vitzoo, global attention": "the same network, in which every block attends to the whole image",
    "timm.list_models()": "a new process that imports timm and lists its models",
    "what decoding and GPU allowed": "what 16 threads and the GPU allowed in the same run, in "
    "which a sleep takes longer if the cores are busy",
    "what they allow without overhead": "what they would allow if sleeps took their exact time",
    "in its process": "no other side: the time of the CPU in the process of vitzoo",
    "hf_hub_download": "`hf_hub_download` of huggingface_hub, from the same local server. It does "
    "not hash the file; vitzoo does",
    "bare interpreter": "a new Python process that does nothing (`python -c pass`). No command "
    "written in Python can be quicker",
    "one after the other": "`vitzoo fetch` once for each file",
    "reading the vectors": "reading them with numpy, safetensors or pyarrow in a process that has "
    "read before. Another process with limits reads Parquet for vitzoo",
    "vectors and images alone": "reading the vectors, and computing those of the images",
    "a new process": "no other side: the seconds of the command",
    "full hash": "the SHA-256 of all bytes of the file",
    "reading the file": "reading all bytes of the file into new memory",
    "hashing the file": "the SHA-256 of all bytes of the file, read in pieces",
    "modules, file and tensors alone": "building plain modules of the network, mapping the "
    "file, and assigning its tensors: no check, no registry and no options",
    "torch, modules and forward alone": "a new process that imports torch, builds plain modules, "
    "maps the file, and computes one image",
    "vitzoo, merge 0": "the same network without token merging",
    "padding": "the same network on sequences that are padded to the longest one, with a mask",
    "single images": "the same network, one image after the other",
    "on one core": "no other program: the seconds of one process on one core",
    "beyond the imports": "the memory of a process that has only imported vitzoo and torch",
    "10,000 names": "the same with 10,000 names: the seconds per name",
    "the plain call": "`create(NAME, weights=FILE)` without changes, and the interpolation or the "
    "repeated kernel that the change needs",
    "vitzoo, 2,000": "vitzoo with a fifth of the variants",
    "vitzoo, all plugins": "vitzoo reading the manifests of all plugins",
    "vitzoo, no plugins": "vitzoo without the plugins",
}

# The first figures of the page: title and side of a row, and what it means to a user.
FIVE = {
    ("create(pretrained=True), vit_base_patch16_224", "timm"): (
        '`create("vit_b16", pretrained=True)`, file on the local disk',
        "timm, same file",
    ),
    ("new process to first logits, vit_base_patch16_224", "timm"): (
        "new process until the first logits of `vit_b16`, same file",
        "timm",
    ),
    ("first load, create(NAME, weights=FILE), B/16", "timm"): (
        '`create("vit_b16", weights="model.safetensors")`, a file of your own, first load',
        "timm, same file",
    ),
    ("download and verify", "hf_hub_download"): (
        "download from a local server; vitzoo also verifies the file",
        "`hf_hub_download`",
    ),
    ("vitzoo list", "timm.list_models()"): (
        "`vitzoo list` as a new process",
        "`timm.list_models()`",
    ),
}
COMMAND = re.compile(r"^\| (vitzoo [^,|]*[^,| ])")  # in which `--` is no dash
BLOCK = re.compile(r"(<!-- benchmarks: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEADER = """
### {topic}

| measured | vitzoo | compared with | time | ratio | promise | held |
|---|---|---|---|---|---|---|
"""
BOUNDS = {"at_least": "at least", "at_most": "at most"}


def filled(text: str, data: Data) -> str:
    """Return a page with its blocks made from the data."""
    return BLOCK.sub(lambda match: match[1] + BLOCKS[match[2]](data) + match[3], text)


def _machine(data: Data) -> str:
    lines = [
        f"| {name} | {value} |\n" for name, value in (data["machine"] | data["versions"]).items()
    ]
    return "| | |\n|---|---|\n" + "".join(lines)


def _sides(data: Data) -> str:
    used = {row["side"] for row in data["rows"]}
    lines = [f"| {side} | {what} |\n" for side, what in SIDES.items() if side in used]
    return "| compared with | what it is |\n|---|---|\n" + "".join(lines)


def _figures(data: Data) -> str:
    promised = [row["held"] for row in data["rows"] if row["held"] is not None]
    text = f"The run held {sum(promised)} of {len(promised)} promises.\n"
    missed = [f"{row['title']} ({row['side']})" for row in data["rows"] if row["held"] is False]
    text += f"Not held: {'; '.join(missed)}.\n" if missed else ""
    for topic in dict.fromkeys(row["topic"] for row in data["rows"]):
        rows = [row for row in data["rows"] if row["topic"] == topic]
        lines = [COMMAND.sub(r"| `\1`", f"| {_line(row)} |\n") for row in rows]
        text += HEADER.format(topic=topic) + "".join(lines)
    return text


def _five(data: Data) -> str:
    found = {(row["title"], row["side"]): row for row in data["rows"]}
    versions = data["versions"]
    text = (
        f"All were measured on {versions['date']}, with {data['machine']['cores']} CPU "
        f"cores, torch {versions['torch']} and timm {versions['timm']}:\n\n"
        "| measured | compared with | ratio |\n|---|---|---|\n"
    )
    for key, (what, side) in FIVE.items():
        ratio, low, high = map(_number, (found[key]["value"], *found[key]["interval"]))
        text += f"| {what} | {side} | {ratio} ({low} to {high}) |\n"
    return text


BLOCKS = {"machine": _machine, "sides": _sides, "figures": _figures, "five": _five}


def _line(row: Row) -> str:
    held = {True: "yes", False: "**no**", None: ""}[row["held"]]
    if "medians" not in row:  # a figure that is no ratio of two times
        promised = [
            f"{words} {_value(row, row[key])}"
            for key, words in BOUNDS.items()
            if row[key] is not None
        ]
        cells = ["", row["side"], "", _value(row, row["value"]), ", ".join(promised), held]
        return " | ".join([row["title"], *cells])
    times = [
        f"{_time(middle)} ({_time(low)} to {_time(high)})"
        for middle, (low, high) in zip(row["medians"], row["spreads"], strict=True)
    ]
    promise = row["at_least"]
    longer = (row["value"] if promise is None else promise) < 1  # than a floor
    ratio, low, high = (_ratio(value, longer) for value in (row["value"], *row["interval"]))
    low, high = (high, low) if longer else (low, high)
    unit = "x as long" if longer else "x as fast"
    said = ""
    if promise is not None:
        said = f"at {'most' if longer else 'least'} {_ratio(promise, longer)}{unit}"
    cells = [times[0], row["side"], times[1], f"{ratio}{unit} ({low} to {high})", said, held]
    return " | ".join([row["title"], *cells])


def _ratio(value: float, longer: bool) -> str:
    return _number(1 / value if longer else value)


def _value(row: Row, value: float) -> str:
    unit = row["unit"]
    return f"{_number(value)}{unit if unit.startswith('x') else f' {unit}'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(seconds: float) -> str:
    return f"{_number(seconds)} s" if seconds >= 1 else f"{_number(seconds * 1e3)} ms"


def wrong(data: Data) -> Iterator[str]:
    """Yield what a run lacks: rows of tests and promises, explained sides, first figures.

    A test that missed a promise has a row that says so; any other failed test is reported.
    """
    rows = data["rows"]
    missed = {row["test"] for row in rows if row["held"] is False}
    for test in data["failed"]:
        if test not in missed:
            yield f"{test} failed, and not for a missed promise"
    checked = Counter(row["test"].partition("[")[0] for row in rows if row["held"] is not None)
    present = {row["test"].partition("[")[0] for row in rows}
    for test, promises in _promises():
        if test not in present:
            yield f"{test} has no figure"
        elif checked[test] < promises:
            yield f"{test} checks {promises} promises, of which the data have {checked[test]}"
    keys = Counter((row["title"], row["side"]) for row in rows)
    for key, count in keys.items():
        if count > 1:
            yield f"{count} figures have the title and side {key}; readers have to tell them apart"
    for side in sorted({row["side"] for row in rows} - SIDES.keys()):
        yield f"SIDES of tests/update_benchmarks.py does not explain {side!r}"
    for key in FIVE.keys() - keys.keys():
        yield f"FIVE of tests/update_benchmarks.py names {key}, which was not measured"


def _promises() -> Iterator[tuple[str, int]]:
    """Yield each benchmark test, and how many promises its code checks."""
    for file in sorted(FOLDER.glob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        checking = {name for name, node in functions.items() if any(map(_checks, ast.walk(node)))}
        for name, node in functions.items():
            if name.startswith("test_"):
                calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
                by_helper = [c for c in calls if getattr(c.func, "id", None) in checking]
                yield f"{file.name}::{name}", len(by_helper) + sum(map(_checks, calls))


def _checks(node: ast.AST) -> bool:
    """Return whether this is a call that holds a promise."""
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") not in ("check", "record"):
        return False
    return any(keyword.arg in BOUNDS for keyword in node.keywords)


def machine() -> dict[str, Any]:
    """Return what the figures depend on besides the software; nothing that names the machine."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*: (.*)", info, re.MULTILINE)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": f"{pages / 2**30:.0f} GiB",
        "kernel": f"Linux {re.match(r'[0-9.]*[0-9]', platform.release())[0]}",
        "load before the run": f"{os.getloadavg()[0]:.2f}",
    }


def versions() -> dict[str, str]:
    """Return the versions of both sides, and the date."""
    import vitzoo

    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    others = ("torch", "timm", "transformers", "huggingface_hub", "safetensors")
    return {
        "Python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in others},
        "vitzoo": f"{vitzoo.__version__}, commit {commit or 'unknown'}",
        "namespaces": ", ".join(info.namespace for info in vitzoo.plugins()),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def measured(only: Sequence[str] = ()) -> Data:
    """Run all benchmarks in full, or some files; return the figures, and the tests that failed.

    Each file has a process, so that none finds memory that the libraries of another have kept.
    """
    options = ("-q", "--durations=0", "--durations-min=10", "-m", "benchmark and not install")
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as file:
        env = os.environ | {"VITZOO_BENCH": "full", "VITZOO_BENCH_RESULTS": file.name}
        for tests in sorted(FOLDER / name for name in only) or sorted(FOLDER.glob("test_*.py")):
            command = [sys.executable, "-m", "pytest", *options, str(tests)]
            code = subprocess.run(command, cwd=FOLDER, env=env).returncode
            if code not in (0, 1):  # passed, or some tests failed
                raise SystemExit(f"pytest ended with {code}; nothing is written")
        lines = [json.loads(line) for line in file]
    return {
        "failed": [line["failed"] for line in lines if "failed" in line],
        "rows": [line for line in lines if "failed" not in line],
    }


def merged(before: Data, new: Data) -> Data:
    """Return earlier data in which the figures of the topics of `new` are replaced."""
    topics = {row["topic"] for row in new["rows"]}
    other = [row for row in before["rows"] if row["topic"] not in topics]
    again = {row["test"] for row in before["rows"]} - {row["test"] for row in other}
    failed = [test for test in before["failed"] if test not in again]
    return before | {"rows": [*other, *new["rows"]], "failed": [*failed, *new["failed"]]}


def text_of(data: Data) -> str:
    """Return the data as JSON with a line for each row, numbers with four digits."""
    rows = (json.dumps(row, ensure_ascii=False) for row in _rounded(data["rows"]))
    head = json.dumps({key: data[key] for key in ("machine", "versions", "failed")}, indent=1)
    return head.removesuffix("\n}") + ',\n "rows": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.4g}")
        case list():
            return [_rounded(item) for item in value]
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
    return value


def write_pages(data: Data) -> None:
    """Write the page."""
    if problems := list(wrong(data)):
        raise SystemExit("\n".join(["no page is written:", *problems]))
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), data), encoding="utf-8")


def main(*arguments: str) -> int:
    """Measure, and write data and page; 1 if a promise was missed."""
    parser = argparse.ArgumentParser(prog=BY_HAND, description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--anyway", action="store_true", help="measure on a busy machine, too")
    what.add_argument("--pages", action="store_true", help="measure nothing; use the data")
    parser.add_argument("--only", nargs="+", default=(), metavar="FILE", help="measure these files")
    chosen = parser.parse_args(arguments)
    if not chosen.pages:
        load = os.getloadavg()[0]
        if load > IDLE and not chosen.anyway:
            parser.exit(
                2,
                f"the load average is {load:.2f}: other programs are running, or were a minute "
                f"ago. Figures need an idle machine (at most {IDLE}). Stop them and wait, or "
                "measure all the same with --anyway\n",
            )
        new = measured(chosen.only)
        if chosen.only:
            run = merged(json.loads(DATA.read_text(encoding="utf-8")), new)
        else:
            run = {"machine": machine(), "versions": versions(), **new}
        DATA.write_text(text_of(run), encoding="utf-8")
    data = json.loads(DATA.read_text(encoding="utf-8"))
    write_pages(data)
    missed = [row for row in data["rows"] if row["held"] is False]
    for row in missed:
        sys.stderr.write(f"missed: {row['title']}, {row['side']}: {row['value']:.3g}\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
