// The points: where they lie, which are shown, what colours them, and which of them is near a place.

const OTHER = 254;
const NULL = 255;
const LAST_CODE = 253;
const LAST_STEP = 65535;

/** Points with their columns, and a grid to find them by place. Places are from 0 to 1, y downwards. */
class Points {
  constructor(head, bytes) {
    const n = head.count;
    this.head = head;
    this.count = n;
    this.x = new Uint16Array(bytes.buffer, bytes.byteOffset, n);
    this.y = new Uint16Array(bytes.buffer, bytes.byteOffset + 2 * n, n);
    this.cells = new Uint16Array(bytes.buffer, bytes.byteOffset + 4 * n, n);
    this.columns = head.columns;
    if (this.columns.length) this.columns[0].codes = bytes.subarray(6 * n, 7 * n);
    this.columns.forEach((column, at) => {
      if (column.told) column.values = new Blocks(`value${at}_`, readTexts);
    });
    this.levels = head.levels;
    this.shown = new Uint8Array(n).fill(255);
    this.shownCount = n;
    this.filters = new Map();
    this.texts = new Blocks("text", readTexts);
    this.ids = new Blocks("id", readTexts);
    this.neighbours = new Blocks("near", (buffer) => new Uint32Array(buffer));
    this.measureClusters();
  }

  px(i) { return this.x[i] / LAST_STEP; }
  py(i) { return 1 - this.y[i] / LAST_STEP; }

  clusterOf(i, level) { return this.levels[level].of_cell[this.cells[i]]; }

  /** How far the points of each cluster lie from its label, so that a label is shown only where it has room. */
  measureClusters() {
    for (const level of this.levels) {
      const sums = new Float64Array(level.clusters.length);
      const counts = new Uint32Array(level.clusters.length);
      const step = Math.max(1, Math.floor(this.count / 200000));
      for (let i = 0; i < this.count; i += step) {
        const c = level.of_cell[this.cells[i]];
        if (c < 0) continue;
        sums[c] += Math.hypot(this.x[i] - level.clusters[c].x, this.y[i] - level.clusters[c].y);
        counts[c] += 1;
      }
      level.clusters.forEach((cluster, c) => {
        cluster.px = cluster.x / LAST_STEP;
        cluster.py = 1 - cluster.y / LAST_STEP;
        cluster.reach = counts[c] ? sums[c] / counts[c] / LAST_STEP : 0;
        cluster.words = cluster.words.length ? cluster.words.map(plain) : [`cluster ${c}`];
      });
    }
  }

  /** The columns that came after the page was first drawn. */
  async loadColumn(column) {
    if (!column.codes) column.codes = await arrival(`column${this.columns.indexOf(column)}`);
    return column.codes;
  }

  /** Points sorted by the cell of a grid in which they lie; made when a place is first asked for. */
  grid() {
    if (this.sorted) return this;
    const n = this.count;
    const side = clamp(Math.ceil(Math.sqrt(n / 4)), 8, 1024);
    const starts = new Uint32Array(side * side + 1);
    const cell = new Uint32Array(n);
    const scale = side / (LAST_STEP + 1);
    for (let i = 0; i < n; i += 1) {
      cell[i] = Math.floor(this.y[i] * scale) * side + Math.floor(this.x[i] * scale);
      starts[cell[i] + 1] += 1;
    }
    for (let c = 0; c < side * side; c += 1) starts[c + 1] += starts[c];
    const next = starts.slice();
    const sorted = new Uint32Array(n);
    for (let i = 0; i < n; i += 1) {
      sorted[next[cell[i]]] = i;
      next[cell[i]] += 1;
    }
    Object.assign(this, { side, starts, sorted });
    return this;
  }

  /** Call `visit` with each shown point of a box. */
  inBox(left, top, right, bottom, visit) {
    const { side, starts, sorted, shown } = this.grid();
    const from = (value) => clamp(Math.floor(value * side), 0, side - 1);
    const [x0, x1, y0, y1] = [from(left), from(right), from(1 - bottom), from(1 - top)];
    for (let row = y0; row <= y1; row += 1) {
      for (let at = starts[row * side + x0]; at < starts[row * side + x1 + 1]; at += 1) {
        if (shown[sorted[at]]) visit(sorted[at]);
      }
    }
  }

  /** The shown point nearest to a place, within a radius; -1 if there is none. */
  nearest(x, y, radius) {
    let best = -1;
    let least = radius * radius;
    this.inBox(x - radius, y - radius, x + radius, y + radius, (i) => {
      const distance = (this.px(i) - x) ** 2 + (this.py(i) - y) ** 2;
      if (distance < least) [best, least] = [i, distance];
    });
    return best;
  }

  /** The shown points inside a closed line, in source order. */
  inside(line) {
    const xs = line.map((p) => p[0]);
    const ys = line.map((p) => p[1]);
    const found = [];
    this.inBox(Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys), (i) => {
      const [x, y] = [this.px(i), this.py(i)];
      let within = false;
      for (let a = 0, b = line.length - 1; a < line.length; b = a, a += 1) {
        if (ys[a] > y !== ys[b] > y && x < ((xs[b] - xs[a]) * (y - ys[a])) / (ys[b] - ys[a]) + xs[a]) within = !within;
      }
      if (within) found.push(i);
    });
    return Uint32Array.from(found).sort();
  }

  /** How many points lie around each point, as a code; from counts in a grid, smoothed. */
  density() {
    if (this.dense) return this.dense;
    const side = clamp(Math.ceil(Math.sqrt(this.count)), 32, 256);
    const scale = side / (LAST_STEP + 1);
    let counts = new Float32Array(side * side);
    const cell = (i) => Math.floor(this.y[i] * scale) * side + Math.floor(this.x[i] * scale);
    for (let i = 0; i < this.count; i += 1) counts[cell(i)] += 1;
    for (const step of [1, side, 1, side]) {
      const smooth = new Float32Array(side * side);
      for (let c = 0; c < counts.length; c += 1) {
        smooth[c] = (2 * counts[c] + (counts[c - step] || 0) + (counts[c + step] || 0)) / 4;
      }
      counts = smooth;
    }
    const most = Math.log1p(counts.reduce((a, b) => Math.max(a, b), 0)) || 1;
    this.dense = new Uint8Array(this.count);
    for (let i = 0; i < this.count; i += 1) this.dense[i] = (LAST_CODE * Math.log1p(counts[cell(i)])) / most;
    return this.dense;
  }

  /** Show only points whose codes `allowed` (256 flags) admits; null takes the filter away. */
  filter(name, codes, allowed) {
    if (allowed) this.filters.set(name, { codes, allowed });
    else this.filters.delete(name);
    const all = [...this.filters.values()];
    let total = 0;
    for (let i = 0; i < this.count; i += 1) {
      let keep = 255;
      for (const each of all) if (!each.allowed[each.codes[i]]) keep = 0;
      this.shown[i] = keep;
      total += keep & 1;
    }
    this.shownCount = total;
  }
}

function codeText(column, code) {
  if (code === NULL) return "none";
  if (column.kind === "category") return code === OTHER ? "other" : plain(column.labels[code]);
  const value = column.low + (code / LAST_CODE) * (column.high - column.low);
  if (column.kind === "time") return moment(value, column.high - column.low);
  return figure(value, (column.high - column.low) / LAST_CODE);
}
