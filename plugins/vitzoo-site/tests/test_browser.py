"""The catalogue in headless Chromium: as a file, with the mouse, and with the keyboard alone."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest

import debian
import vitzoo
from browser import Browser, need_chromium
from internals import _registry
from plugin_files import UNTOUCHABLE, write_distribution
from site_pages import FULL
from vitzoo import Variant, Weights
from vitzoo_site.index_data import PINS, commercial, results, task
from vitzoo_site.site import write_site

pytestmark = pytest.mark.browser

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> javascript:alert(3)"
# GMACs, images per second, top-1, ImageNet-A, license
POINTS = [
    (1.26, 9000.5, 75.45, 10.5, "MIT"),
    (1.5, 7000.0, 74.0, 20.25, "CC-BY-NC-4.0"),
    (4.61, 3500.25, 81.4, 30.0, HOSTILE),
    (4.61, 3500.25, 79.0, 30.0, "MIT"),
    (17.58, 1200.0, 85.1, 29.5, "MIT"),
    (17.6, 1100.0, 85.1, 50.75, "CC-BY-NC-4.0"),
    (61.6, 300.0, 84.0, 60.0, "MIT"),
]
NET = """
[variants.point{number}]
summary = "a point of the plot"
source = "made by the test"
params = {params}
embed_dim = 32
depth = 2
num_heads = 2
mlp_dim = 64
patch_size = 8
image_size = 32
gmacs = {gmacs}
throughput = {{ h200 = {speed} }}

[variants.point{number}.weights.w]
repo = "acme/point{number}"
file = "model.safetensors"
pin = "first-use"
predicted_size = 98000
default = true
format = "timm"
license = "{license}"
label_set = "imagenet-1k"
source = "{hostile}"
preprocessing = {{ mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }}
evaluated = "ours"
evaluation_size = 32
top1 = {top1}
imagenet_a = {hard}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """All that is installed, and a plugin with points for the plot and texts that attack."""
    points = "".join(
        NET.format(
            number=number, params=1000 * 3**number, gmacs=gmacs, speed=speed, top1=top1, hard=hard,
            license=license_, hostile=HOSTILE,
        )
        for number, (gmacs, speed, top1, hard, license_) in enumerate(POINTS)
    )  # fmt: skip
    manifest = FULL.replace("a small network", HOSTILE) + points
    files = UNTOUCHABLE | {"acme/registry.toml": manifest}
    root = write_distribution(
        tmp_path_factory.mktemp("plugin"), "acme-parts", "acme = acme:registry.toml", files
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root)
        patch.setenv("VITZOO_HOME", ":memory:")
        _registry.cache_clear()
        written = write_site(tmp_path_factory.mktemp("site"))
        assert not written.failed
        yield written
    _registry.cache_clear()


@pytest.fixture(scope="module")
def variants(site):
    """The networks on the site."""
    found = vitzoo.variants()
    assert len(found) == site.variants
    return found


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    need_chromium()
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.driver.quit()


@pytest.fixture
def page(chromium, site):
    """The index, just opened at desktop width; it makes no request and reports no error."""
    from selenium.webdriver.common.by import By

    chromium.size(1280, 900)
    chromium.theme("light")
    index = Index(chromium, site, By)
    assert chromium.messages + chromium.requests is not None  # forget those of the start page
    index.open()
    yield index
    assert chromium.messages == []
    requested, folder = chromium.requests, site.index.parent.as_uri()
    assert site.index.as_uri() in {address.partition("#")[0] for address in requested}
    assert [a for a in requested if not a.startswith((folder, "data:", "about:"))] == []


class Index:
    """The index in a browser."""

    def __init__(self, chromium, site, by):
        self.chromium, self.site, self.by = chromium, site, by
        self.driver, self.run = chromium.driver, chromium.run

    def open(self, state=""):
        self.driver.get("about:blank")
        self.driver.get(self.site.index.as_uri() + (f"#{state}" if state else ""))

    @property
    def state(self):
        return self.run("return decodeURIComponent(location.hash.slice(1)).replaceAll('+', ' ')")

    def one(self, selector):
        return self.driver.find_element(self.by.CSS_SELECTOR, selector)

    def input(self, name, value=None):
        """Return a control; a checkbox by its value."""
        return self.one(f"[name={name}]" + ("" if value is None else f"[value='{value}']"))

    def type(self, name, text):
        control = self.input(name)
        control.clear()
        control.send_keys(text)
        self.chromium.settle(130)  # the page waits for the next letter

    def choose(self, name, value):
        from selenium.webdriver.support.select import Select

        Select(self.input(name)).select_by_value(value)
        self.chromium.settle(50)  # the browser reports the choice later

    def click(self, element):
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        self.chromium.settle()

    def shown(self):
        """Return the entries of the table, all of them, and compare them with the count."""
        if self.one("#all").is_displayed():
            self.click(self.one("#all"))
        names = self.run("""
            return [...document.querySelectorAll("#body tr")].map((row) => {
                const [link, weights] = row.cells[0].children;
                return link.textContent + (weights ? ":" + weights.firstChild.textContent : "");
            })""")
        assert self.one("#count").text.startswith(f"{len(names)} of ")
        assert self.one("#count").get_attribute("role") == "status"
        return names

    def column(self, key):
        return self.run(
            "return [...document.querySelectorAll(`#body [data-key=${arguments[0]}]`)]"
            ".map((cell) => cell.textContent)",
            key,
        )

    def headings(self):
        """Return the columns that are visible."""
        return self.run("""
            return [...document.querySelectorAll("#head th")].filter((h) => h.offsetWidth)
                .map((h) => h.dataset.key)""")

    def sort(self, key):
        self.click(self.one(f"#head [data-key={key}] button"))
        return self.one(f"#head [data-key={key}]").get_attribute("aria-sort")


class Entry(NamedTuple):
    variant: Variant
    weights: Weights | None


def every(variants, *, untrained=False):
    """Return all entries, in the order of the registry."""
    for variant in variants:
        yield from (Entry(variant, weights) for weights in variant.weights)
        if untrained and not variant.weights:
            yield Entry(variant, None)


def names(found):
    return [v.name if w is None else f"{v.name}:{w.name}" for v, w in found]


def test_the_first_page_lists_all_weights(page, variants):
    assert page.shown() == names(every(variants))
    assert page.state == ""
    assert page.one("#head [data-key=name]").get_attribute("aria-sort") == "none"


@pytest.mark.parametrize(
    "words", ["AUGREG in21k_ft", "dinov2 reg apache", "vit_base_patch16_224.", "nothing-at-all"]
)
def test_search(page, variants, words):
    page.type("q", words)
    expected = []
    for variant, weights in every(variants):
        known = [name for _, name in variant.known_as]
        texts = (variant.name, weights.name, variant.summary, *known, weights.license, weights.repo,
                 weights.pretraining, weights.pretraining_data, task(variant, weights))  # fmt: skip
        text = " ".join(texts).lower()
        if all(word in text for word in words.lower().split()):
            expected.append((variant, weights))
    assert page.shown() == names(expected)
    assert bool(expected) != ("nothing" in words)
    assert page.one("#empty").is_displayed() != bool(expected)
    assert page.state == f"q={words}"


FILTERS = {
    "commercial=yes,no": lambda e: commercial(e.weights) in ("yes", "no"),
    "task=image-text": lambda e: task(e.variant, e.weights) == "image-text",
    "params_min=80&params_max=90": lambda e: 80e6 <= e.variant.params <= 90e6,
    "gmacs_min=1.26&gmacs_max=4.61": lambda e: 1.26 <= (e.variant.gmacs or 0) <= 4.61,
    "px_min=300&px_max=400": lambda e: all(300 <= n <= 400 for n in e.variant.spec.image_size),
    "patch=8,14": lambda e: e.variant.spec.patch_size in ((8, 8), (14, 14)),
    "family=dinov2,acme": lambda e: e.variant.namespace in ("dinov2", "acme"),
    "pin=reported,confirmed": lambda e: e.weights.pin in ("reported", "confirmed"),
    "license=dinov3-license (gated)": lambda e: e.weights.license_note == "dinov3-license (gated)",
}


@pytest.mark.parametrize("state", FILTERS)
def test_filters(page, variants, state):
    """Each filter by hand gives the right entries and the address; the address gives the filter."""
    for pair in state.split("&"):
        name, _, value = pair.partition("=")
        if page.input(name).get_attribute("type") == "checkbox":
            for one in value.split(","):
                page.click(page.input(name, one))
        elif page.input(name).tag_name == "select":
            page.choose(name, value)
        else:
            page.type(name, value)
    expected = names(e for e in every(variants) if FILTERS[state](e))
    assert 0 < len(expected) < len(names(every(variants)))
    assert page.shown() == expected
    pairs = dict(pair.split("=") for pair in page.state.split("&"))
    assert {k: set(v.split(",")) for k, v in pairs.items()} == {
        k: set(v.split(",")) for k, v in (pair.split("=") for pair in state.split("&"))
    }
    assert page.one("#active").text == f"{len(pairs)} active"
    page.open(state)
    assert page.shown() == expected
    page.click(page.one("#clear"))
    assert page.shown() == names(every(variants))
    assert page.state == ""


def test_networks_without_weights(page, variants):
    page.click(page.input("family", "timm"))
    assert page.shown() == names((v, w) for v, w in every(variants) if v.namespace == "timm")
    page.click(page.input("untrained", "1"))
    expected = [(v, w) for v, w in every(variants, untrained=True) if v.namespace == "timm"]
    assert page.shown() == names(expected)
    assert any(w is None for _, w in expected)
    page.click(page.input("untrained", "1"))
    page.type("q", "a network without weights")
    page.click(page.input("family", "timm"))
    assert page.shown() == []
    assert "1 network without published weights would" in page.one("#empty").text


SORTS = {
    "params": lambda e: e.variant.params,
    "image_size": lambda e: e.variant.spec.image_size,
    "top1": lambda e: results(e.weights).get("top1"),
    "name": lambda e: e.variant.name,
}


@pytest.mark.parametrize("key", SORTS)
def test_sort(page, variants, key):
    """Entries without a value come last in both directions; a third click ends the sorting."""
    pairs = list(every(variants))
    stated = [pair for pair in pairs if SORTS[key](pair) is not None]
    others = [pair for pair in pairs if SORTS[key](pair) is None]
    usual = ["descending", "ascending"] if key == "top1" else ["ascending", "descending"]
    for direction in usual:
        assert page.sort(key) == direction
        ordered = sorted(stated, key=SORTS[key], reverse=direction == "descending")
        assert page.shown() == names(ordered + others)
        assert page.state == f"sort={key}:{direction.removesuffix('ending')}"
    assert page.sort(key) == "none"
    assert page.shown() == names(pairs)
    assert page.run("return document.activeElement.textContent") != ""  # the focus stays


def test_the_table_shows_the_numbers_of_the_registry(page, variants):
    page.open("columns=params,gmacs,top1,imagenet_a,h200,license,pin&family=acme")
    page.shown()
    pairs = [(v, w) for v, w in every(variants) if v.namespace == "acme"]
    for key in ("top1", "imagenet_a"):
        numbers = [float(text) if text else None for text in page.column(key)]
        assert numbers == [results(w).get(key) for _, w in pairs]
    titles = page.run(
        "return [...document.querySelectorAll('#body [data-key=params]')].map((c) => c.title)"
    )
    assert titles == [f"{v.params:,}" for v, _ in pairs]
    speeds = [float(text.replace(",", "")) if text else None for text in page.column("h200")]
    for speed, (variant, _) in zip(speeds, pairs, strict=True):
        stated = [row.images_per_second for row in variant.throughput] or [None]
        assert speed == (stated[0] and pytest.approx(stated[0], rel=5e-4))
    assert page.column("pin") == [PINS[w.pin] for _, w in pairs]


def pareto(points, sign):
    """Return the points that no other point beats, by the definition."""
    return {
        name
        for name, x, y in points
        if not any(
            sign * other <= sign * x and top >= y and (other, top) != (x, y)
            for _, other, top in points
        )
    }


@pytest.mark.parametrize(
    ("x", "y", "sign"),
    [
        ("params", "top1", 1),
        ("gmacs", "imagenet_a", 1),
        ("h200", "top1", -1),
        ("h200", "imagenet_a", -1),
    ],
)
def test_plot(page, variants, x, y, sign):
    page.click(page.input("family", "acme"))
    page.choose("x", x)
    page.choose("y", y)
    points = []
    for variant, weights in every(variants):
        across = {
            "params": variant.params,
            "gmacs": variant.gmacs,
            "h200": variant.throughput[0].images_per_second if variant.throughput else None,
        }[x]
        up = results(weights).get(y)
        if variant.namespace == "acme" and across and up is not None:
            points.append((f"{variant.name}:{weights.name}", across, up))
    assert len(points) == len(POINTS) + 1
    marks = page.run("""
        return [...document.querySelectorAll("#plot .mark")].map((mark) => {
            const box = mark.lastChild.getBBox();
            const name = mark.getAttribute("aria-label").split(",")[0];
            const [, shape, best] = mark.classList;
            return [
                name, box.x + box.width / 2, box.y + box.height, best === "best",
                mark.href.baseVal, shape,
            ];
        })""")
    assert {name for name, *_ in marks} == {name for name, _, _ in points}
    best = pareto(points, sign)
    # Of equal points, one is on the line.
    drawn = [mark for mark in marks if mark[3]]
    assert {mark[0] for mark in drawn} <= best
    values = {(across, up) for name, across, up in points if name in best}
    assert len(drawn) == len(values)
    use = {f"{v.name}:{w.name}": commercial(w) for v, w in every(variants)}
    places = {name: (across, up) for name, across, up in points}
    circles = [m for m in marks if use[m[0]] == "yes"]
    by_place = sorted(marks, key=lambda mark: mark[1])
    ends = [(mark[1], places[mark[0]][0]) for mark in (by_place[0], by_place[-1])]
    for name, left, _, _, address, shape in marks:
        variant, _, weights = name.partition(":")
        assert address == f"networks/{variant}.html#weights-{weights}"
        assert shape == use[name]
        # The horizontal axis is logarithmic.
        (first, low), (last, high) = ends
        expected = first + (last - first) * math.log(places[name][0] / low) / math.log(high / low)
        assert left == pytest.approx(expected, abs=0.5)
    heights = sorted((places[m[0]][1], -m[2]) for m in circles)
    assert [bottom for _, bottom in heights] == sorted(bottom for _, bottom in heights)
    note = page.one("#plot-note").text
    assert f"{len(points)} of {len(page.shown())} entries" in note
    assert f"{len(drawn)} are on the Pareto line" in note
    page.click(page.input("pareto", "1"))
    assert set(page.shown()) == {m[0] for m in drawn}
    assert set(
        page.run("return [...document.querySelectorAll('#head th')].map((h) => h.dataset.key)")
    ) >= {x, y}


def controls(page):
    return page.run("""
        return [...document.getElementById("filters").elements].filter((c) => c.name)
            .map((c) => [c.name, c.value, c.checked])""")


def test_an_address_restores_all_in_a_new_page(page):
    page.type("q", "point")
    page.click(page.input("commercial", "yes"))
    page.type("params_min", "0.003")
    page.choose("x", "h200")
    page.choose("y", "imagenet_a")
    page.click(page.one("#columns-box summary"))
    page.click(page.input("columns", "pin"))
    page.sort("imagenet_a")
    before = page.shown(), controls(page), page.state
    line = page.one("#plot .line").get_attribute("d")
    assert len(before[0]) == 3
    address = page.driver.current_url
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    try:
        page.chromium.size(1280, 900)
        page.driver.get(address)
        assert (page.shown(), controls(page), page.state) == before
        assert page.one("#plot .line").get_attribute("d") == line
        assert page.one("#head [data-key=imagenet_a]").get_attribute("aria-sort") == "descending"
        assert page.chromium.messages == []
        page.run("location.hash = '#q=dinov2'")  # an address that is typed over it
        page.chromium.settle()
        assert page.input("q").get_attribute("value") == "dinov2"
        assert len(page.shown()) > 3
    finally:
        page.driver.close()
        page.driver.switch_to.window(first)


@pytest.mark.parametrize(
    "state",
    [
        "sort=__proto__:asc&x=javascript:alert(1)&y=&columns=constructor&license=none&q=",
        "%&=&&sort=top1&sort=:desc&params_min=abc&family=<script>&toString=1&commercial=",
        "q=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E",
    ],
)
def test_a_damaged_address_does_no_harm(page, variants, state):
    page.open(state)
    assert page.shown() == ([] if state.startswith("q") else names(every(variants)))
    assert page.one("#plot-box").is_displayed()


def test_texts_that_attack_are_texts(page):
    page.type("q", "onerror=alert(2)")
    assert page.shown() == ["acme/net:best", "acme/net:other", "acme/point2:w"]
    page.click(page.one("#columns-box summary"))
    page.click(page.input("columns", "summary"))
    assert page.column("summary") == [HOSTILE, HOSTILE, "a point of the plot"]
    assert page.column("license")[-1] == HOSTILE
    assert page.run("return document.images.length") == 0
    page.click(page.one("#body a"))
    assert HOSTILE in page.one(".top").text
    assert page.run("return document.images.length + document.scripts.length") == 1


def press(page, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(page.driver).send_keys(*keys).perform()


FOCUS = """
    const at = document.activeElement;
    const seen = at.closest(".chip") ? at.nextElementSibling : at;
    const style = getComputedStyle(seen);
    const box = seen.getBoundingClientRect();
    return {
        tag: at.tagName.toLowerCase(), name: at.name ?? "", value: at.value ?? "",
        text: at.textContent, key: at.closest("th")?.dataset.key ?? "",
        mark: at.getAttribute("class") ?? "",
        visible: box.width > 0 && (
            style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2
            || at.classList.contains("mark") && parseFloat(style.strokeWidth) >= 3),
    };
"""


def tab_to(page, wanted, most=150):
    """Press Tab until the focus is where `wanted` says; each stop on the way shows the focus."""
    from selenium.webdriver.common.keys import Keys

    for _ in range(most):
        press(page, Keys.TAB)
        focus = page.run(FOCUS)
        assert focus["visible"], str(focus)
        if wanted(focus):
            return focus
    pytest.fail(f"Tab does not reach it, and ends at {page.run(FOCUS)}")


def test_keyboard_alone(page, variants):
    """Search, filter, plot, sort and open a network, without the mouse."""
    from selenium.webdriver.common.keys import Keys

    tab_to(page, lambda f: "Skip" in f["text"])
    tab_to(page, lambda f: f["name"] == "q")
    press(page, "point", Keys.ENTER)
    page.chromium.settle(130)
    tab_to(page, lambda f: (f["name"], f["value"]) == ("commercial", "yes"))
    press(page, Keys.SPACE)
    tab_to(page, lambda f: f["name"] == "x")
    press(page, Keys.DOWN)
    tab_to(page, lambda f: f["name"] == "y")
    press(page, "ImageNet-A")
    page.chromium.settle(50)
    chosen = [page.input(name).get_attribute("value") for name in ("x", "y")]
    assert chosen == ["gmacs", "imagenet_a"]
    mark = tab_to(page, lambda f: "mark" in f["mark"])
    assert "best" in mark["mark"]
    tab_to(page, lambda f: f["tag"] == "summary" and f["text"] == "Columns")
    press(page, Keys.ENTER)
    tab_to(page, lambda f: (f["name"], f["value"]) == ("columns", "license"))
    press(page, Keys.SPACE)
    tab_to(page, lambda f: f["key"] == "imagenet_a")
    press(page, Keys.ENTER)
    expected = [(v, w) for v, w in every(variants) if "point" in v.name and commercial(w) == "yes"]
    expected.sort(key=lambda pair: -pair[1].imagenet_a)
    assert page.shown() == names(expected)
    assert page.run(FOCUS)["key"] == "imagenet_a"
    tab_to(page, lambda f: f["tag"] == "a" and f["key"] == "name")
    press(page, Keys.ENTER)
    variant, weights = expected[0]
    assert page.driver.current_url.endswith(f"/{variant.name}.html#weights-{weights.name}")
    tab_to(page, lambda f: f["text"] == "Copy")
    press(page, Keys.ENTER)
    page.chromium.settle(100)
    assert page.one("#copied").text or page.run(
        "return document.getElementById('copied').textContent"
    )


def test_the_copy_button_copies_both_lines(page, site):
    grant = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.driver.execute_cdp_cmd("Browser.grantPermissions", grant)
    page.driver.get((site.index.parent / "networks/acme/net.html").as_uri())
    lines = 'import vitzoo\nmodel = vitzoo.create("acme/net", pretrained=True)'
    assert page.one("pre").text == lines
    page.click(page.one(".copy"))
    page.chromium.settle(100)
    said = page.one(".copy").text
    if said == "Copied":
        copied = page.driver.execute_async_script(
            "const done = arguments[0]; navigator.clipboard.readText().then(done, done)"
        )
    else:
        assert said.startswith("Selected")
        copied = page.run("return getSelection().toString()")
    assert copied == lines


CONTRAST = """
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (color) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (at) => {
        for (let e = at; e; e = e.parentElement) {
            const color = rgba(getComputedStyle(e).backgroundColor);
            if (color[3] === 255) return color;
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const at of document.body.querySelectorAll("*")) {
        const nodes = [...at.childNodes].filter((node) => node.nodeType === 3);
        const text = nodes.map((node) => node.data.trim()).join("");
        const skipped = at.closest("script, option, .hidden, .skip");
        if (!text || skipped || !at.getClientRects().length) continue;
        const style = getComputedStyle(at);
        const ink = at.closest("svg") ? style.fill : style.color;
        const [a, b] = [light(rgba(ink)), light(behind(at))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) found.push([text.slice(0, 40), ratio]);
    }
    return found;
"""


@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("path", ["index.html", "networks/acme/net.html", "networks/vit_b16.html"])
def test_contrast_and_width(page, site, tmp_path, width, path):
    """No text is hard to read, and the page itself never scrolls sideways."""
    page.chromium.size(width, 900)
    page.driver.get("about:blank")
    page.driver.get((site.index.parent / path).as_uri() + "#commercial=yes")
    for state in ("as opened", "all open"):
        for theme in ("light", "dark"):
            page.chromium.theme(theme)
            assert page.run(CONTRAST) == []
            assert page.driver.save_screenshot(str(tmp_path / f"{state}, {theme}.png"))
        assert page.run("return document.scrollingElement.scrollWidth") <= width
        page.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.chromium.settle(50)
    if path == "index.html":
        assert page.one("#plot svg").size["width"] > 0.7 * (width if width < 400 else 900)


def test_filters_are_closed_on_a_phone(page):
    page.chromium.size(375, 700)
    page.open()
    assert not page.one("#clear").is_displayed()
    assert page.one("#body tr").location["y"] < 700  # the first entry needs no scrolling
    assert page.headings() == ["name", "params", "image_size", "top1"]
    page.open("columns=params,top1,license")
    assert page.one("#body [data-key=license]").size["width"] > 0


def test_the_page_says_that_it_needs_scripts(page):
    page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.open()
        assert "vitzoo list" in page.one("noscript").text
    finally:
        page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_without_root_the_tier_fails_with_the_apt_line(monkeypatch):
    monkeypatch.setattr(debian.shutil, "which", lambda _: None)
    monkeypatch.setattr(debian.os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.fail.Exception) as caught:
        need_chromium()
    assert "chromium and chromedriver" in str(caught.value)
    assert "apt-get install -y --no-install-recommends chromium chromium-driver" in str(
        caught.value
    )
