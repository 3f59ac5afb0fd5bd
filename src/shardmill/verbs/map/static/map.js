// The page: it joins the points, the view, the painter and what stands beside the map.

const REST_MS = 130;
const SKETCH_START = 60000;
const SKETCH_LEAST = 12000;
const SLOW_MS = 26;

class MapPage {
  constructor() {
    const began = performance.now();
    const head = JSON.parse(utf8.decode(carried("head")));
    this.points = new Points(head, carried("points"));
    this.view = new View(() => this.schedule(true));
    this.painter = choosePainter(byId("points-canvas"), this.points);
    this.canvas = this.painter.canvas;
    this.labels = new Labels(byId("labels"), this.points, this.view);
    this.sketched = SKETCH_START;
    this.frames = [];
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.theme = this.dark.matches ? "dark" : "light";
    this.legend = new Legend(this);
    this.list = new PointList(this);
    this.element = byId("map");
    this.gestures = new Gestures(this.element, this.view, this);
    this.title();
    this.controls();
    showLists(this);
    showQuality(head.quality);
    this.setTheme(this.theme);
    this.legend.use("");
    this.resize();
    new ResizeObserver(() => this.resize()).observe(this.element);
    this.monitor = new Monitor(this);
    this.offer();
    this.fromAddress();
    addEventListener("hashchange", () => location.hash !== this.written && this.fromAddress());
    this.readyMs = performance.now();
    this.setupMs = this.readyMs - began;
  }

  title() {
    const { head, count: n } = this.points;
    const title = plain(head.title);
    document.title = `${title} · map`;
    byId("title").textContent = title;
    byId("source").textContent = plain(head.source);
    this.element.setAttribute("aria-label", `Map of ${count(n)} points: ${title}`);
    if (this.painter.name !== "WebGL") byId("painter-note").hidden = false;
    this.filtered();
  }

  controls() {
    const on = (id, does) => byId(id).addEventListener("click", does);
    on("zoom-in", () => this.view.zoomAt(1.6));
    on("zoom-out", () => this.view.zoomAt(1 / 1.6));
    on("zoom-all", () => this.view.reset());
    on("lasso", () => this.setLasso(!this.gestures.lasso));
    on("theme", () => this.setTheme(this.theme === "dark" ? "light" : "dark"));
    on("link", () => this.copyLink());
    on("fold", () => this.fold());
    on("card-close", () => this.pick(-1));
    on("card-near", () => showSimilar(this, this.labels.picked));
    byId("quality").addEventListener("toggle", () => this.cover());
    this.dark.addEventListener("change", () => this.setTheme(this.dark.matches ? "dark" : "light"));
    // No form: where the monitor shows the page, forms are not allowed.
    const find = () => this.search(byId("query").value.trim());
    on("find", find);
    on("meaning", () => this.searchMeaning(byId("query").value.trim()));
    byId("query").addEventListener("keydown", (event) => event.key === "Enter" && find());
    byId("query").addEventListener("search", () => byId("query").value || this.clear());
    this.element.addEventListener("focus", () => this.focused(this.element.matches(":focus-visible")));
    this.element.addEventListener("blur", () => this.focused(false));
    addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    this.canvas.addEventListener("webglcontextrestored", () => this.restore());
  }

  key(event) {
    if (event.key === "Escape") {
      this.setLasso(false);
      this.clear();
      this.pick(-1);
    } else if (event.key === "/" && !event.target.matches("input, select")) {
      event.preventDefault();
      byId("query").focus();
    }
  }

  /** A browser may take the GPU's memory away, for instance while a laptop sleeps, and give it back empty. */
  async restore() {
    this.painter = new GlPainter(this.canvas, this.points);
    this.resize();
    await this.legend.use(this.legend.way.key);
    this.painter.setMarked(this.marked || null);
    this.schedule(true);
  }

  focused(seen) {
    this.labels.setFocus(seen);
  }

  fold() {
    const folded = document.body.classList.toggle("folded");
    byId("fold").setAttribute("aria-expanded", String(!folded));
  }

  setTheme(theme) {
    this.theme = theme;
    document.documentElement.dataset.theme = theme;
    byId("theme").setAttribute("aria-label", theme === "dark" ? "Light colours" : "Dark colours");
    if (this.legend.way) this.legend.paint();
  }

  setLasso(on) {
    this.gestures.lasso = on;
    byId("lasso").setAttribute("aria-pressed", String(on));
    this.element.classList.toggle("drawing", on);
  }

  resize() {
    const box = this.element.getBoundingClientRect();
    if (!box.width || !box.height) return;
    const ratio = Math.min(2, devicePixelRatio || 1);
    this.painter.resize(Math.round(box.width * ratio), Math.round(box.height * ratio));
    this.cover();
    this.view.resize(box.width, box.height);
    // The size of a canvas changes with what it shows; without a picture at once it would flash.
    this.paint(performance.now());
  }

  cover() {
    this.labels.setCovered(["title", "tools", "quality"].map(byId));
    this.schedule();
  }

  say(text) { byId("said").textContent = text; }

  /** Draw soon; `moved` if the points have to be drawn anew. */
  schedule(moved = false) {
    this.moved = this.moved || moved;
    this.pending = this.pending || requestAnimationFrame((now) => {
      this.pending = 0;
      this.paint(now);
    });
  }

  paint(now) {
    if (!this.painter.codes) return;
    let more = false;
    if (this.moved) {
      this.adapt(now);
      this.moved = false;
      this.movedAt = now;
      this.painter.sketch(this.view, this.sketched);
      this.hover(null);
      more = true;
    } else if (now - this.movedAt > REST_MS) {
      more = !this.painter.refine(this.view, Math.max(SKETCH_START, this.sketched));
      if (!more && this.addressed !== this.movedAt) this.toAddress();
    } else {
      more = true;
    }
    this.labels.draw();
    this.resting = !more;
    if (more) this.schedule();
  }

  /** While it moves, draw as many points as the last frames had time for. */
  adapt(now) {
    const took = now - (this.movedAt || 0);
    if (took < 4 || took > 250) return;
    this.frames.push(took);
    if (this.frames.length > 600) this.frames.shift();
    this.pace = this.pace ? 0.7 * this.pace + 0.3 * took : took;
    if (this.pace > SLOW_MS) this.sketched = Math.max(SKETCH_LEAST, this.sketched * 0.85);
    else if (this.pace < 20) this.sketched = Math.min(Math.max(SKETCH_LEAST, this.points.count), this.sketched * 1.06);
  }

  /** Show the excerpt of the point under the pointer. */
  async hover(place) {
    const tip = byId("tip");
    const i = place ? this.points.nearest(...this.view.toMap(...place), 9 / this.view.k) : -1;
    this.point(i);
    if (i < 0) {
      tip.hidden = true;
      return;
    }
    const { column } = this.legend.way;
    const [text, value] = await Promise.all([textOf(this.points, i), column.kind === "density" ? "" : valueOf(this.points, column, i)]);
    if (this.labels.hovered !== i) return;
    byId("tip-text").textContent = text || "(empty text)";
    byId("tip-note").textContent = column.kind === "density" ? "" : `${plain(column.name)}: ${value ?? "none"}`;
    tip.hidden = false;
    const [width, height] = [tip.offsetWidth, tip.offsetHeight];
    const x = place[0] + 16 + width > this.view.width ? place[0] - width - 16 : place[0] + 16;
    const y = place[1] + 16 + height > this.view.height ? place[1] - height - 12 : place[1] + 16;
    tip.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  }

  /** Ring a point, for as long as it is pointed at. */
  point(i) {
    if (this.labels.hovered === i) return;
    this.labels.hovered = i;
    this.schedule();
  }

  click(place, reach) {
    this.pick(this.points.nearest(...this.view.toMap(...place), reach / this.view.k));
  }

  pick(i, go = false) {
    this.labels.picked = i;
    this.labels.ring = [];
    showCard(this, i);
    if (i >= 0) {
      if (go) this.view.fly(this.points.px(i), this.points.py(i), Math.max(this.view.k, 8 * this.view.fit()));
      byId("card").scrollIntoView({ block: "nearest" });
    }
    this.toAddress();
    this.schedule();
  }

  draw(line) {
    this.labels.setLine(line);
    this.schedule();
  }

  enclose(line) {
    this.setLasso(false);
    const found = this.points.inside(line);
    this.mark(found);
    this.list.show(`${counted(found.length, "point")} in the lasso`, found);
    this.say(`${counted(found.length, "point")} in the lasso.`);
  }

  /** Let points stand out from the others. */
  mark(points) {
    this.marked = points;
    this.painter.setMarked(points);
    this.schedule(true);
  }

  async search(query) {
    if (!query) {
      this.clear();
      return;
    }
    this.clear(false);
    const own = (this.query = { text: query });
    let shownAt = 0;
    const shows = (found, part) => {
      if (part < 1 && performance.now() - shownAt < 300) return;
      shownAt = performance.now();
      const few = Uint32Array.from(found);
      this.mark(few);
      const title = `${counted(few.length, "point")} with “${plain(query)}”`;
      const note = part < 1 ? `Searched ${share(part)} …` : "Excerpts are searched, not whole texts.";
      if (this.list.box.hidden || part === 1 || this.list.shown < ROWS_AT_ONCE) this.list.show(title, few, note);
      else {
        this.list.points = few;
        this.list.note(title, note);
      }
    };
    const found = await findWords(this.points, query, () => this.query === own, shows);
    if (found) this.say(`${counted(found.length, "point")} found.`);
    this.toAddress();
  }

  /** A search by meaning, where the monitor can answer it; elsewhere one line that says where. */
  offer() {
    const { searches } = this.monitor;
    byId("meaning").hidden = !searches;
    byId("meaning-note").hidden = searches || !this.points.head.by_meaning;
    if (searches && this.wished) this.searchMeaning(this.wished);
  }

  async searchMeaning(text) {
    this.wished = "";
    if (!text) {
      this.clear();
      return;
    }
    this.clear(false);
    const own = (this.query = { text, meaning: true });
    const none = new Uint32Array(0);
    const title = `Points like “${plain(text)}”`;
    this.list.show(title, none, "Searching. The first search loads the model.");
    const { points, trouble } = await this.monitor.ask(text);
    if (this.query !== own) return;
    const shown = points.filter((i) => this.points.shown[i]);
    this.mark(shown);
    this.list.show(title, shown, trouble || "By meaning, the nearest first.");
    this.say(trouble || `${counted(shown.length, "point")} found.`);
    this.toAddress();
  }

  showEntry(name, entry) {
    const points = Uint32Array.from(entry.points);
    this.mark(points);
    this.list.show(`${plain(name)}: ${counted(points.length, "point")}`, points);
    this.view.flyTo(this.points, points);
  }

  /** Forget what was found. */
  clear(query = true) {
    this.query = null;
    if (query) byId("query").value = "";
    this.labels.setLine(null);
    this.list.hide();
    if (this.marked) this.mark(null);
    this.toAddress();
    this.schedule();
  }

  filtered() {
    const { count: n, shownCount } = this.points;
    byId("count").textContent = shownCount === n ? counted(n, "point") : `${count(shownCount)} of ${counted(n, "point")}`;
    if (!this.painter.codes) return;
    this.painter.setShown();
    this.painter.setMarked(this.marked || null);
    this.schedule(true);
  }

  /** The address says what is seen: place and zoom, colour, search, the point that was picked. */
  toAddress() {
    this.addressed = this.movedAt;
    const said = new URLSearchParams();
    const { view, legend, labels } = this;
    said.set("at", [view.x, view.y, view.zoom()].map((value) => Number(value.toPrecision(5))).join(","));
    if (legend.way && legend.way !== legend.ways[0]) said.set("colour", legend.way.key);
    if (this.query) said.set(this.query.meaning ? "like" : "find", this.query.text);
    if (labels.picked >= 0) said.set("point", labels.picked);
    this.written = `#${said}`;
    this.monitor?.tell({ view: this.written });
    try {
      history.replaceState(null, "", this.written);
    } catch (error) {
      // A frame without an origin keeps its address.
    }
  }

  fromAddress() {
    const said = new URLSearchParams(location.hash.slice(1));
    const at = (said.get("at") || "").split(",").map(Number);
    if (at.length === 3 && at.every(Number.isFinite)) this.view.set(at[0], at[1], at[2] * this.view.fit());
    if (said.has("colour")) this.legend.use(said.get("colour"));
    const point = Number(said.get("point") ?? -1);
    if (Number.isInteger(point) && point >= 0 && point < this.points.count) this.pick(point);
    if (said.get("find")) {
      byId("query").value = said.get("find");
      this.search(said.get("find"));
    }
    if (said.get("like")) {
      byId("query").value = said.get("like");
      this.wished = said.get("like");
      this.offer();
    }
  }

  async copyLink() {
    this.toAddress();
    try {
      await navigator.clipboard.writeText(location.href);
      this.say("The link to this view is in the clipboard.");
    } catch (error) {
      this.say("The address of this page is the link to this view.");
    }
  }
}

globalThis.shardmill = { map: new MapPage(), csv: toCsv };
