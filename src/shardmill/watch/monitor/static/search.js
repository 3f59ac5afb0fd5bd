// A search box over the result of a finished run. The model is loaded when it is first used.

import { byId, make, say } from "./dom.js";

export class Search {
  constructor() {
    this.key = "";
    byId("search-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.search(byId("query").value);
    });
  }

  leave() {
    byId("search").hidden = true;
    this.key = "";
  }

  show(run) {
    byId("search").hidden = !run.searchable;
    if (this.key !== run.key) {
      this.key = run.key;
      this.say("");
      byId("hits").hidden = true;
    }
  }

  say(text) {
    say(byId("search-said"), text);
  }

  async search(text) {
    const { key } = this;
    const began = performance.now();
    this.say("Searching. The first search loads the model.");
    try {
      const answer = await fetch(`api/runs/${encodeURIComponent(key)}/search?q=${encodeURIComponent(text)}`);
      const said = await answer.json();
      if (key !== this.key) return;
      if (!answer.ok) {
        this.say(typeof said.detail === "string" ? said.detail : "This cannot be searched for.");
        return;
      }
      this.list(said.hits);
      const took = ((performance.now() - began) / 1000).toFixed(1);
      this.say(said.hits.length ? `The ${said.hits.length} nearest items, in ${took} s.` : "Nothing was found.");
    } catch {
      this.say("The monitor does not answer.");
    }
  }

  list(hits) {
    const names = [...new Set(hits.flatMap((hit) => Object.keys(hit.values)))];
    const head = ["Score", "Row", ...names].map((name, i) => make("th", { scope: "col", class: i < 2 ? "num" : null }, name));
    const rows = hits.map((hit) => make("tr", {},
      make("td", { class: "num" }, hit.score.toFixed(3)),
      make("td", { class: "num" }, String(hit.row)),
      ...names.map((name) => make("td", { class: "text" }, hit.values[name] ?? ""))));
    byId("hits").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
    byId("hits").hidden = !hits.length;
  }
}
