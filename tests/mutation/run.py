"""Draws small faults (mutants) in vitzoo's modules and records which of them the tests notice.

    python tests/mutation/run.py [second] draw         writes mutants.json
    python tests/mutation/run.py [second] map [PYTEST ARGUMENT]...
    python tests/mutation/run.py [second] run before|after [MUTANT]...    adds to results.json
    python tests/mutation/run.py [second] report       prints the results as Markdown

There are two draws: 40 mutants of the modules that read files and registries, and with `second` 60
of those that compute, export, measure and plot. The second has its files in tests/mutation/second
and build/mutation/second. It takes only lines that a test executes, so `map` precedes its `draw`.

`map` runs the tests under coverage and keeps, in build/mutation, which test executes which
line and how long it takes; with arguments it adds what these run to what is kept. `run` puts one
mutant after the other into the working tree and runs the tests that execute its line until one
fails. `map` and `run` know a mutant by its function and the text of its line, not by its place in
the file: where a module was moved or split, `moved` of mutants.json names the new ones:
`{"vitzoo/header.py": ["vitzoo/files/header.py", "vitzoo/files/json.py"]}`. Where a name in its line
was changed, and nothing else, `now` of the mutant holds the new line.

It needs cosmic-ray, coverage and pytest-cov, which no extra of vitzoo's brings.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast  # type: ignore[import-untyped]
from cosmic_ray.mutating import mutate_code, use_mutation  # type: ignore[import-untyped]
from cosmic_ray.plugins import get_operator, operator_names  # type: ignore[import-untyped]
from coverage import CoverageData

SECOND = sys.argv[1:2] == ["second"]
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "mutation" / ("second" if SECOND else "")
MUTANTS = HERE / ("second" if SECOND else "") / "mutants.json"
RESULTS = MUTANTS.with_name("results.json")

SEED, DRAWN = (20261123, 60) if SECOND else (20251122, 40)
PER_MODULE = 2
LIMIT = 120  # s that the tests of one mutant may take
FAST = 5  # s of a test under coverage
# The tests that count; pytest heeds the last -m, not the one in pyproject.toml.
COUNTED = ("-m", "not parity and not install and not benchmark")
MODULES = """
    hubnames header npz shard_index schema catalogue spec manifest discovery switches plugin_states
    contributed requirements plugin_source registry listing listing_index labels store pins partial
    progress remote container safetensors_file npz_file shards saved siblings facts native origin
    weights images pictures inputs
""".split()  # noqa: SIM905  # files that move between the two runs, but keep their code
if SECOND:
    MODULES = [
        path.relative_to(ROOT / "vitzoo").with_suffix("").as_posix()
        for folder in ("inference", "exporting", "benchmarking", "training", "plotting")
        for path in (ROOT / "vitzoo" / folder).rglob("[!_]*.py")
    ]
CHILDREN = """\
data_file = {}
parallel = true
context = ${{COVERAGE_TEST}}
disable_warnings = no-data-collected, module-not-measured
"""
STATES = ("killed", "survived", "timeout", "no tests")

Place = tuple[int, int]  # line from 1, column from 0


@dataclass(frozen=True)
class Site:
    """One place of a module that one operator of cosmic-ray's can change.

    Args:
        operator: its name, such as `core/AddNot`.
        occurrence: cosmic-ray's number of it among the operator's places in the module.
        start: of what is changed.
        function: qualified name of the function around it.
        line: the text of its line, without blanks around it.
        index: its number among the operator's places on equal lines of the function.
    """

    operator: str
    occurrence: int
    start: Place
    function: str
    line: str
    index: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What stays the same when the function is moved."""
        return self.operator, self.function, self.line, self.index


# ------------------------------------------------------------------------------------- the draw


def draw() -> None:
    """Write the mutants that the seed decides; no result of a test has a say."""
    chance = random.Random(SEED)
    queue = sorted(MODULES)
    chance.shuffle(queue)
    sources = {name: (ROOT / "vitzoo" / f"{name}.py").read_text() for name in queue}
    pools = {name: _candidates(source) for name, source in sources.items()}
    if SECOND:
        pools = {name: _executed(name, pool) for name, pool in pools.items()}
        _say(f"seed {SEED}, {sum(map(len, pools.values()))} candidates")
    drawn: list[dict[str, Any]] = []
    for turn in range(PER_MODULE):  # every module once before one comes twice
        for name in queue:
            one = _draw_one(sources[name], pools[name], chance) if len(drawn) < DRAWN else None
            if one is not None:
                drawn.append(_row(f"{name}-{turn + 1}", f"vitzoo/{name}.py", *one))
    drawn.sort(key=lambda row: row["id"])
    _write(MUTANTS, {"seed": SEED, "moved": {}, "mutants": drawn})
    if SECOND:
        collect()


def _draw_one(source: str, pool: list[Site], chance: random.Random) -> tuple[Site, str] | None:
    """Draw a place first, then one of its mutants; take the rest of the line out of the pool."""
    while pool:
        place = chance.choice(sorted({_group(site) for site in pool}))
        site = chance.choice([site for site in pool if _group(site) == place])
        mutated = _mutated_line(source, site)
        if mutated is None:
            pool.remove(site)
            continue
        pool[:] = [other for other in pool if other.start[0] != site.start[0]]
        return site, mutated
    return None


def _executed(name: str, pool: list[Site]) -> list[Site]:
    """Return the places of a module on lines that a test executes."""
    path = ROOT / "vitzoo" / f"{name}.py"
    return [site for site in pool if _contexts(path, site.start[0]) - {""}]


def _group(site: Site) -> tuple[Place, str]:
    """Return place and kind of operator: eleven operators replace one `+`, only one an `if`."""
    return site.start, site.operator.partition("_")[0]


def _row(name: str, module: str, site: Site, mutated: str) -> dict[str, Any]:
    return {
        "id": name,
        "module": module,
        "operator": site.operator,
        "occurrence": site.occurrence,
        "function": site.function,
        "index": site.index,
        "line": site.line,
        "mutated": mutated,
    }


def _candidates(source: str) -> list[Site]:
    """Return the places of a module that may be drawn."""
    skipped = list(_skipped(ast.parse(source)))
    return [
        site
        for name in operator_names()
        if _sensible(name)
        for site in _sites(source, name)
        if not any(start <= site.start < end for start, end in skipped)
        if not _is_tuning(source, site)
    ]


def _skipped(tree: ast.Module) -> Iterator[tuple[Place, Place]]:
    """Yield what is not drawn from, since no test could or should tell the mutant from vitzoo.

    Annotations and the types that `isinstance` asks for, texts (with what f-strings compute), what
    is raised, printed or warned of. Whatever stands outside functions (constants, `__all__`,
    defaults, decorators) has no enclosing function and is no site in the first place.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield _span(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            yield _span(node.returns)
        elif isinstance(node, ast.JoinedStr | ast.Raise):
            yield _span(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "isinstance":
                yield _span(node.args[1])
            elif node.func.id in {"print", "cast"}:
                yield _span(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"warn", "sleep"}:
            yield _span(node)


def _span(node: ast.expr | ast.stmt) -> tuple[Place, Place]:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _sensible(operator: str) -> bool:
    """Leave out operators that need names, and `is` for `==` and the like.

    On None and on classes the latter are the same, or a crash.
    """
    kind, *sides = operator.split("_")
    if get_operator(operator).arguments():
        return False
    identity = [side in {"Is", "IsNot"} for side in sides]
    return kind != "core/ReplaceComparisonOperator" or len(set(identity)) == 1


def _is_tuning(source: str, site: Site) -> bool:
    """Tell whether the site is a number above 16: a limit, a size of a buffer, a mode of a file."""
    line, column = site.start
    text = source.splitlines()[line - 1][column:]
    number = re.match(r"0[xob]\w+|[0-9][0-9_]*(\.[0-9_]*)?(e[+-]?[0-9]+)?", text, re.IGNORECASE)
    return number is not None and abs(ast.literal_eval(number[0])) > 16


def _mutated_line(source: str, site: Site) -> str | None:
    """Return the line as mutated; None if more than it changes, or the result is no Python."""
    try:
        mutated = mutate_code(source, get_operator(site.operator)(), site.occurrence)
        if ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(source)):
            return None
    except (SyntaxError, AttributeError):  # cosmic-ray cannot replace `except module.Error`
        return None
    before, after = source.splitlines(), mutated.splitlines()
    changed = [
        number for number, pair in enumerate(zip(before, after, strict=False)) if len(set(pair)) > 1
    ]
    if len(before) != len(after) or changed != [site.start[0] - 1]:
        return None
    return str(after[changed[0]]).strip()


def _sites(source: str, operator: str) -> Iterator[Site]:
    """Yield the places inside functions that an operator can change, in cosmic-ray's order."""
    change, functions, lines = get_operator(operator)(), _functions(source), source.splitlines()
    seen: Counter[tuple[str, str]] = Counter()
    starts = (start for node in _nodes(source) for start, _ in change.mutation_positions(node))
    for occurrence, start in enumerate(starts):
        around = [name for name, first, end in functions if first <= start < end]
        if around:
            function, line = around[-1], lines[start[0] - 1].strip()
            yield Site(operator, occurrence, start, function, line, seen[function, line])
            seen[function, line] += 1


@functools.lru_cache
def _nodes(source: str) -> list[Any]:
    return list(ast_nodes(get_ast(source)))


@functools.lru_cache
def _functions(source: str) -> list[tuple[str, Place, Place]]:
    """Return name, start and end of the body of every function, outer ones first."""
    found = []

    def look(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = prefix
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inside = f"{prefix}{child.name}."
            if isinstance(child, ast.FunctionDef):
                found.append((inside[:-1], _span(child.body[0])[0], _span(child)[1]))
            look(child, inside)

    look(ast.parse(source), "")
    return found


# -------------------------------------------------------------- where the mutants of the file are


def mutants() -> list[dict[str, Any]]:
    """Return the mutants of the file."""
    rows: list[dict[str, Any]] = json.loads(MUTANTS.read_text())["mutants"]
    return rows


def locate(row: dict[str, Any]) -> tuple[Path, Site] | None:
    """Find a mutant in the working tree; None where its line is gone or has been rewritten."""
    key = row["operator"], row["function"], row.get("now", row["line"]), row["index"]
    moved = json.loads(MUTANTS.read_text())["moved"]
    for module in moved.get(row["module"], [row["module"]]):
        path = ROOT / module
        if not path.exists():
            raise SystemExit(f"{module} is missing: name its heirs in 'moved' of {MUTANTS.name}")
        for site in _sites(path.read_text(), row["operator"]):
            if site.key == key:
                return path, site
    return None


@functools.cache
def _lines(source: str, line: int) -> set[int]:
    """Return the line, or those of its statement where Python counts it as none of its own."""
    codes = [compile(source, "module", "exec")]
    for code in codes:  # grows while it is read
        codes += [constant for constant in code.co_consts if hasattr(constant, "co_lines")]
    counted = {number for code in codes for _, _, number in code.co_lines() if number}
    if line in counted:
        return {line}
    spans = [_span(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    first, last = max((a[0], b[0]) for a, b in spans if a[0] <= line <= b[0])
    return counted & set(range(first, last + 1))


# --------------------------------------------------------------------- which tests execute them


def measure(arguments: list[str]) -> None:
    """Run the tests that count, or what the arguments say, under coverage; then write map.json."""
    _make_room(fresh=not arguments)
    if SECOND:
        modules = [str(ROOT / "vitzoo" / f"{name}.py") for name in sorted(MODULES)]
    else:
        modules = sorted({str(found[0]) for row in mutants() if (found := locate(row))})
    config = WORK / "coveragerc"
    config.write_text("\n    ".join(["[run]\ninclude =", *modules]) + "\n")
    children = WORK / "children.coveragerc"  # of the processes that a test starts
    children.write_text(config.read_text() + CHILDREN.format(WORK / "coverage"))
    command = [
        *(sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *COUNTED),
        *("-p", "children", "--cov", "--cov-append", f"--cov-config={config}"),
        *("--cov-context=test", "--cov-report="),
        *("-W", "ignore::coverage.exceptions.CoverageWarning"),
        *("-vv", "--durations=0", "--durations-min=0", *arguments),
    ]
    log = WORK / f"log{len(list(WORK.glob('log*.txt')))}.txt"
    environment = {
        **os.environ,
        "COVERAGE_FILE": str(WORK / "coverage"),
        "COVERAGE_CHILDREN": str(children),
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).strip(":"),
    }
    with log.open("w") as file:
        subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    if MUTANTS.exists():
        collect()


def _make_room(*, fresh: bool) -> None:
    """Make the folder of what is measured; remove what is old, or of another commit."""
    WORK.mkdir(parents=True, exist_ok=True)
    note, commit = WORK / "commit", _git("rev-parse", "HEAD")
    if fresh or not note.exists() or note.read_text() != commit:
        for old in (*WORK.glob("coverage*"), *WORK.glob("log*.txt")):
            old.unlink()
    note.write_text(commit)


def collect() -> None:
    """Write map.json: seconds of every test that passed, tests of every mutant."""
    log = "".join(path.read_text() for path in sorted(WORK.glob("log*.txt")))
    seconds: defaultdict[str, float] = defaultdict(float)
    for taken, test in re.findall(r"^([0-9.]+)s (?:setup|call|teardown) +(.+)$", log, re.MULTILINE):
        seconds[test] += float(taken)
    failed = {test for test in seconds for text in _failures(log) if _names(text, test)}
    table = {}
    for row in mutants():
        if found := locate(row):
            path, site = found
            tests = _contexts(path, site.start[0]) & set(seconds) - failed
            table[row["id"]] = sorted(tests, key=lambda test: (seconds[test], test))
    rounded = {test: round(taken, 3) for test, taken in sorted(seconds.items())}
    _write(WORK / "map.json", {"failed": sorted(failed), "seconds": rounded, "tests": table})


def _contexts(path: Path, line: int) -> set[str]:
    """Return the tests that execute a line, by their ids."""
    contexts = _by_line(path)
    wanted = _lines(path.read_text(encoding="utf-8"), line)
    return {text.rpartition("|")[0] for number in wanted for text in contexts.get(number, ())}


@functools.lru_cache
def _by_line(path: Path) -> dict[int, list[str]]:
    data = CoverageData(str(WORK / "coverage"))
    data.read()
    return data.contexts_by_lineno(str(path))


def _failures(log: str) -> list[str]:
    """Return what pytest's summary says of failed tests: their ids, then mostly a message."""
    return re.findall(r"^(?:FAILED|ERROR) (.+)$", log, re.MULTILINE)


def _names(text: str, test: str) -> bool:
    return text == test or text.startswith(f"{test} - ")


# --------------------------------------------------------------------------------- running them


def run(label: str, wanted: list[str]) -> None:
    """Run the tests of every mutant, or of those wanted; keep each result at once."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that files are restored
    if changed := _git("status", "--porcelain", "--", "vitzoo"):
        raise SystemExit(f"commit or undo these changes first, mutants go there:\n{changed}")
    kept = json.loads((WORK / "map.json").read_text())
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    commit = _git("rev-parse", "HEAD")
    if wanted and label in results:
        results[label]["commit"] = commit
    else:
        results[label] = {"commit": commit, "tests": len(kept["seconds"]), "mutants": {}}
    for row in mutants():
        if wanted and row["id"] not in wanted:
            continue
        outcome = _run_one(row, kept["tests"].get(row["id"], []), kept["seconds"])
        results[label]["mutants"][row["id"]] = outcome
        results[label]["mutants"] = dict(sorted(results[label]["mutants"].items()))
        _write(RESULTS, results)
        _say(f"{row['id']}: {outcome}")
    if false := _failing_anyway(results[label]["mutants"]):
        _say("these tests fail without a mutant, too; run their mutants again:", *false)


def _run_one(row: dict[str, Any], tests: list[str], seconds: dict[str, float]) -> dict[str, Any]:
    """Run the tests of one mutant and say what became of it."""
    found = locate(row)
    if found is None:
        return {"state": "not found", "seconds": 0.0, "tests": 0, "passed": 0, "killer": None}
    outcome: dict[str, Any] = {"state": "no tests", "seconds": 0.0, "tests": len(tests)}
    outcome |= {"passed": 0, "killer": None}
    if not tests:
        return outcome
    with _mutated(*found):
        start = time.monotonic()
        code, log = _pytest(ordered := _ordered(tests, seconds))
        gone = _gone(log, tests)  # the mutant has changed the cases of a test, no more
        if gone and gone != set(tests):
            code, log = _pytest([test for test in ordered if test not in gone])
        outcome["seconds"] = round(time.monotonic() - start, 1)
    outcome["passed"] = len(re.findall(r"^.* PASSED\b.*$", log, re.MULTILINE))
    if gone == set(tests):
        return outcome
    if code is None:
        return outcome | {"state": "timeout"}
    if code == 0:
        return outcome | {"state": "survived"}
    if code != 1 and _pytest(tests, "--collect-only")[0] != 0:
        raise SystemExit(f"pytest cannot run the tests of {row['id']}, with and without it:\n{log}")
    failures = _failures(log)
    killers = [test for text in failures for test in tests if _names(text, test)]
    killers += [f"collection of {text.partition(' - ')[0]}" for text in failures]
    return outcome | {"state": "killed", "killer": [*killers, "collection"][0]}


def _gone(log: str, tests: list[str]) -> set[str]:
    """Return the tests that pytest did not find, and for which it runs no other."""
    texts = set(re.findall(rf"^ERROR: not found: {re.escape(str(ROOT))}/(.+)$", log, re.MULTILINE))
    return texts & set(tests)


def _ordered(tests: list[str], seconds: dict[str, float]) -> list[str]:
    """Order tests, fastest first: one case of every fast function, then all further cases."""
    fastest = sorted(tests, key=lambda test: (seconds[test], test))
    first = {test.partition("[")[0]: test for test in reversed(fastest)}
    heads = {test for test in first.values() if seconds[test] < FAST}
    return [t for t in fastest if t in heads] + [t for t in fastest if t not in heads]


@contextlib.contextmanager
def _mutated(path: Path, site: Site) -> Iterator[None]:
    """Mutate a file, and restore it with its times, which decide whether its bytecode is fresh."""
    status = path.stat()
    try:
        with use_mutation(path, get_operator(site.operator)(), site.occurrence):
            yield
    finally:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _pytest(tests: Iterable[str], *more: str) -> tuple[int | None, str]:
    """Run tests until one fails; return the exit code, None after the limit, and the output."""
    listed, log = WORK / "tests.txt", WORK / "mutant.txt"
    listed.write_text("\n".join(tests) + "\n")
    options = ("-x", "-v", "-n", "0", "-p", "no:cacheprovider", "--tb=no", *COUNTED, *more)
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, f"@{listed}"],
            cwd=ROOT,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code, log.read_text(errors="replace")


def _failing_anyway(outcomes: dict[str, Any]) -> list[str]:
    """Return the tests that killed a mutant, but fail in the unchanged tree as well."""
    killers = {o["killer"] for o in outcomes.values() if "::" in str(o["killer"])}
    listed = WORK / "killers.txt"
    listed.write_text("\n".join(sorted(killers)) + "\n")
    options = ("-n", "0", "-p", "no:cacheprovider", "--tb=no", *COUNTED)
    command = [sys.executable, "-m", "pytest", *options]
    if not killers:
        return []
    done = subprocess.run([*command, f"@{listed}"], cwd=ROOT, capture_output=True, text=True)
    return [test for text in _failures(done.stdout) for test in killers if _names(text, test)]


# --------------------------------------------------------------------------------- the results


def report() -> None:
    """Print the numbers of both runs, the mutants that only the first killed, and all of them."""
    results = json.loads(RESULTS.read_text())
    labels = [label for label in ("before", "after") if label in results]
    states = [*STATES, "not found"]
    _say(f"| | {' | '.join(labels)} |", "|---|" + "---|" * len(labels))
    for state in states:
        counts = [_count(results[label]["mutants"], state) for label in labels]
        if any(counts):
            _say(f"| {state} | {' | '.join(map(str, counts))} |")
    _say("", f"| mutant | change | {' | '.join(labels)} |", "|---|---|" + "---|" * len(labels))
    for row in mutants():
        outcomes = [results[label]["mutants"].get(row["id"], {}) for label in labels]
        texts = [outcome.get("state", "not run") for outcome in outcomes]
        if texts[0] == "killed" and texts[-1] in {"survived", "timeout", "no tests"}:
            texts[-1] = f"**{texts[-1]}**"
        change = f"`{_cell(row['line'])}` → `{_cell(row['mutated'])}`"
        _say(f"| {row['id']} | {change} | {' | '.join(texts)} |")


def _count(outcomes: dict[str, Any], state: str) -> int:
    return sum(outcome["state"] == state for outcome in outcomes.values())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _write(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def main(command: str = "", *arguments: str) -> None:
    """Do what the command line asks for."""
    if command == "run" and arguments and arguments[0] in {"before", "after"}:
        run(arguments[0], list(arguments[1:]))
    elif command == "map":
        measure(list(arguments))
    elif command in {"draw", "report"} and not arguments:
        {"draw": draw, "report": report}[command]()
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1 + SECOND :])
