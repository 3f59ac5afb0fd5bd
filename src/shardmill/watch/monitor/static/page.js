// The page: one stream of events, the list of runs, and the run that the address names.

import { byId, follow, make, say } from "./dom.js";
import { count, duration, progress } from "./format.js";
import { RunView } from "./run.js";
import { Search } from "./search.js";

const LOST_S = 30;
// What such a rule tells is no trouble, and is seen in the state of the run.
const NEWS = ["finished", "verified"];
// A browser allows few connections to one server, so a page that nobody sees gives its stream back after a while.
const HIDDEN_MS = 60000;

class Page {
  constructor() {
    this.runs = [];
    this.alerts = null;
    this.key = "";
    this.heardAt = performance.now();
    this.view = new RunView((text) => this.announce(text));
    this.search = new Search();
    addEventListener("hashchange", () => this.choose());
    document.addEventListener("visibilitychange", () => this.seen(!document.hidden));
    setInterval(() => this.tick(), 1000);
    this.choose();
  }

  /** The run that the address names; else the newest of those that run, or of all. */
  choose() {
    const named = new URLSearchParams(location.hash.slice(1)).get("run") || "";
    const running = this.runs.filter((run) => run.state === "running");
    const [newest] = (running.length ? running : [...this.runs]).sort((a, b) => (b.began_at ?? 0) - (a.began_at ?? 0));
    const key = named || newest?.key || "";
    if (this.stream && key === this.key) return;
    this.key = key;
    this.view.leave();
    this.search.leave();
    this.listen();
    this.showList();
  }

  seen(visible) {
    clearTimeout(this.leaving);
    if (!visible) {
      this.leaving = setTimeout(() => this.stream.close(), HIDDEN_MS);
    } else if (this.stream.readyState === EventSource.CLOSED) {
      this.listen();
    }
  }

  listen() {
    if (this.stream) this.stream.close();
    const address = this.key ? `api/events?run=${encodeURIComponent(this.key)}` : "api/events";
    const stream = new EventSource(address);
    this.stream = stream;
    stream.addEventListener("runs", (event) => this.hearRuns(JSON.parse(event.data)));
    stream.addEventListener("run", (event) => this.hearRun(JSON.parse(event.data)));
    stream.addEventListener("open", () => this.linked("live", "live"));
    stream.addEventListener("error", () => {
      if (stream.readyState === EventSource.CLOSED) {
        this.linked("lost", "refused: open the address that `shardmill monitor` printed");
      } else {
        this.linked("waiting", "no answer, trying again");
      }
    });
  }

  linked(state, text) {
    const link = byId("link");
    if (link.dataset.state !== state && state !== "live") this.announce(`The monitor: ${text}`);
    link.dataset.state = state;
    say(link.querySelector(".text"), text);
    if (state === "live") this.heardAt = performance.now();
  }

  tick() {
    if (document.hidden) return;
    const silent = (performance.now() - this.heardAt) / 1000;
    if (byId("link").dataset.state === "live" && silent > LOST_S) this.linked("waiting", `silent for ${duration(silent)}`);
    this.view.tick(silent);
  }

  hearRuns(list) {
    this.linked("live", "live");
    say(byId("folder"), list.url);
    this.runs = list.runs;
    this.tell(list.alerts);
    this.alerts = list.alerts;
    const notice = byId("notice");
    const wrong = list.trouble ? [`The folder cannot be read now: ${list.trouble}`] : [];
    wrong.push(...list.remarks);
    notice.hidden = !wrong.length;
    say(notice, wrong.join(" "));
    this.showList();
    this.showAlerts();
    if (!this.key && this.runs.length) this.choose();
  }

  hearRun(run) {
    this.linked("live", "live");
    const empty = byId("empty");
    if (!run || !run.plan) {
      this.view.leave();
      empty.hidden = false;
      say(empty, run ? `${run.name} cannot be read: ${run.trouble} ${run.hint}` : "There is no such run any more.");
      return;
    }
    empty.hidden = true;
    this.view.show(run);
    this.showAlerts();
    this.search.show(run);
    document.title = `${progress(run.share)} ${run.name} · shardmill`;
  }

  /** Say which alerts are new to whoever does not see them. */
  tell(alerts) {
    const known = new Set((this.alerts ?? alerts).map((alert) => alert.id));
    const raised = alerts.filter((alert) => !known.has(alert.id) && !NEWS.includes(alert.rule));
    if (raised.length) this.announce(raised.map((alert) => `Alert, ${alert.run}: ${alert.text}`).join(". "));
  }

  showAlerts() {
    this.view.showAlerts((this.alerts ?? []).filter((alert) => alert.run === this.key));
  }

  showList() {
    const empty = byId("empty");
    if (!this.key) {
      document.title = "shardmill";
      empty.hidden = false;
      say(empty, this.runs.length ? "" : "No run here yet. A run that starts in this folder is shown.");
    }
    say(byId("count"), this.runs.length ? count(this.runs.length) : "");
    follow(byId("runs"), this.runs, (run) => run.key, makeEntry, (item, run) => this.updateEntry(item, run));
  }

  updateEntry(item, run) {
    const link = item.firstElementChild;
    if (run.key === this.key) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    const [name, state, bar, facts] = link.children;
    say(name, run.name);
    state.dataset.state = run.state;
    say(state, run.state);
    bar.firstElementChild.style.width = `${100 * run.share}%`;
    bar.dataset.state = run.state;
    const parts = run.trouble ? [run.trouble] : [progress(run.share), `${count(run.rows)} items`];
    if (!run.trouble && run.state === "running") {
      parts.push(`${count(run.rows_per_s)}/s`);
      if (run.eta_s !== null) parts.push(`${duration(run.eta_s)} left`);
    }
    if (run.errors) parts.push(`${count(run.errors)} failed`);
    const alerts = (this.alerts ?? []).filter((alert) => alert.run === run.key && !NEWS.includes(alert.rule)).length;
    link.classList.toggle("alerted", alerts > 0);
    if (alerts) parts.push(alerts === 1 ? "1 alert" : `${count(alerts)} alerts`);
    if (run.workers_lost) parts.push(`${run.workers_lost} lost`);
    say(facts, parts.join(" · "));
  }

  announce(text) {
    say(byId("said"), text);
  }
}

function makeEntry(run) {
  return make("li", {},
    make("a", { href: `#run=${encodeURIComponent(run.key)}` },
      make("span", { class: "name" }),
      make("span", { class: "state" }),
      make("span", { class: "bar" }, make("span")),
      make("span", { class: "facts" })));
}

// Benchmarks and tests look at the frames that were drawn.
globalThis.shardmill = new Page();
