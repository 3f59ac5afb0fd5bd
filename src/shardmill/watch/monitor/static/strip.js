// All shards of a run on one canvas, a cell each, coloured by state. One pass over the bytes draws any number of them.

const NAMES = ["waiting", "running", "done", "failed"];
// If several shards share a pixel, the one that needs a look is shown.
const URGENT = [1, 2, 0, 3];
const LEAST_HEIGHT = 14;
const MOST_HEIGHT = 420;
const LARGEST_CELL = 18;

export class Strip {
  constructor(canvas, onPick) {
    this.canvas = canvas;
    this.onPick = onPick;
    this.states = new Uint8Array(0);
    this.picked = -1;
    this.frameMs = [];
    this.cell = 1;
    this.columns = 1;
    this.perCell = 1;
    this.width = 1;
    new ResizeObserver(([entry]) => {
      this.width = Math.max(1, Math.floor(entry.contentRect.width));
      this.schedule();
    }).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.palette = null;
      this.schedule();
    });
    canvas.addEventListener("pointermove", (event) => this.pick(this.at(event)));
    canvas.addEventListener("pointerleave", () => document.activeElement !== canvas && this.pick(-1));
    canvas.addEventListener("keydown", (event) => this.move(event));
    canvas.addEventListener("focus", () => this.pick(Math.max(0, this.picked)));
    canvas.addEventListener("blur", () => this.pick(-1));
  }

  show(states) {
    this.states = states;
    this.canvas.setAttribute("aria-valuemax", Math.max(0, states.length - 1));
    if (this.picked >= states.length) this.picked = -1;
    this.schedule();
  }

  schedule() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      const began = performance.now();
      this.draw();
      this.frameMs.push(performance.now() - began);
      if (this.frameMs.length > 200) this.frameMs.shift();
    });
  }

  /** Choose cells as large as the width allows; below one pixel, several shards share one. */
  layout(width) {
    const n = Math.max(1, this.states.length);
    let cell = Math.min(LARGEST_CELL, Math.floor(Math.sqrt((width * 190) / n)));
    cell = Math.max(1, cell);
    this.perCell = 1;
    let columns = Math.max(1, Math.floor(width / cell));
    while (Math.ceil(n / this.perCell / columns) * cell > MOST_HEIGHT) this.perCell += 1;
    columns = Math.min(columns, Math.ceil(n / this.perCell));
    Object.assign(this, { cell, columns, rows: Math.ceil(n / this.perCell / columns) });
  }

  draw() {
    const { canvas, states } = this;
    this.layout(this.width);
    const { cell, columns, rows, perCell } = this;
    const scale = Math.max(1, Math.round(devicePixelRatio || 1));
    this.resize(columns * cell * scale, rows * cell * scale, scale);
    const palette = this.colours();
    if (!this.small || this.small.width !== columns || this.small.height !== rows) this.small = new ImageData(columns, rows);
    const { small } = this;
    const pixels = new Uint32Array(small.data.buffer);
    pixels.fill(0, Math.max(0, pixels.length - columns));
    if (perCell === 1) {
      for (let i = 0; i < states.length; i += 1) pixels[i] = palette[states[i]];
    } else {
      for (let i = 0, cells = Math.ceil(states.length / perCell); i < cells; i += 1) {
        let worst = states[i * perCell];
        for (let j = i * perCell; j < Math.min(states.length, (i + 1) * perCell); j += 1) {
          if (URGENT[states[j]] > URGENT[worst]) worst = states[j];
        }
        pixels[i] = palette[worst];
      }
    }
    this.sheet = this.sheet || document.createElement("canvas");
    if (this.sheet.width !== columns || this.sheet.height !== rows) Object.assign(this.sheet, { width: columns, height: rows });
    this.sheet.getContext("2d").putImageData(small, 0, 0);
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(this.sheet, 0, 0, canvas.width, canvas.height);
    if (cell >= 4) this.grid(context, scale);
    if (this.picked >= 0) this.mark(context, scale, this.markColour);
  }

  /** A canvas that changes its size is made anew, so it is left alone if it need not. */
  resize(width, height, scale) {
    const { canvas } = this;
    if (canvas.width === width && canvas.height === height) return;
    Object.assign(canvas, { width, height });
    canvas.style.width = `${width / scale}px`;
    canvas.style.height = `${Math.max(LEAST_HEIGHT, height / scale)}px`;
  }

  /** The colours of the style sheet as pixels; they change with the light or dark setting alone. */
  colours() {
    if (!this.palette) {
      const style = getComputedStyle(this.canvas);
      this.palette = new Uint32Array(NAMES.map((name) => packed(style.getPropertyValue(`--${name}`))));
      this.markColour = style.getPropertyValue("--mark").trim();
    }
    return this.palette;
  }

  /** Lines between cells, cleared so that the page shows through. */
  grid(context, scale) {
    const step = this.cell * scale;
    const line = Math.max(1, Math.round(scale * (this.cell >= 10 ? 2 : 1)));
    for (let x = step; x <= this.columns * step; x += step) context.clearRect(x - line, 0, line, this.canvas.height);
    for (let y = step; y <= this.rows * step; y += step) context.clearRect(0, y - line, this.canvas.width, line);
  }

  mark(context, scale, colour) {
    const cell = Math.floor(this.picked / this.perCell);
    const size = Math.max(7, this.cell) * scale;
    const x = ((cell % this.columns) + 0.5) * this.cell * scale - size / 2;
    const y = (Math.floor(cell / this.columns) + 0.5) * this.cell * scale - size / 2;
    context.strokeStyle = colour;
    context.lineWidth = 2 * scale;
    context.strokeRect(x, y, size, size);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.cell);
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
    const shard = (row * this.columns + column) * this.perCell;
    return column >= 0 && column < this.columns && shard >= 0 && shard < this.states.length ? shard : -1;
  }

  move(event) {
    const row = this.columns * this.perCell;
    const steps = {
      ArrowRight: 1, ArrowLeft: -1, ArrowUp: 1, ArrowDown: -1, PageDown: row, PageUp: -row,
      Home: -this.states.length, End: this.states.length,
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.pick(Math.min(this.states.length - 1, Math.max(0, this.picked + steps[event.key])));
  }

  pick(shard) {
    if (shard === this.picked) return;
    this.picked = shard;
    this.schedule();
    const state = shard < 0 ? "" : NAMES[this.states[shard]];
    if (shard >= 0) {
      this.canvas.setAttribute("aria-valuenow", shard);
      this.canvas.setAttribute("aria-valuetext", `shard ${shard}, ${state}`);
    }
    this.onPick(shard, state);
  }
}

/** A colour of the style sheet, #rrggbb, as a pixel. */
function packed(colour) {
  const value = parseInt(colour.trim().slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}
