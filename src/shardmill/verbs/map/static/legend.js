// What colours the points, and the filters: a legend to choose values from, and a histogram to brush over.

const BINS = 42;
const LEGEND_ROWS = 14;

/** All ways to colour: by clusters, by each kept column, by density. */
function colourings(points) {
  const ways = [];
  const level = points.levels.find((each) => each.clusters.length >= 5) || points.levels.at(-1);
  if (level && level.clusters.length) {
    const counts = new Array(256).fill(0);
    const codes = new Uint8Array(points.count);
    const clusterOf = (i) => level.of_cell[points.cells[i]];
    for (let i = 0; i < points.count; i += 1) {
      const c = clusterOf(i);
      codes[i] = c < 0 ? NULL : Math.min(c, OTHER);
      counts[codes[i]] += 1;
    }
    const labels = level.clusters.map((cluster) => cluster.words.slice(0, 3).join(", "));
    const column = { name: "Cluster", kind: "category", codes, counts, labels, clusters: level.clusters, clusterOf };
    ways.push({ key: "cluster", column, colours: (theme) => clusterPalette(theme, level.clusters) });
  }
  points.columns.forEach((column, i) => {
    ways.push({ key: `column${i}`, column, colours: column.kind === "category" ? categoryPalette : rampPalette });
  });
  ways.push({ key: "density", column: { name: "Density", kind: "density" }, colours: rampPalette });
  return ways;
}

class Legend {
  constructor(map) {
    this.map = map;
    this.ways = colourings(map.points);
    this.choice = byId("colour");
    for (const way of this.ways) this.choice.append(make("option", { value: way.key }, plain(way.column.name)));
    this.choice.addEventListener("change", () => this.use(this.choice.value));
    this.box = byId("legend");
    this.allowed = new Map();
    this.rows = LEGEND_ROWS;
  }

  async use(key) {
    this.way = this.ways.find((way) => way.key === key) || this.ways[0];
    this.choice.value = this.way.key;
    this.rows = LEGEND_ROWS;
    const { column } = this.way;
    const { way } = this;
    if (column.kind === "density") column.codes = this.map.points.density();
    else await this.map.points.loadColumn(column);
    if (way !== this.way) return;
    this.map.painter.setCodes(column.codes);
    this.paint();
  }

  /** Colours of the theme, for points and legend. */
  paint() {
    if (!this.way.column.codes) return;
    this.colours = this.way.colours(this.map.theme);
    this.map.painter.setColours(this.colours, GROUND[this.map.theme]);
    const { kind } = this.way.column;
    this.box.replaceChildren(...(kind === "category" ? this.categories() : kind === "density" ? this.ramp("few", "many points around") : this.histogram()));
    this.map.schedule(true);
  }

  colour(code) { return css(this.colours.subarray(4 * code, 4 * code + 3)); }

  /** An SVG, as styles in attributes are not allowed on this page. */
  ramp(low, high) {
    const bars = Array.from({ length: 32 }, (_, i) => make("svg:rect", {
      x: i, y: 0, width: 1.05, height: 1, fill: this.colour(Math.round((i / 31) * LAST_CODE)),
    }));
    return [
      make("svg:svg", { class: "ramp", viewBox: "0 0 32 1", preserveAspectRatio: "none", "aria-hidden": "true" }, ...bars),
      make("p", { class: "ends" }, make("span", {}, low), make("span", {}, high)),
    ];
  }

  swatch(code) {
    return make("svg:svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" }, make("svg:circle", { cx: 5, cy: 5, r: 4.5, fill: this.colour(code) }));
  }

  categories() {
    const { column } = this.way;
    const allowed = this.allowed.get(this.way.key);
    const codes = [...column.counts.keys()].filter((code) => column.counts[code]);
    codes.sort((a, b) => (a >= OTHER) - (b >= OTHER) || column.counts[b] - column.counts[a]);
    const rows = codes.slice(0, this.rows).map((code) => {
      const name = column.clusters && code === NULL ? "in no cluster" : codeText(column, code);
      const pressed = Boolean(allowed && allowed[code]);
      const button = make(
        "button", { type: "button", class: "value", "aria-pressed": String(pressed), title: `Show only: ${name}` },
        this.swatch(code), make("span", { class: "name", dir: "auto" }, name), make("span", { class: "number" }, count(column.counts[code])),
      );
      button.addEventListener("click", () => this.toggle(code));
      const row = make("li", {}, button);
      if (column.clusters && code < OTHER) row.append(this.goTo(column.clusters[code], name));
      return row;
    });
    const parts = [make("ul", { class: "values" + (allowed ? " some" : "") }, ...rows)];
    if (codes.length > this.rows) {
      const more = make("button", { type: "button", class: "more" }, `Show ${count(codes.length - this.rows)} more`);
      more.addEventListener("click", () => {
        this.rows = codes.length;
        this.paint();
      });
      parts.push(more);
    }
    if (column.categories > column.labels.length) {
      parts.push(make("p", { class: "quiet" }, `The ${count(column.labels.length)} most frequent of ${count(column.categories)} values.`));
    }
    return parts;
  }

  goTo(cluster, name) {
    const cross = make("svg:path", { d: "M10 2v4M10 14v4M2 10h4M14 10h4M10 5a5 5 0 1 0 .01 0z" });
    const icon = make("svg:svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, cross);
    const go = make("button", { type: "button", class: "go", "aria-label": `Go to ${name}`, title: "Go there" }, icon);
    go.addEventListener("click", () => {
      const { view } = this.map;
      view.fly(cluster.px, cluster.py, clamp(view.fit() / Math.max(1e-3, 4 * cluster.reach), view.fit(), 40 * view.fit()));
    });
    return go;
  }

  /** Choose or unchoose a value; none chosen means all. */
  toggle(code) {
    const allowed = this.allowed.get(this.way.key) || new Uint8Array(256);
    allowed[code] = allowed[code] ? 0 : 1;
    this.filter(this.way, allowed.some(Boolean) ? allowed : null);
    const at = [...this.box.querySelectorAll(".value")].indexOf(document.activeElement);
    this.paint();
    this.box.querySelectorAll(".value")[at]?.focus();
  }

  filter(way, allowed) {
    if (allowed) this.allowed.set(way.key, allowed);
    else this.allowed.delete(way.key);
    this.map.points.filter(way.key, way.column.codes, allowed);
    this.map.filtered();
    this.chips();
  }

  /** Each filter, to be taken away by a click, whatever colours the points now. */
  chips() {
    byId("filters").replaceChildren(...[...this.allowed].map(([key, allowed]) => {
      const way = this.ways.find((each) => each.key === key);
      const chip = make("button", { type: "button", class: "chip", "aria-label": `Remove the filter ${this.saying(way, allowed)}` }, `${this.saying(way, allowed)} ×`);
      chip.addEventListener("click", () => {
        this.filter(way, null);
        this.paint();
      });
      return chip;
    }));
  }

  saying({ column }, allowed) {
    const codes = [...allowed.keys()].filter((code) => allowed[code]);
    const name = plain(column.name);
    if (column.kind !== "category") return `${name}: ${codeText(column, codes[0])} to ${codeText(column, codes.at(-1))}`;
    return `${name}: ${codes.length === 1 ? shortened(codeText(column, codes[0]), 30) : counted(codes.length, "value")}`;
  }

  /** Bars over the range of a column. Drag over them, or move the two sliders, to show a part. */
  histogram() {
    const { way } = this;
    const { column } = way;
    const bins = new Float64Array(BINS);
    const binOf = (code) => Math.min(BINS - 1, Math.floor((code * BINS) / (LAST_CODE + 1)));
    for (let code = 0; code <= LAST_CODE; code += 1) bins[binOf(code)] += column.counts[code];
    const most = Math.max(...bins) || 1;
    const bars = Array.from(bins, (value, bin) => {
      const height = value ? Math.max(0.02, value / most) : 0;
      return make("svg:rect", { x: bin + 0.06, y: 1 - height, width: 0.88, height, fill: this.colour(Math.round(((bin + 0.5) / BINS) * LAST_CODE)) });
    });
    const picture = make("svg:svg", { class: "bars", viewBox: `0 0 ${BINS} 1`, preserveAspectRatio: "none", "aria-hidden": "true" }, ...bars);
    const said = make("p", { class: "ends" });
    const sliders = ["from", "to"].map((end) => make("input", { type: "range", min: 0, max: BINS - 1, value: end === "to" ? BINS - 1 : 0, "aria-label": `${plain(column.name)} ${end}` }));
    const code = (bin, end) => Math.min(LAST_CODE, Math.ceil(((bin + end) * (LAST_CODE + 1)) / BINS) - end);
    const choose = (a, b, apply) => {
      const [low, high] = [Math.min(a, b), Math.max(a, b)];
      [sliders[0].value, sliders[1].value] = [low, high];
      const range = [code(low, 0), code(high, 1)];
      said.replaceChildren(...range.map((each) => make("span", {}, codeText(column, each))));
      sliders.forEach((slider, i) => slider.setAttribute("aria-valuetext", codeText(column, range[i])));
      bars.forEach((bar, bin) => bar.setAttribute("class", bin < low || bin > high ? "out" : ""));
      if (!apply) return;
      const allowed = new Uint8Array(256);
      allowed.fill(1, range[0], range[1] + 1);
      this.filter(way, low === 0 && high === BINS - 1 ? null : allowed);
    };
    const before = this.allowed.get(way.key);
    choose(before ? binOf(before.indexOf(1)) : 0, before ? binOf(before.lastIndexOf(1)) : BINS - 1, false);
    sliders.forEach((slider) => slider.addEventListener("input", () => choose(Number(sliders[0].value), Number(sliders[1].value), true)));
    this.brush(picture, choose);
    const parts = [make("div", { class: "histogram" }, picture, make("div", { class: "sliders" }, ...sliders)), said];
    if (column.counts[NULL]) parts.push(make("p", { class: "quiet" }, `${count(column.counts[NULL])} without a value`));
    return parts;
  }

  brush(picture, choose) {
    let start = null;
    const bin = (event) => {
      const box = picture.getBoundingClientRect();
      return clamp(Math.floor(((event.clientX - box.left) / box.width) * BINS), 0, BINS - 1);
    };
    picture.addEventListener("pointerdown", (event) => {
      start = bin(event);
      picture.setPointerCapture(event.pointerId);
    });
    picture.addEventListener("pointermove", (event) => start !== null && choose(start, bin(event), true));
    picture.addEventListener("pointerup", (event) => {
      // A click without a drag shows all again.
      if (bin(event) === start) choose(0, BINS - 1, true);
      start = null;
    });
    picture.addEventListener("pointercancel", () => (start = null));
  }
}
