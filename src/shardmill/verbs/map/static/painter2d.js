// The same without a GPU: discs blended into the pixels of an image. A browser that only imitates WebGL takes about a
// microsecond per point; this takes a quarter of that.

const PHASES = 3;
const MARGIN = 32;
const IMITATIONS = /swiftshader|llvmpipe|softpipe|software|basic render/i;

class FlatPainter {
  constructor(canvas, points) {
    const n = points.count;
    Object.assign(this, { canvas, points, name: "2D canvas", done: 0, ground: GROUND.light, colours: new Uint8Array(1024) });
    this.context = canvas.getContext("2d", { alpha: false });
    this.places = strewn(n, new Uint16Array(2 * n), points.x, points.y);
    this.setShown();
  }

  setCodes(codes) {
    const n = this.points.count;
    this.codes = codes;
    this.strewnCodes = strewn(n, new Uint8Array(n), codes);
  }

  setShown() {
    const n = this.points.count;
    this.shown = strewn(n, new Uint8Array(n), this.points.shown);
  }

  setColours(colours, ground) { Object.assign(this, { colours, ground }); }

  setMarked(marked) {
    this.marked = marked;
    const found = (marked || new Uint32Array(0)).filter((i) => this.points.shown[i]);
    this.few = { places: new Uint16Array(2 * found.length), codes: new Uint8Array(found.length) };
    found.forEach((i, at) => {
      this.few.places.set([this.points.x[i], this.points.y[i]], 2 * at);
      this.few.codes[at] = this.codes[i];
    });
  }

  resize(width, height) {
    this.canvas.width = width;
    this.canvas.height = height;
    // With a margin, so that no disc needs to be cut at an edge.
    this.image = this.context.createImageData(width + 2 * MARGIN, height + 2 * MARGIN);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  clear() {
    const [r, g, b] = this.ground;
    this.pixels.fill((255 << 24) | (b << 16) | (g << 8) | r);
  }

  /** How much of each pixel a disc covers, from 0 to 256, for some places of its centre within a pixel. */
  discs(radius, alpha) {
    const side = Math.ceil(2 * radius) + 1;
    const masks = new Uint16Array(PHASES * PHASES * side * side);
    let at = 0;
    for (let phase = 0; phase < PHASES * PHASES; phase += 1) {
      const cx = radius + ((phase % PHASES) + 0.5) / PHASES;
      const cy = radius + (Math.floor(phase / PHASES) + 0.5) / PHASES;
      for (let y = 0; y < side; y += 1) {
        for (let x = 0; x < side; x += 1, at += 1) {
          masks[at] = 256 * alpha * clamp(radius + 0.5 - Math.hypot(x + 0.5 - cx, y + 0.5 - cy), 0, 1);
        }
      }
    }
    return { side, masks };
  }

  /** Colours of the codes, red and blue apart from green, so that two channels are blended at once. */
  inks(pale) {
    const mixed = (at, c) => Math.round(this.colours[at + c] * (1 - pale) + this.ground[c] * pale);
    const redBlue = new Uint32Array(256);
    const green = new Uint32Array(256);
    for (let code = 0; code < 256; code += 1) {
      redBlue[code] = (mixed(4 * code, 2) << 16) | mixed(4 * code, 0);
      green[code] = mixed(4 * code, 1) << 8;
    }
    return { redBlue, green };
  }

  blend(view, { places, codes, shown }, from, to, { radius, alpha, pale }) {
    const { pixels } = this;
    const [width, height] = [this.image.width, this.image.height];
    const ratio = this.canvas.width / view.width;
    const { side, masks } = this.discs(radius * ratio, alpha);
    const { redBlue, green } = this.inks(pale);
    const scale = (view.k * ratio) / LAST_STEP;
    const left = width / 2 - view.x * view.k * ratio - radius * ratio;
    const top = height / 2 + (1 - view.y) * view.k * ratio - radius * ratio;
    const area = side * side;
    for (let i = from; i < to; i += 1) {
      if (shown && !shown[i]) continue;
      const x = left + places[2 * i] * scale;
      const y = top - places[2 * i + 1] * scale;
      if (!(x >= 0 && y >= 0 && x + side < width && y + side < height)) continue;
      const [column, row] = [x | 0, y | 0];
      let mask = ((((y - row) * PHASES) | 0) * PHASES + (((x - column) * PHASES) | 0)) * area;
      const rb = redBlue[codes[i]];
      const g = green[codes[i]];
      for (let line = row * width + column, end = line + side * width; line < end; line += width) {
        for (let at = line; at < line + side; at += 1, mask += 1) {
          const a = masks[mask];
          if (!a) continue;
          const below = pixels[at];
          const belowRb = below & 0xff00ff;
          const belowG = below & 0xff00;
          pixels[at] = 0xff000000 | ((belowRb + (Math.imul(rb - belowRb, a) >> 8)) & 0xff00ff) | ((belowG + (Math.imul(g - belowG, a) >> 8)) & 0xff00);
        }
      }
    }
  }

  draw(view, from, to, moving) {
    const { radius, alpha } = strokes(view, this.points.shownCount, to - from, moving);
    const data = { places: this.places, codes: this.strewnCodes, shown: this.shown };
    this.blend(view, data, from, to, { radius, alpha: this.marked ? 0.6 * alpha : alpha, pale: this.marked ? PALE : 0 });
  }

  drawMarked(view, most) {
    if (!this.marked) return;
    const n = this.few.codes.length;
    this.blend(view, this.few, 0, Math.min(n, most), { radius: markedRadius(view, n), alpha: 0.9, pale: 0 });
  }

  sketch(view, most) {
    const few = Math.min(most, this.points.count);
    this.clear();
    this.draw(view, 0, few, true);
    this.drawMarked(view, few);
    this.context.putImageData(this.image, -MARGIN, -MARGIN);
    this.done = few >= this.points.count ? few : 0;
  }

  refine(view, most) {
    if (this.done >= this.points.count) return true;
    if (!this.done) this.clear();
    const to = Math.min(this.points.count, this.done + most);
    this.draw(view, this.done, to, false);
    this.done = to;
    if (to < this.points.count) return false;
    this.drawMarked(view, this.points.count);
    this.context.putImageData(this.image, -MARGIN, -MARGIN);
    return true;
  }
}

/** WebGL if the browser has it, it works, and it is not imitated. */
function choosePainter(canvas, points) {
  try {
    const probe = document.createElement("canvas").getContext("webgl2");
    const names = probe.getExtension("WEBGL_debug_renderer_info");
    if (!names || !IMITATIONS.test(probe.getParameter(names.UNMASKED_RENDERER_WEBGL))) return new GlPainter(canvas, points);
  } catch (error) {
    // A canvas keeps the kind of its first context.
    const other = canvas.cloneNode();
    canvas.replaceWith(other);
    return new FlatPainter(other, points);
  }
  return new FlatPainter(canvas, points);
}
