// The part of the map that is seen, and the gestures that change it: mouse, wheel, touch and keys.

const MOST_ZOOM = 200;

class View {
  constructor(onChange) {
    Object.assign(this, { x: 0.5, y: 0.5, k: 1, width: 1, height: 1, onChange, flight: 0 });
  }

  /** Pixels of the whole map's side when it fits. */
  fit() { return 0.9 * Math.max(60, Math.min(this.width, this.height)); }
  zoom() { return this.k / this.fit(); }

  toScreen(x, y) { return [(x - this.x) * this.k + this.width / 2, (y - this.y) * this.k + this.height / 2]; }
  toMap(x, y) { return [(x - this.width / 2) / this.k + this.x, (y - this.height / 2) / this.k + this.y]; }

  resize(width, height) {
    const zoom = this.width > 1 ? this.zoom() : 1;
    Object.assign(this, { width, height });
    this.set(this.x, this.y, zoom * this.fit());
  }

  set(x, y, k) {
    this.x = clamp(x, 0, 1);
    this.y = clamp(y, 0, 1);
    this.k = clamp(k, 0.5 * this.fit(), MOST_ZOOM * this.fit());
    this.onChange();
  }

  stop() { this.flight += 1; }

  pan(dx, dy) {
    this.stop();
    this.set(this.x - dx / this.k, this.y - dy / this.k, this.k);
  }

  /** Zoom so that what is at a place of the screen stays there. */
  zoomAt(factor, sx = this.width / 2, sy = this.height / 2) {
    this.stop();
    const [mx, my] = this.toMap(sx, sy);
    const k = clamp(this.k * factor, 0.5 * this.fit(), MOST_ZOOM * this.fit());
    this.set(mx - (sx - this.width / 2) / k, my - (sy - this.height / 2) / k, k);
  }

  fly(x, y, k) {
    this.stop();
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.set(x, y, k);
      return;
    }
    const own = this.flight;
    const [x0, y0, k0, began] = [this.x, this.y, this.k, performance.now()];
    const step = () => {
      if (own !== this.flight) return;
      const t = Math.min(1, (performance.now() - began) / 450);
      const eased = t * t * (3 - 2 * t);
      this.set(x0 + (x - x0) * eased, y0 + (y - y0) * eased, k0 * (k / k0) ** eased);
      if (t < 1) requestAnimationFrame(step);
    };
    step();
  }

  /** Go to some points, so near that they can be told apart. */
  flyTo(points, list) {
    if (!list.length) return;
    let [left, right, top, bottom] = [1, 0, 1, 0];
    for (const i of list) {
      [left, right] = [Math.min(left, points.px(i)), Math.max(right, points.px(i))];
      [top, bottom] = [Math.min(top, points.py(i)), Math.max(bottom, points.py(i))];
    }
    const side = Math.max(right - left, bottom - top);
    const k = list.length === 1 ? Math.max(this.k, 8 * this.fit()) : Math.min(24 * this.fit(), (0.7 * this.fit()) / (side || 1e-6));
    this.fly((left + right) / 2, (top + bottom) / 2, k);
  }

  reset() { this.fly(0.5, 0.5, this.fit()); }
}

/** Gestures on the map's element. `map` is told of clicks, of the pointer's place and of a line drawn around points. */
class Gestures {
  constructor(element, view, map) {
    Object.assign(this, { element, view, map, pointers: new Map(), line: null, lasso: false, moved: 0 });
    element.addEventListener("pointerdown", (event) => this.down(event));
    element.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) element.addEventListener(end, (event) => this.up(event));
    element.addEventListener("pointerleave", () => this.pointers.size || map.hover(null));
    element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    element.addEventListener("dblclick", (event) => view.zoomAt(2, ...this.place(event)));
    element.addEventListener("keydown", (event) => this.key(event));
  }

  place(event) {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  down(event) {
    if (event.button) return;
    this.element.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.place(event));
    if (this.pointers.size === 1) this.moved = 0;
    this.line = (this.lasso || event.shiftKey) && this.pointers.size === 1 ? [this.view.toMap(...this.place(event))] : null;
    if (!this.line) this.map.draw(null);
  }

  move(event) {
    const now = this.place(event);
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.map.hover(now);
      return;
    }
    this.moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (this.line) {
      this.line.push(this.view.toMap(...now));
      this.map.draw(this.line);
    } else if (this.pointers.size === 1) {
      this.view.pan(now[0] - before[0], now[1] - before[1]);
    } else {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
      const apart = (p) => Math.max(1, Math.hypot(p[0] - other[0], p[1] - other[1]));
      this.view.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
      this.view.zoomAt(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    }
    this.pointers.set(event.pointerId, now);
  }

  up(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    const { line } = this;
    this.line = null;
    if (line && line.length > 2) this.map.enclose(line);
    else if (event.type === "pointerup" && this.moved < 6) this.map.click(this.place(event), event.pointerType === "touch" ? 18 : 8);
  }

  wheel(event) {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 30 : 1;
    this.view.zoomAt(Math.exp(clamp(-event.deltaY * lines, -240, 240) * (event.ctrlKey ? 0.008 : 0.0022)), ...this.place(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? 160 : 50;
    const does = {
      ArrowLeft: () => this.view.pan(step, 0),
      ArrowRight: () => this.view.pan(-step, 0),
      ArrowUp: () => this.view.pan(0, step),
      ArrowDown: () => this.view.pan(0, -step),
      "+": () => this.view.zoomAt(1.4),
      "=": () => this.view.zoomAt(1.4),
      "-": () => this.view.zoomAt(1 / 1.4),
      0: () => this.view.reset(),
      Enter: () => this.map.click([this.view.width / 2, this.view.height / 2], 60),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }
}
