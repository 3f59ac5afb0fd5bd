// Above the points: names of clusters that appear with zoom, marks as pins, the line of a lasso, rings around points.
// They are elements and not a second canvas: moving a few small layers is cheap, also without a GPU.

const FONT = 'system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
// As in the style.
const SIZES = [16, 13, 12];
// As in the style: below it, the panel is under the map, and names are shorter.
const NARROW = 760;
const NEAR_ZOOM = 2.5;
const WEIGHTS = [650, 550, 500];
const LONGEST_MARK = 48;

class Labels {
  constructor(box, points, view) {
    Object.assign(this, { box, points, view, covered: [], picked: -1, hovered: -1, ring: [], rings: [] });
    this.ruler = document.createElement("canvas").getContext("2d");
    this.names = points.levels.flatMap((level, depth) => level.clusters.map((cluster) => this.name(cluster, depth)));
    this.names.sort((a, b) => a.depth - b.depth || b.cluster.size - a.cluster.size);
    this.marks = points.head.marks.map((mark) => this.mark(mark));
    this.outline = make("svg:polygon");
    this.lasso = make("svg:svg", { class: "outline" }, this.outline);
    this.cross = make("div", { class: "cross" });
    box.append(this.lasso, this.cross, ...this.marks.map((mark) => mark.element));
    this.setFocus(false);
    this.setLine(null);
  }

  width(text, size, weight) {
    this.ruler.font = `${weight} ${size}px ${FONT}`;
    return this.ruler.measureText(text).width;
  }

  name(cluster, given) {
    const depth = Math.min(given, SIZES.length - 1);
    const form = (lines) => {
      const width = Math.max(...lines.map((line) => this.width(line, SIZES[depth], WEIGHTS[depth]))) + 4;
      return { lines, width, height: lines.length * SIZES[depth] * 1.2 };
    };
    // Where the first level has no room for its words, its first word may have.
    const short = depth || cluster.words.length < 2 ? [] : [form(nameLines(cluster.words.slice(0, 1), depth))];
    return { cluster, depth, forms: [form(nameLines(cluster.words, depth)), ...short] };
  }

  mark(mark) {
    const text = shortened(plain(mark.name), LONGEST_MARK);
    const path = make("svg:path", { d: "M9 25C7 17 1 14.5 1 9a8 8 0 0 1 16 0c0 5.5-6 8-8 16z" });
    const pin = make("svg:svg", { viewBox: "0 0 18 26" }, path, make("svg:circle", { cx: 9, cy: 9, r: 3 }));
    const element = make("div", { class: "pin" }, pin, make("span", {}, text));
    return { element, width: this.width(text, 12, 600) + 6, px: mark.x / LAST_STEP, py: 1 - mark.y / LAST_STEP };
  }

  /** Elements above the map, under which no name is written. */
  setCovered(elements) {
    const map = this.box.getBoundingClientRect();
    this.covered = elements.map((element) => element.getBoundingClientRect())
      .map((box) => [box.left - map.left, box.top - map.top, box.right - map.left, box.bottom - map.top]);
  }

  /** The names that have room, the larger clusters first. Marks come before names. */
  draw() {
    const { view } = this;
    const taken = [...this.covered];
    const free = (box) => taken.every((b) => box[0] > b[2] || box[2] < b[0] || box[1] > b[3] || box[3] < b[1]);
    for (const mark of this.marks) this.placeMark(mark, taken, free);
    for (const name of this.names) {
      const found = this.fits(name) && this.room(name, free);
      if (found) {
        taken.push(found.box);
        this.show(name, found.form);
        move(name.element, found.box[0] + 5, found.box[1] + 3);
      } else if (name.shown) {
        name.shown = false;
        name.element.classList.remove("shown");
      }
    }
    this.drawRings();
    if (this.line) this.outline.setAttribute("points", this.line.map((p) => view.toScreen(...p).join(",")).join(" "));
  }

  /** A name of the first level goes when its cluster is larger than the view, others come when theirs is large enough. */
  fits(name) {
    const reach = name.cluster.reach * this.view.k;
    return name.depth === 0 ? reach < 0.8 * Math.max(this.view.width, this.view.height) : reach > 0.3 * name.forms[0].width;
  }

  /** Where a name is written: in the middle of its cluster; the first level also a little below or above it, and beside
   * clusters that it would cover. */
  room(name, free) {
    const { view } = this;
    const [x, y] = view.toScreen(name.cluster.px, name.cluster.py);
    for (const form of name.forms) {
      const beside = 2 * name.cluster.reach * view.k + form.height / 2 + 4;
      const covers = beside < 1.6 * form.height;
      for (const dy of name.depth ? [0] : covers ? [beside, -beside, 0] : [0, 26, -40]) {
        const top = y + dy - form.height / 2 - 3;
        const box = [x - form.width / 2 - 5, top, x + form.width / 2 + 5, top + form.height + 6];
        const seen = box[0] > -40 && box[2] < view.width + 40 && box[1] > 0 && box[3] < view.height;
        if (seen && free(box)) return { box, form };
      }
    }
    return null;
  }

  show(name, form) {
    if (!name.element) {
      name.element = make("div", { class: `label depth${name.depth}` });
      this.box.append(name.element);
    }
    if (name.form !== form) {
      name.form = form;
      name.element.replaceChildren(...form.lines.map((line) => make("span", {}, line)));
      name.element.style.width = `${form.width}px`;
    }
    name.shown = true;
    name.element.classList.add("shown");
  }

  placeMark(mark, taken, free) {
    const { view } = this;
    const [x, y] = view.toScreen(mark.px, mark.py);
    const inside = x > -20 && y > 0 && x < view.width + 20 && y < view.height + 30;
    mark.element.hidden = !inside;
    if (!inside) return;
    const right = [x - 9, y - 27, x + 12 + mark.width, y + 2];
    const left = [x - 12 - mark.width, y - 27, x + 9, y + 2];
    const far = innerWidth <= NARROW && view.zoom() < NEAR_ZOOM;
    const side = far ? "none" : free(right) && right[2] < view.width ? "right" : free(left) && left[0] > 0 ? "left" : "none";
    taken.push(side === "left" ? left : side === "right" ? right : [x - 9, y - 27, x + 9, y + 2]);
    mark.element.dataset.side = side;
    move(mark.element, x - 9, y - 25);
  }

  /** Circles around the points that are meant. */
  drawRings() {
    const wanted = [...this.ring.map((i) => [i, "near"]), [this.hovered, "hovered"], [this.picked, "picked"]].filter(([i]) => i >= 0);
    while (this.rings.length < wanted.length) {
      this.rings.push(make("div"));
      this.box.append(this.rings.at(-1));
    }
    this.rings.forEach((ring, at) => {
      ring.hidden = at >= wanted.length;
      if (ring.hidden) return;
      const [i, kind] = wanted[at];
      ring.className = `ring ${kind}`;
      move(ring, ...this.view.toScreen(this.points.px(i), this.points.py(i)));
    });
  }

  setLine(line) {
    this.line = line;
    this.lasso.toggleAttribute("hidden", !line);
  }

  /** Where Enter picks a point, for those who use keys. */
  setFocus(seen) { this.cross.hidden = !seen; }
}

function move(element, x, y) {
  element.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
}

const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1).trimEnd()}…` : text);

/** The first words of a cluster, on one or two lines. */
function nameLines(words, depth) {
  const few = words.slice(0, innerWidth <= NARROW ? 1 : depth ? 2 : 3).map((word) => shortened(word, 24));
  if (few.length < 2) return few;
  return few.length === 2 ? [few.join(", ")] : [`${few[0]}, ${few[1]},`, few[2]];
}
