// Above the points: names of clusters that appear with zoom, marks as pins, the line of a lasso, the point that is meant.

const FONT = 'system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
const SIZES = [16, 13, 11.5];
const LONGEST_MARK = 48;

class Labels {
  constructor(canvas, points, view) {
    Object.assign(this, { canvas, points, view, theme: "light", line: null, picked: -1, hovered: -1, ring: [], covered: [], focus: false });
    this.context = canvas.getContext("2d");
    this.names = points.levels.flatMap((level, depth) => level.clusters.map((cluster) => ({
      lines: nameLines(cluster.words, depth),
      depth,
      cluster,
      alpha: 0,
    })));
    this.names.sort((a, b) => a.depth - b.depth || b.cluster.size - a.cluster.size);
    for (const name of this.names) this.measure(name);
    this.marks = points.head.marks.map((mark) => ({
      text: shortened(plain(mark.name), LONGEST_MARK),
      px: mark.x / LAST_STEP,
      py: 1 - mark.y / LAST_STEP,
    }));
    this.context.font = `600 12px ${FONT}`;
    for (const mark of this.marks) mark.width = this.context.measureText(mark.text).width;
  }

  measure(name) {
    name.size = SIZES[Math.min(name.depth, SIZES.length - 1)];
    name.font = `${name.depth ? 500 : 650} ${name.size}px ${FONT}`;
    this.context.font = name.font;
    name.width = Math.max(...name.lines.map((line) => this.context.measureText(line).width));
    name.height = name.lines.length * name.size * 1.15;
  }

  resize(width, height) {
    this.canvas.width = width;
    this.canvas.height = height;
  }

  /** Elements above the map, under which no name is written. */
  setCovered(elements) {
    const map = this.canvas.getBoundingClientRect();
    this.covered = elements.map((element) => element.getBoundingClientRect())
      .map((box) => [box.left - map.left, box.top - map.top, box.right - map.left, box.bottom - map.top]);
  }

  /** The names that have room, the larger clusters first. Marks come before names. */
  place() {
    const { view } = this;
    const taken = [...this.covered];
    const free = (box) => taken.every((b) => box[0] > b[2] || box[2] < b[0] || box[1] > b[3] || box[3] < b[1]);
    for (const mark of this.marks) {
      const [x, y] = view.toScreen(mark.px, mark.py);
      mark.at = [x, y];
      const inside = x > -20 && y > 0 && x < view.width + 20 && y < view.height + 30;
      const right = [x - 9, y - 27, x + 16 + mark.width, y + 2];
      const left = [x - 16 - mark.width, y - 27, x + 9, y + 2];
      mark.side = !inside ? 0 : free(right) && right[2] < view.width ? 1 : free(left) && left[0] > 0 ? -1 : 0;
      mark.inside = inside;
      if (inside) taken.push(mark.side < 0 ? left : mark.side > 0 ? right : [x - 9, y - 27, x + 9, y + 2]);
    }
    for (const name of this.names) {
      const [x, y] = view.toScreen(name.cluster.px, name.cluster.py);
      const reach = name.cluster.reach * view.k;
      const box = [x - name.width / 2 - 7, y - name.height / 2 - 4, x + name.width / 2 + 7, y + name.height / 2 + 4];
      const seen = box[0] > -40 && box[2] < view.width + 40 && box[1] > 0 && box[3] < view.height;
      const fits = name.depth === 0 ? reach < 0.8 * Math.max(view.width, view.height) : reach > 0.3 * name.width;
      name.wanted = seen && fits && free(box);
      name.at = [x, y];
      if (name.wanted) taken.push(box);
    }
  }

  /** Draw all; true while names still fade in or out. */
  draw() {
    const { context, view } = this;
    const ratio = this.canvas.width / view.width;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, view.width, view.height);
    this.halo = css(GROUND[this.theme]);
    this.ink = INK[this.theme];
    this.place();
    let fading = false;
    for (const name of this.names) {
      const goal = name.wanted ? 1 : 0;
      if (name.alpha !== goal) {
        name.alpha = goal > name.alpha ? Math.min(1, name.alpha + 0.2) : Math.max(0, name.alpha - 0.34);
        fading = true;
      }
      if (name.alpha) this.write(name);
    }
    context.globalAlpha = 1;
    for (const mark of this.marks) if (mark.inside) this.pin(mark);
    for (const i of this.ring) this.circle(i, 6, 1.5);
    if (this.hovered >= 0) this.circle(this.hovered, 7, 2);
    if (this.picked >= 0) this.circle(this.picked, 9, 2.5);
    if (this.line) this.lasso();
    if (this.focus) this.cross();
    return fading;
  }

  write(name) {
    const { context } = this;
    context.globalAlpha = name.alpha;
    context.font = name.font;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    context.strokeStyle = this.halo;
    context.fillStyle = this.ink;
    name.lines.forEach((line, i) => {
      const y = name.at[1] + (i - (name.lines.length - 1) / 2) * name.size * 1.15;
      context.globalAlpha = 0.82 * name.alpha;
      context.lineWidth = 4.5;
      context.strokeText(line, name.at[0], y);
      context.globalAlpha = name.alpha;
      context.fillText(line, name.at[0], y);
    });
  }

  pin(mark) {
    const { context } = this;
    const [x, y] = mark.at;
    context.fillStyle = this.theme === "dark" ? "#ff8f6b" : "#c2410c";
    context.strokeStyle = this.halo;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, y);
    context.bezierCurveTo(x - 2, y - 8, x - 8, y - 11, x - 8, y - 17);
    context.arc(x, y - 17, 8, Math.PI, 0);
    context.bezierCurveTo(x + 8, y - 11, x + 2, y - 8, x, y);
    context.fill();
    context.stroke();
    context.fillStyle = this.halo;
    context.beginPath();
    context.arc(x, y - 17, 3, 0, 7);
    context.fill();
    if (!mark.side) return;
    context.font = `600 12px ${FONT}`;
    context.textAlign = mark.side > 0 ? "left" : "right";
    context.textBaseline = "middle";
    context.lineWidth = 4.5;
    context.lineJoin = "round";
    context.fillStyle = this.ink;
    context.strokeText(mark.text, x + 12 * mark.side, y - 16);
    context.fillText(mark.text, x + 12 * mark.side, y - 16);
  }

  circle(i, radius, width) {
    const { context } = this;
    const [x, y] = this.view.toScreen(this.points.px(i), this.points.py(i));
    for (const [style, line] of [[this.halo, width + 2.5], [this.ink, width]]) {
      context.strokeStyle = style;
      context.lineWidth = line;
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.stroke();
    }
  }

  lasso() {
    const { context } = this;
    context.beginPath();
    for (const [x, y] of this.line) context.lineTo(...this.view.toScreen(x, y));
    context.closePath();
    context.fillStyle = this.ink;
    context.globalAlpha = 0.07;
    context.fill("evenodd");
    context.globalAlpha = 1;
    context.strokeStyle = this.ink;
    context.lineWidth = 1.5;
    context.setLineDash([5, 4]);
    context.stroke();
    context.setLineDash([]);
  }

  /** Where Enter picks a point, for those who use keys. */
  cross() {
    const { context, view } = this;
    const [x, y] = [view.width / 2, view.height / 2];
    context.strokeStyle = this.ink;
    context.lineWidth = 1.5;
    context.beginPath();
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      context.moveTo(x + 5 * dx, y + 5 * dy);
      context.lineTo(x + 13 * dx, y + 13 * dy);
    }
    context.stroke();
  }
}

const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1).trimEnd()}…` : text);

/** The first words of a cluster, on one or two lines. */
function nameLines(words, depth) {
  const few = words.slice(0, depth ? 2 : 3).map((word) => shortened(word, 24));
  if (few.length < 2) return few.length ? few : ["(unnamed)"];
  return few.length === 2 ? [few.join(", ")] : [`${few[0]}, ${few[1]},`, few[2]];
}
