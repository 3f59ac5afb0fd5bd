// Lists beside the map: what a search, a lasso or a question after likeness found, and what the map's maker lists.

const ROWS_AT_ONCE = 40;

/** A list of points with their excerpts, some at a time; with a name, a way to CSV and a way to close it. */
class PointList {
  constructor(map) {
    this.map = map;
    this.box = byId("found");
    this.rows = byId("found-rows");
    this.more = byId("found-more");
    this.more.addEventListener("click", () => this.add());
    byId("found-close").addEventListener("click", () => map.clear());
    byId("found-go").addEventListener("click", () => map.view.flyTo(map.points, this.points));
    byId("found-csv").addEventListener("click", () => this.save());
    this.points = new Uint32Array(0);
  }

  show(title, points, notes = "") {
    this.points = points;
    this.box.hidden = false;
    this.note(title, notes);
    this.rows.replaceChildren();
    this.shown = 0;
    this.add();
  }

  note(title, notes) {
    byId("found-title").textContent = title;
    byId("found-note").textContent = notes;
  }

  hide() {
    this.points = new Uint32Array(0);
    this.box.hidden = true;
    this.rows.replaceChildren();
  }

  add() {
    const next = this.points.subarray(this.shown, this.shown + ROWS_AT_ONCE);
    for (const i of next) this.rows.append(pointRow(this.map, i));
    this.shown += next.length;
    const left = this.points.length - this.shown;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show more of ${count(left)}`;
    for (const id of ["found-go", "found-csv"]) byId(id).disabled = !this.points.length;
  }

  async save() {
    const note = byId("found-note");
    const before = note.textContent;
    const blob = await toCsv(this.map.points, this.points, (part) => (note.textContent = `Writing CSV: ${share(part)}`));
    if (this.map.monitor.known) this.map.monitor.tell({ csv: blob });
    else download(blob, "points.csv");
    note.textContent = before;
    this.map.say(`${counted(this.points.length, "point")} written as CSV.`);
  }
}

/** One point of a list: a button that goes to it. */
function pointRow(map, i, lead = "") {
  const text = make("span", { class: "excerpt", dir: "auto" });
  const id = make("span", { class: "id" });
  const button = make("button", { type: "button", class: "row", "data-point": i }, text, id);
  textOf(map.points, i).then((said) => (text.textContent = lead + (said || "(empty text)")));
  idOf(map.points, i).then((said) => (id.textContent = said));
  button.addEventListener("click", () => map.pick(i, true));
  for (const [enter, point] of [["pointerenter", i], ["focus", i], ["pointerleave", -1], ["blur", -1]]) {
    button.addEventListener(enter, () => map.point(point));
  }
  return make("li", {}, button);
}

/** The point that was clicked: its text, what is known of it, and what is like it. */
async function showCard(map, i) {
  const { points } = map;
  const card = byId("card");
  card.hidden = i < 0;
  if (i < 0) return;
  byId("card-text").textContent = "…";
  byId("card-similar").replaceChildren();
  byId("card-near").hidden = !points.head.neighbours;
  const facts = points.levels.map((level, depth) => {
    const c = points.clusterOf(i, depth);
    return [points.levels.length > 1 ? `Cluster ${depth + 1}` : "Cluster", c < 0 ? "none" : level.clusters[c].words.slice(0, 4).join(", ")];
  });
  for (const column of points.columns) {
    facts.push([plain(column.name), (await valueOf(points, column, i)) ?? "none"]);
  }
  const [text, id] = await Promise.all([textOf(points, i), idOf(points, i)]);
  if (map.labels.picked !== i) return;
  byId("card-id").textContent = id;
  byId("card-text").textContent = text || "(empty text)";
  byId("card-facts").replaceChildren(
    ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", { dir: "auto" }, value))),
  );
}

async function showSimilar(map, i) {
  const found = await similarTo(map.points, i);
  if (map.labels.picked !== i) return;
  byId("card-similar").replaceChildren(...Array.from(found, (other) => pointRow(map, other)));
  if (!found.length) byId("card-similar").append(make("li", { class: "quiet" }, "Nothing is like it."));
  map.labels.ring = [...found];
  map.schedule();
  map.say(`${counted(found.length, "point")} like this one.`);
}

/** Lists that came with the map: outliers, duplicates, empty texts; marks; and how the map was made. */
function showLists(map) {
  const { head } = map.points;
  const box = byId("lists");
  const section = (name, total, rows, more) => {
    const list = make("ol", { class: "rows" }, ...rows);
    if (more > 0) list.append(make("li", { class: "quiet" }, `and ${count(more)} more`));
    return make("details", {}, make("summary", {}, name, make("span", { class: "number" }, count(total))), list);
  };
  for (const list of head.lists) {
    const rows = list.entries.map((entry) => {
      const texts = [make("span", { class: "excerpt", dir: "auto" }, plain(entry.text)), make("span", { class: "id" }, plain(entry.note))];
      if (!entry.points.length) return make("li", { class: "row" }, ...texts);
      const button = make("button", { type: "button", class: "row" }, ...texts);
      button.addEventListener("click", () => map.showEntry(list.name, entry));
      return make("li", {}, button);
    });
    box.append(section(plain(list.name), list.total, rows, list.total - list.entries.length));
  }
  if (head.marks.length) {
    const rows = head.marks.map((mark) => {
      const button = make("button", { type: "button", class: "row" }, make("span", { class: "excerpt", dir: "auto" }, plain(mark.name)));
      const [x, y] = [mark.x / LAST_STEP, 1 - mark.y / LAST_STEP];
      button.addEventListener("click", () => map.view.fly(x, y, Math.max(map.view.k, 6 * map.view.fit())));
      return make("li", {}, button);
    });
    box.append(section("Marks", head.marks.length, rows, 0));
  }
  byId("notes").append(...head.notes.map((note) => make("p", {}, plain(note))));
}

/** How far the picture can be trusted, beside a simple projection and chance. */
function showQuality(quality) {
  const box = byId("quality");
  box.open = innerWidth > NARROW;
  if (!quality) {
    byId("verdict").textContent = "Too few different points to measure how far to trust this map.";
    byId("quality-table").hidden = true;
    return;
  }
  byId("verdict").textContent = plain(quality.verdict);
  box.classList.toggle("warns", quality.warns);
  const rows = [["this map", quality.map], ["PCA", quality.pca], ["chance", quality.chance]];
  byId("quality-rows").append(...rows.map(([name, figures]) => make(
    "tr", {}, make("th", { scope: "row" }, name),
    ...[[figures.kept, share(figures.kept)], [figures.trust, figures.trust.toFixed(2)]].map(([value, text]) => make(
      "td", {}, text, make("meter", { min: 0, max: 1, value, "aria-hidden": "true" }),
    )),
  )));
  byId("quality-short").textContent = `${share(quality.map.kept)} of neighbours kept, PCA ${share(quality.pca.kept)}`;
  byId("quality-how").textContent = `${count(quality.rows)} rows against all, ${quality.k} neighbours each.`;
}
