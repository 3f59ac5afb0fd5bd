// The same without WebGL: points as pixels of an image. Slower, so fewer of them while the view moves.

class FlatPainter {
  constructor(canvas, points) {
    Object.assign(this, { canvas, points, name: "2D canvas", done: 0, step: strides(points.count) });
    this.context = canvas.getContext("2d", { alpha: false });
    this.colours = new Uint8Array(1024);
    this.ground = GROUND.light;
  }

  setCodes(codes) { this.codes = codes; }
  setShown() {}
  setMarked(marked) { this.marked = marked; }
  setColours(colours, ground) { Object.assign(this, { colours, ground }); }

  resize(width, height) {
    this.canvas.width = width;
    this.canvas.height = height;
    this.image = this.context.createImageData(width, height);
  }

  clear() {
    const [r, g, b] = this.ground;
    new Uint32Array(this.image.data.buffer).fill((255 << 24) | (b << 16) | (g << 8) | r);
  }

  /** Blend a square into the image. */
  dot(x, y, size, code, alpha, pale) {
    const { image, colours, ground } = this;
    const [width, height] = [image.width, image.height];
    const left = Math.round(x - size / 2);
    const top = Math.round(y - size / 2);
    if (left < 0 || top < 0 || left + size > width || top + size > height) return;
    for (let row = top; row < top + size; row += 1) {
      for (let at = 4 * (row * width + left); at < 4 * (row * width + left + size); at += 4) {
        for (let c = 0; c < 3; c += 1) {
          const colour = colours[4 * code + c] * (1 - pale) + ground[c] * pale;
          image.data[at + c] += (colour - image.data[at + c]) * alpha;
        }
      }
    }
  }

  draw(view, from, to, moving) {
    const { points, codes } = this;
    const ratio = this.canvas.width / view.width;
    const { radius, alpha } = strokes(view, points.shownCount, to - from, moving);
    const size = Math.max(1, Math.round(1.8 * radius * ratio));
    const pale = this.marked ? 0.78 : 0;
    let i = (from * this.step) % points.count;
    for (let slot = from; slot < to; slot += 1) {
      if (points.shown[i]) {
        const [x, y] = view.toScreen(points.px(i), points.py(i));
        this.dot(x * ratio, y * ratio, size, codes[i], alpha, pale);
      }
      i += this.step;
      if (i >= points.count) i -= points.count;
    }
  }

  drawMarked(view, most) {
    if (!this.marked) return;
    const ratio = this.canvas.width / view.width;
    const { radius } = strokes(view, this.marked.length, this.marked.length, false);
    const size = Math.round(clamp(2.2 * radius, 3, 12) * ratio);
    for (const i of this.marked.subarray(0, most)) {
      if (!this.points.shown[i]) continue;
      const [x, y] = view.toScreen(this.points.px(i), this.points.py(i));
      this.dot(x * ratio, y * ratio, size, this.codes[i], 0.9, 0);
    }
  }

  sketch(view, most) {
    const few = Math.min(most, this.points.count, 40000);
    this.clear();
    this.draw(view, 0, few, true);
    this.drawMarked(view, few);
    this.context.putImageData(this.image, 0, 0);
    this.done = few >= this.points.count ? few : 0;
  }

  refine(view, most) {
    if (this.done >= this.points.count) return true;
    if (!this.done) this.clear();
    const to = Math.min(this.points.count, this.done + Math.min(most, 60000));
    this.draw(view, this.done, to, false);
    this.done = to;
    if (to < this.points.count) return false;
    this.drawMarked(view, this.points.count);
    this.context.putImageData(this.image, 0, 0);
    return true;
  }
}

/** WebGL if the browser has it and it works. */
function choosePainter(canvas, points) {
  try {
    return new GlPainter(canvas, points);
  } catch (error) {
    // A canvas keeps the kind of its first context.
    const other = canvas.cloneNode();
    canvas.replaceWith(other);
    return new FlatPainter(other, points);
  }
}
