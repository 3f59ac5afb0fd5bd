// A small chart of one figure over time, drawn as SVG; the numbers are in its label, and under the pointer.

import { make, say } from "./dom.js";
import { clock } from "./format.js";

const WIDTH = 320;
const HEIGHT = 84;
const TOP = 6;

export class Chart {
  /** `lines` are [name, class]; `format` turns a value into text; `most` is the least that the axis reaches. */
  constructor(title, lines, format, most = 0) {
    Object.assign(this, { title, lines, format, least: most, at: [], series: [] });
    this.now = make("span", { class: "now" });
    this.top = make("span", { class: "top" });
    this.from = make("span");
    this.until = make("span");
    this.tip = make("p", { class: "tip", hidden: true });
    this.svg = make("svg:svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.svg.append(make("svg:line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }));
    this.areas = lines.map(([, kind]) => this.svg.appendChild(make("svg:path", { class: `area ${kind}` })));
    this.paths = lines.map(([, kind]) => this.svg.appendChild(make("svg:path", { class: `line ${kind}` })));
    this.cursor = this.svg.appendChild(make("svg:line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" }));
    this.keys = lines.map(([name, kind]) => make("span", { class: `key ${kind}` }, name));
    this.element = make("figure", {},
      make("figcaption", {}, make("span", { class: "title" }, title), this.now),
      make("div", { class: "plot" }, this.svg, this.top, this.tip),
      make("p", { class: "times" }, this.from, make("span", {}, ...this.keys), this.until));
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
  }

  show(at, series) {
    this.at = at;
    this.series = series;
    const known = series.flat().filter((value) => value !== null);
    this.element.hidden = !known.length;
    if (!known.length) return;
    const drawn = series.filter((values) => values.some((value) => value !== null)).length;
    this.keys.forEach((key) => (key.hidden = drawn < 2));
    const most = Math.max(this.least, ...known) || 1;
    const began = at[0];
    const span = Math.max(1, at[at.length - 1] - began);
    const x = (i) => (at.length > 1 ? ((at[i] - began) / span) * WIDTH : WIDTH);
    const y = (value) => HEIGHT - 1 - (value / most) * (HEIGHT - TOP - 1);
    this.x = x;
    series.forEach((values, n) => {
      const parts = stretches(values).map((indexes) => {
        const line = indexes.map((i) => [x(i).toFixed(1), y(values[i]).toFixed(1)]);
        // One point alone is what was measured up to it.
        return at.length > 1 ? line : [["0", line[0][1]], ...line];
      });
      const lines = parts.map((line) => `M${line.map((point) => point.join(" ")).join("L")}`);
      this.paths[n].setAttribute("d", lines.join(""));
      const closed = parts.map((line, i) => `${lines[i]}L${line[line.length - 1][0]} ${HEIGHT}L${line[0][0]} ${HEIGHT}Z`);
      this.areas[n].setAttribute("d", closed.join(""));
    });
    const latest = series.map((values) => [...values].reverse().find((value) => value !== null) ?? null);
    say(this.now, latest.filter((value) => value !== null).map(this.format).join(" · "));
    say(this.top, this.format(most));
    const ended = at[at.length - 1];
    this.clock = (when) => (span < 900 ? clock(when, "seconds") : clock(when));
    say(this.from, this.clock(began));
    say(this.until, this.clock(ended));
    const said = this.lines.map(([name], n) => (latest[n] === null ? "" : `${name} ${this.format(latest[n])}`));
    this.svg.setAttribute("aria-label",
      `${this.title}, from ${this.clock(began)} to ${this.clock(ended)}: last ${said.filter(Boolean).join(", ")}; highest ${this.format(Math.max(...known))}`);
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const wanted = ((event.clientX - box.left) / box.width) * WIDTH;
    let nearest = 0;
    this.at.forEach((_, i) => {
      if (Math.abs(this.x(i) - wanted) < Math.abs(this.x(nearest) - wanted)) nearest = i;
    });
    this.cursor.setAttribute("visibility", "visible");
    this.cursor.setAttribute("x1", this.x(nearest));
    this.cursor.setAttribute("x2", this.x(nearest));
    const values = this.series.map((line) => (line[nearest] === null ? "–" : this.format(line[nearest])));
    say(this.tip, `${this.clock(this.at[nearest])}  ${values.join(" · ")}`);
    this.tip.hidden = false;
    this.tip.classList.toggle("left", wanted > WIDTH / 2);
  }

  leave() {
    this.tip.hidden = true;
    this.cursor.setAttribute("visibility", "hidden");
  }
}

/** The numbers of the values that follow one another, without those where nothing is known. */
function stretches(values) {
  const found = [];
  values.forEach((value, i) => {
    if (value === null) return;
    if (i && values[i - 1] !== null && found.length) found[found.length - 1].push(i);
    else found.push([i]);
  });
  return found;
}

/** The forecast as a range on a line of time, and what it took so far and will take: all in seconds. */
export function drawForecast(place, outlook, etaS, format) {
  // A forecast covers the start-up and the work.
  const elapsed = outlook.parts_s.start + outlook.parts_s.work;
  const end = elapsed + (etaS ?? 0);
  if (outlook.forecast_s === null || !end) {
    place.replaceChildren();
    return;
  }
  const most = Math.max(outlook.forecast_high_s, end) * 1.05;
  const x = (seconds) => ((seconds / most) * 100).toFixed(2);
  const label = `Forecast ${format(outlook.forecast_low_s)} to ${format(outlook.forecast_high_s)}, likely ` +
    `${format(outlook.forecast_s)}; ${etaS ? `${format(elapsed)} so far, ${format(end)} expected` : `it took ${format(elapsed)}`}`;
  const svg = make("svg:svg", { class: "forecast", viewBox: "0 0 100 16", preserveAspectRatio: "none", role: "img", "aria-label": label });
  svg.append(
    make("svg:rect", { class: "band", x: x(outlook.forecast_low_s), y: 0, height: 7, width: x(outlook.forecast_high_s - outlook.forecast_low_s) }),
    make("svg:rect", { class: "likely", x: x(outlook.forecast_s), y: 0, height: 7, width: 0.6 }),
    make("svg:rect", { class: "rest", x: 0, y: 9, height: 7, width: x(end) }),
    make("svg:rect", { class: "took", x: 0, y: 9, height: 7, width: x(elapsed) }),
  );
  place.replaceChildren(
    make("span", { class: "quiet", "aria-hidden": "true" }, "forecast"),
    make("span", { class: "quiet", "aria-hidden": "true" }, etaS ? "so far" : "actual"),
    svg);
}
