// The index of the catalogue: search, filters, sorting, plot, and their state in the address.
// Texts reach the page as text nodes and attributes only, never as HTML.
"use strict";

{
  const FIRST = 100; // rows before the button that shows all
  const SVG = "http://www.w3.org/2000/svg";
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const form = byId("filters");
  const named = (keys, values) => Object.fromEntries(keys.map((key, i) => [key, values[i]]));
  const option = (name, value) =>
    [...form.elements[name]?.options ?? []].find((each) => each.value === value);
  const label = (name, value) => option(name, value).textContent;
  const chipText = (name) => (value) =>
    form.querySelector(`[name=${name}][value="${value}"]`).nextElementSibling.textContent;

  // Columns: the label, how a value is written, whether large values come first, whether shown.

  const pixels = (size) => String(size).split("x").map(Number);
  const count = (n) => {
    for (const [unit, suffix] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
      if (n >= unit) return Number((n / unit).toPrecision(3)) + suffix;
    }
    return String(n);
  };
  const short = (n) => n.toLocaleString("en", { maximumSignificantDigits: 4 });
  const figure = (label, more = {}) => ({ label, write: String, number: true, ...more });
  const plotted = (name, more) => (key) => [key, figure(label(name, key), {
    heading: option(name, key).dataset.heading, falling: true, shown: key === "top1", ...more,
  })];
  const COLUMNS = new Map([
    ["name", { label: "Network", shown: true }],
    ["summary", { label: "Summary", wide: true }],
    ["params", figure("Parameters", { heading: "Params", write: count, shown: true })],
    ["gmacs", figure("GMACs", { write: short, shown: true })],
    ["image_size", figure("Image size", { heading: "px", shown: true })],
    ["patch_size", figure("Patch size", { heading: "Patch" })],
    ...data.keys.weights.filter((key) => option("y", key)).map(plotted("y")),
    ...data.measurements.filter((key) => option("x", key)).map(plotted("x", { write: short })),
    ["license", { label: "License", shown: true }],
    ["pin", { label: "Pin", shown: true, write: chipText("pin") }],
    ["task", { label: "Task" }],
    ["pretraining_data", { label: "Pre-training", wide: true }],
  ]);

  // Entries: one for each set of weights, and one for a network without weights.

  const entries = data.variants.flatMap((values) => {
    const variant = named(data.keys.variant, values);
    const speeds = named(data.measurements, variant.throughput);
    const every = variant.weights.length ? variant.weights : [[]];
    return every.map((row) => {
      const entry = { ...variant, ...speeds, ...named(data.keys.weights, row) };
      entry.trained = row.length > 0;
      entry.page = `networks/${entry.name}.html${entry.trained ? `#weights-${entry.weights}` : ""}`;
      entry.text = [
        entry.name, entry.weights, entry.summary, entry.known_as, entry.license, entry.file,
        entry.task, entry.pretraining, entry.pretraining_data,
      ].join(" ").toLowerCase();
      return entry;
    });
  });
  for (const key of ["gmacs", "patch_size", ...COLUMNS.keys()]) {
    if (!entries.some((entry) => entry[key] ?? "" !== "")) COLUMNS.delete(key);
  }

  for (const [key, column] of COLUMNS) {
    if (key === "name") continue;
    const box = Object.assign(document.createElement("input"), {
      type: "checkbox", name: "columns", value: key, defaultChecked: Boolean(column.shown),
    });
    box.setAttribute("form", "filters");
    const chip = document.createElement("label");
    chip.className = "chip";
    const text = document.createElement("span");
    text.textContent = column.label;
    chip.append(box, text);
    byId("columns").append(chip);
  }

  // State: the values of the form and the sorted column; the address has what differs at first.

  const controls = new Map();
  for (const control of form.elements) {
    if (control.name) controls.set(control.name, [...controls.get(control.name) ?? [], control]);
  }
  let order = ""; // COLUMN:asc or COLUMN:desc
  let everyRow = false;
  let drawn = null; // the state that the page shows

  const valueOf = ([first, ...others]) => (first.type === "checkbox"
    ? [first, ...others].filter((box) => box.checked).map((box) => box.value).join(",")
    : first.value.trim());
  form.reset(); // a browser may keep the values of a page that is loaded again
  const initial = new Map([...controls].map(([name, group]) => [name, valueOf(group)]));

  function changes() {
    const found = new URLSearchParams();
    for (const [name, group] of controls) {
      if (valueOf(group) !== initial.get(name)) found.set(name, valueOf(group));
    }
    if (order) found.set("sort", order);
    return found;
  }

  function restore() {
    form.reset();
    order = "";
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
      const [key, direction] = value.split(":");
      if (name === "sort" && COLUMNS.has(key) && ["asc", "desc"].includes(direction)) order = value;
      for (const control of controls.get(name) ?? []) {
        if (control.type === "checkbox") {
          control.checked = value.split(",").includes(control.value);
        } else if (control.type !== "number" || Number.isFinite(Number(value))) {
          control.value = value;
          if (control.selectedIndex === -1) control.value = initial.get(name);
        }
      }
    }
  }

  function remember() {
    const text = changes().toString();
    drawn = text;
    history.replaceState(null, "", text ? `#${text}` : `${location.pathname}${location.search}`);
  }

  // Filters

  function filter() {
    const value = (name) => (controls.has(name) ? valueOf(controls.get(name)) : "");
    const words = value("q").toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = (name) => value(name).split(",").filter(Boolean);
    const groups = [
      ["commercial", "commercial"], ["task", "task"], ["family", "namespace"], ["pin", "pin"],
      ["patch", "patch_size"],
    ].map(([name, key]) => [key, chosen(name)]).filter(([, values]) => values.length);
    const limits = [["params", "params", 1e6], ["gmacs", "gmacs", 1], ["px", "image_size", 1]]
      .map(([name, key, unit]) => [key, limit(value(`${name}_min`), unit), limit(value(`${name}_max`), unit)])
      .filter(([, least, most]) => least !== null || most !== null);
    const license = value("license");
    const untrained = value("untrained") !== "";
    const met = entries.filter((entry) =>
      words.every((word) => entry.text.includes(word))
      && groups.every(([key, values]) => values.includes(String(entry[key])))
      && limits.every(([key, least, most]) => inside(entry[key], least, most))
      && (!license || entry.license === license));
    return { found: met.filter((entry) => untrained || entry.trained), met, untrained };
  }

  const limit = (text, unit) => (text === "" ? null : Number(text) * unit);

  function inside(value, least, most) {
    if (value === null || value === undefined) return false;
    return pixels(value).every((n) => (least === null || n >= least) && (most === null || n <= most));
  }

  // Sorting: entries without a value come last.

  function sorted(found) {
    if (!order) return found;
    const [key, direction] = order.split(":");
    const sign = direction === "desc" ? -1 : 1;
    const missing = (entry) => (entry[key] ?? "") === "";
    return [...found].sort((a, b) =>
      missing(a) - missing(b) || (missing(a) ? 0 : sign * compare(a[key], b[key], key)));
  }

  function compare(a, b, key) {
    if (key.endsWith("_size")) {
      const [first, second] = [pixels(a), pixels(b)];
      return first[0] - second[0] || (first[1] ?? first[0]) - (second[1] ?? second[0]);
    }
    if (typeof a === "number") return a - b;
    return a < b ? -1 : Number(a > b);
  }

  function sortBy(key) {
    const usual = COLUMNS.get(key).falling ? ["desc", "asc"] : ["asc", "desc"];
    const now = order.split(":")[0] === key ? order.split(":")[1] : "";
    const next = now === usual[0] ? usual[1] : now === usual[1] ? "" : usual[0];
    order = next && `${key}:${next}`;
    update();
  }

  // Table

  const cell = (tag, text = "", className = "") => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  let headings = "";
  function drawHead(shown) {
    if (headings !== shown.join()) {
      headings = shown.join();
      byId("head").replaceChildren(...shown.map((key) => {
        const { label: title, heading: text = title, number } = COLUMNS.get(key);
        const heading = cell("th", "", `${number ? "number" : ""} ${text.length > 14 ? "long" : ""}`.trim());
        heading.scope = "col";
        heading.dataset.key = key;
        const button = cell("button", text);
        button.type = "button";
        button.title = title;
        button.addEventListener("click", () => sortBy(key));
        heading.append(button);
        return heading;
      }));
    }
    const [key, direction] = order.split(":");
    for (const heading of byId("head").children) {
      const state = { asc: "ascending", desc: "descending" }[direction];
      heading.setAttribute("aria-sort", heading.dataset.key === key ? state : "none");
    }
  }

  function drawRow(entry, shown) {
    const row = document.createElement("tr");
    for (const key of shown) {
      const { write, number, wide } = COLUMNS.get(key);
      const value = entry[key] ?? "";
      const made = cell(key === "name" ? "th" : "td", "", [number && "number", wide && "wide"].filter(Boolean).join(" "));
      made.dataset.key = key;
      if (key === "name") {
        made.scope = "row";
        const link = cell("a", entry.name);
        link.href = entry.page;
        made.append(link);
        const second = cell("div", entry.weights, "weights");
        if (entry.default) second.append(" ", cell("span", "default", "badge"));
        if (entry.trained) made.append(second);
      } else if (key === "license" && entry.trained) {
        made.append(cell("span", entry.license || "not stated", `use ${entry.commercial}`));
      } else if (value !== "") {
        made.textContent = write ? write(value) : value;
        if (write === count) made.title = value.toLocaleString("en");
      }
      row.append(made);
    }
    return row;
  }

  function drawTable(found) {
    const value = (name) => (controls.has(name) ? valueOf(controls.get(name)) : "");
    const axes = ["x", "y"].filter((name) => value(name) !== initial.get(name)).map(value);
    const wanted = ["name", ...value("columns").split(","), ...axes];
    const shown = [...COLUMNS.keys()].filter((key) => wanted.includes(key));
    byId("body").parentElement.classList.toggle("usual", wanted.join() === `name,${initial.get("columns")}`);
    drawHead(shown);
    const visible = everyRow ? found : found.slice(0, FIRST);
    byId("body").replaceChildren(...visible.map((entry) => drawRow(entry, shown)));
    byId("all").hidden = visible.length === found.length;
    byId("all").textContent = `Show all ${found.length} entries`;
    const scroll = byId("scroll");
    scroll.hidden = found.length === 0;
    scroll.classList.remove("scrolls");
    scroll.classList.toggle("scrolls", scroll.firstElementChild.offsetWidth > scroll.clientWidth);
  }

  // Plot

  function svg(tag, attributes = {}, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // The entries to which no other is better in one of the two and as good in the other.
  function paretoLine(points, moreIsBetter) {
    const sign = moreIsBetter ? -1 : 1;
    const line = [];
    for (const point of [...points].sort((a, b) => sign * (a.x - b.x) || b.y - a.y)) {
      if (!line.length || point.y > line.at(-1).y) line.push(point);
    }
    return line;
  }

  function ticks(low, high, wanted) {
    const raw = (high - low) / wanted;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
    const made = [];
    for (let i = Math.ceil(low / step); i * step <= high * (1 + 1e-9); i += 1) {
      made.push(Number((i * step).toPrecision(12)));
    }
    return made;
  }

  function logTicks(low, high, wanted) {
    const made = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      made.push(...[1, 2, 5].map((n) => Number((n * 10 ** power).toPrecision(3))));
    }
    const inRange = made.filter((n) => n >= low && n <= high);
    if (inRange.length < 3) return ticks(low, high, wanted);
    const tens = inRange.filter((n) => /^(1|0\.0*1)0*$/.test(String(n)));
    return inRange.length > 2 * wanted && tens.length > 2 ? tens : inRange;
  }

  const SHAPES = { // by commercial use
    yes: (x, y, r) => svg("circle", { cx: x, cy: y, r }),
    read: (x, y, r) => svg("path", { d: `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z` }),
    no: (x, y, r) => svg("path", { d: `M${x} ${y - 1.2 * r}l${1.2 * r} ${2.1 * r}h${-2.4 * r}z` }),
  };

  function drawPlot(found) {
    const box = byId("plot");
    if (!box) return [];
    const [xKey, yKey] = ["x", "y"].map((name) => valueOf(controls.get(name)));
    const points = found
      .filter((entry) => entry[xKey] > 0 && (entry[yKey] ?? null) !== null)
      .map((entry) => ({ entry, x: entry[xKey], y: entry[yKey] }));
    const line = paretoLine(points, COLUMNS.get(xKey).falling);
    byId("plot-note").textContent = points.length
      ? `${points.length} of ${found.length} entries have both numbers; ${line.length} are on the Pareto line: `
        + "no other entry is better in one number and as good in the other."
      : "No entry has both numbers.";
    const width = box.clientWidth;
    if (!points.length || !width) {
      box.replaceChildren();
      return line;
    }
    const height = width < 500 ? 260 : 340;
    const [left, right, top, bottom] = [48, 14, 14, 44];
    const xs = points.map((point) => point.x);
    const ys = points.map((point) => point.y);
    const [lowX, highX] = [Math.min(...xs) / 1.15, Math.max(...xs) * 1.15];
    const room = Math.max((Math.max(...ys) - Math.min(...ys)) * 0.06, 0.2);
    const [lowY, highY] = [Math.min(...ys) - room, Math.max(...ys) + room];
    const atX = (x) => left + (width - left - right) * (Math.log(x / lowX) / Math.log(highX / lowX));
    const atY = (y) => height - bottom - (height - top - bottom) * ((y - lowY) / (highY - lowY));
    const write = COLUMNS.get(xKey).write;

    const grid = svg("g", { class: "grid", "aria-hidden": "true" });
    for (const x of logTicks(lowX, highX, Math.floor(width / 90))) {
      grid.append(
        svg("line", { x1: atX(x), x2: atX(x), y1: top, y2: height - bottom }),
        svg("text", { x: atX(x), y: height - bottom + 16, "text-anchor": "middle" }, write(x)),
      );
    }
    for (const y of ticks(lowY, highY, 6)) {
      grid.append(
        svg("line", { x1: left, x2: width - right, y1: atY(y), y2: atY(y) }),
        svg("text", { x: left - 6, y: atY(y) + 4, "text-anchor": "end" }, String(y)),
      );
    }
    grid.append(
      svg("text", { class: "title", x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" },
        fitted(label("x", xKey), width - left - right)),
      svg("text", { class: "title", transform: `translate(12 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" },
        label("y", yKey)),
    );

    const steps = line.map(({ x, y }, i) => (i
      ? `H${atX(x).toFixed(1)}V${atY(y).toFixed(1)}` : `M${atX(x).toFixed(1)} ${atY(y).toFixed(1)}`));
    const best = new Set(line);
    const marks = [...points.filter((point) => !best.has(point)), ...line].map((point) => {
      const { entry, x, y } = point;
      const name = `${entry.name}:${entry.weights}`;
      const said = `${name}, ${label("x", xKey)} ${write(x)}, ${label("y", yKey)} ${y}, commercial use: ${entry.commercial}`;
      const onLine = best.has(point);
      const link = svg("a", {
        href: entry.page, class: `mark ${entry.commercial}${onLine ? " best" : ""}`,
        "aria-label": said, tabindex: onLine ? "0" : "-1",
      }, svg("title", {}, said), SHAPES[entry.commercial](atX(x), atY(y), onLine ? 5 : 3.5));
      return link;
    });
    const drawing = svg("svg", { width, height, role: "group", "aria-label": "Plot; the points on the Pareto line are links" },
      grid, svg("path", { class: "line", d: steps.join(""), "aria-hidden": "true" }),
      ...marks, ...labels(line, atX, atY, { left, right: width - right }, COLUMNS.get(xKey).falling));
    box.replaceChildren(drawing);
    return line;
  }

  const fitted = (text, width) => (text.length * 6.5 > width ? `${text.slice(0, width / 6.5 - 1)}…` : text);

  // The names of the entries on the line, where there is room on its empty side.
  function labels(line, atX, atY, { left, right }, falling) {
    const overlap = (a, b) => a.left < b.right && a.right > b.left && a.top < b.bottom && a.bottom > b.top;
    const taken = line.map(({ x, y }) => ({
      left: atX(x) - 5, right: atX(x) + 5, top: atY(y) - 5, bottom: atY(y) + 5,
    }));
    const made = [];
    for (const { entry, x, y } of [...line].reverse()) {
      const width = entry.name.length * 6.4;
      const start = falling ? atX(x) + 7 : atX(x) - 7 - width;
      const box = { left: start, right: start + width, top: atY(y) - 17, bottom: atY(y) - 4 };
      if (box.left < left || box.right > right || taken.some((other) => overlap(box, other))) continue;
      taken.push(box);
      const anchor = falling ? { x: start } : { x: start + width, "text-anchor": "end" };
      made.push(svg("text", { class: "label", y: atY(y) - 6, "aria-hidden": "true", ...anchor }, entry.name));
    }
    return made;
  }

  // All together

  function update() {
    const { found, met, untrained } = filter();
    const line = drawPlot(found);
    const only = controls.has("pareto") && valueOf(controls.get("pareto"));
    const shown = sorted(only ? line.map(({ entry }) => entry) : found);
    drawTable(shown);
    const total = entries.filter((entry) => untrained || entry.trained).length;
    byId("count").textContent = `${shown.length} of ${total} ${untrained ? "entries" : "sets of weights"}`;
    const hidden = met.length - found.length;
    byId("empty").hidden = shown.length > 0;
    byId("empty").textContent = hidden
      ? `No weights match. ${hidden} network${hidden === 1 ? "" : "s"} without published weights would: tick “Also networks without published weights”.`
      : "Nothing matches all filters. Remove one of them.";
    const view = ["q", "x", "y", "columns", "sort"];
    const active = [...changes().keys()].filter((name) => !view.includes(name)).length;
    byId("active").hidden = active === 0;
    byId("active").textContent = `${active} active`;
    remember();
  }

  let waiting = 0;
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const kind of ["input", "change"]) {
    document.addEventListener(kind, ({ target }) => {
      if (target.form !== form || changes().toString() === drawn) return;
      everyRow = false;
      clearTimeout(waiting);
      waiting = setTimeout(update, ["search", "number"].includes(target.type) ? 120 : 0);
    });
  }
  byId("clear").addEventListener("click", () => {
    history.replaceState(null, "", `${location.pathname}${location.search}`);
    restore();
    update();
  });
  byId("all").addEventListener("click", () => {
    everyRow = true;
    update();
    byId("body").rows[FIRST]?.querySelector("a").focus();
  });
  addEventListener("hashchange", () => {
    restore();
    update();
  });
  if (byId("plot")) {
    let width = 0;
    new ResizeObserver(([{ contentRect }]) => {
      if (Math.round(contentRect.width) !== width) {
        width = Math.round(contentRect.width);
        update();
      }
    }).observe(byId("plot"));
  }
  if (matchMedia("(max-width: 56rem)").matches) {
    for (const id of ["more", "plot-box"]) byId(id)?.removeAttribute("open");
  }
  restore();
  update();
}
