// One run: its figures, its shards, its workers, what failed, what it costs, and what was planned.

import { Chart, drawForecast } from "./chart.js";
import { byId, follow, make, say, terms } from "./dom.js";
import { ago, bytes, clock, count, duration, money, percent, progress, short } from "./format.js";
import { Strip } from "./strip.js";

const STATES = ["waiting", "running", "done", "failed"];
const OVER = ["complete", "failed"];

export class RunView {
  constructor(announce) {
    this.announce = announce;
    this.run = null;
    this.strip = new Strip(byId("strip"), (shard, state) => this.showShard(shard, state));
    this.charts = {
      rows: new Chart("Items per second", [["items", "one"]], (value) => short(value)),
      tokens: new Chart("Tokens per second", [["read", "one"], ["made", "two"]], (value) => short(value)),
      memory: new Chart("Memory", [["processes", "one"], ["devices", "two"]], bytes),
      use: new Chart("Device use", [["busy", "one"]], (value) => percent(value), 1),
    };
    byId("charts").append(...Object.values(this.charts).map((chart) => chart.element));
    byId("log-close").addEventListener("click", () => byId("log").close());
  }

  leave() {
    byId("run").hidden = true;
    this.run = null;
    this.version = "";
    this.strip.show(new Uint8Array(0));
  }

  show(run) {
    this.tell(run);
    this.run = run;
    this.shownAt = performance.now();
    byId("run").hidden = false;
    say(byId("name"), run.name);
    const state = byId("state");
    say(state, run.state);
    state.dataset.state = run.state;
    say(byId("task"), run.task);
    this.showTrouble(run);
    this.showProgress(run);
    this.showLegend(run);
    this.showCharts(run);
    this.showWorkers(run);
    this.showErrors(run);
    this.showCost(run);
    this.showPlan(run);
    this.tick(0);
    this.loadStates(run);
  }

  /** Say what changed to whoever does not see it. */
  tell(run) {
    const before = this.run;
    if (!before || before.key !== run.key) return;
    if (before.state !== run.state) this.announce(`${run.name} is ${run.state}`);
    else if (run.workers_lost > before.workers_lost) this.announce(run.workers_lost === 1 ? "1 worker is lost" : `${count(run.workers_lost)} workers are lost`);
    else if (run.trouble && !before.trouble) this.announce(`${run.name}: ${run.trouble}`);
  }

  /** How old what is shown is: since the folder was read, and since the monitor was heard. */
  tick(silentS) {
    if (!this.run) return;
    const age = (this.run.age_s ?? 0) + (performance.now() - this.shownAt) / 1000;
    const view = this.run.view_age_s;
    const seen = view === null ? "" : `, as the workers saw it ${ago(view)} before`;
    say(byId("age"), `read ${ago(age)} ago${seen}`);
    byId("run").classList.toggle("stale", age > 60 || silentS > 60);
  }

  showTrouble(run) {
    const parts = [];
    if (run.trouble) parts.push(`It cannot be read now: ${run.trouble} ${run.hint} What is shown is the last that was read.`);
    if (run.cause) parts.push(`It failed: ${run.cause} ${run.advice}`);
    else if (run.by) parts.push(`Stopped by ${run.by}.`);
    const notice = byId("trouble");
    notice.hidden = !parts.length;
    say(notice, parts.join(" "));
  }

  /** The alerts that hold for this run. */
  showAlerts(alerts) {
    byId("alerts").hidden = !alerts.length;
    say(byId("alerts-count"), count(alerts.length));
    follow(byId("alerts-list"), alerts, (alert) => alert.id,
      (alert) => make("li", { "data-rule": alert.rule },
        make("span", { class: "rule" }, alert.rule.replaceAll("_", " ")), make("span", { class: "said" }), make("span", { class: "quiet" })),
      (item, alert) => {
        say(item.children[1], alert.text);
        say(item.children[2], `since ${clock(alert.raised_at)}`);
      });
  }

  showProgress(run) {
    say(byId("percent"), progress(run.share));
    const of = run.share < 1 && run.expected_rows ? ` of about ${count(run.expected_rows)}` : "";
    say(byId("items"), `${count(run.rows)}${of} items`);
    const bar = byId("bar");
    bar.setAttribute("aria-valuenow", Math.floor(100 * run.share));
    bar.dataset.state = run.state;
    bar.firstElementChild.style.width = `${100 * run.share}%`;
    say(byId("end"), describeEnd(run));
    const over = OVER.includes(run.state);
    const tokens = run.tokens_out ? `${short(run.tokens)} read, ${short(run.tokens_out)} made` : short(run.tokens);
    const lost = run.workers_lost ? `${count(run.workers_lost)} lost` : "";
    terms(byId("tiles"), [
      over
        ? ["Items per second", short(run.mean_rows_per_s), "on average"]
        : ["Items per second", short(run.rows_per_s), `${short(run.mean_rows_per_s)} on average`],
      over
        ? ["Tokens per second", short(run.mean_tokens_per_s), "on average"]
        : ["Tokens per second", short(run.tokens_per_s), `${short(run.mean_tokens_per_s)} on average`],
      ["Tokens", tokens, run.truncated ? `${count(run.truncated)} items truncated` : ""],
      ["Workers", count(run.workers_live), lost || (run.workers_live ? "at work" : "none at work")],
      ["Failed items", count(run.errors), failedShare(run)],
      ["Cost", money(run.usd), run.usd_at_end !== null && run.share < 1 ? `${money(run.usd_at_end)} at the end` : ""],
      run.bound && !over ? ["Bounded by", run.bound.by, `device ${percent(run.bound.device_busy)} busy`] : null,
    ]);
  }

  showLegend(run) {
    say(byId("shards-count"), count(run.shards));
    follow(byId("legend"), STATES, (state) => state,
      (state) => make("tr", {}, make("th", { scope: "row", class: state }, state), make("td", { class: "num" })),
      (row, state) => say(row.children[1], count(run.shard_states[state] ?? 0)));
  }

  async loadStates(run) {
    if (this.version === run.states_version || this.loading) return;
    this.loading = true;
    try {
      const answer = await fetch(`api/runs/${encodeURIComponent(run.key)}/shards`);
      if (!answer.ok) return;
      const states = new Uint8Array(await answer.arrayBuffer());
      if (this.run && this.run.key === run.key) {
        this.version = run.states_version;
        this.strip.show(states);
      }
    } catch {
      // The stream says that there is no answer; the next event tries again.
    } finally {
      this.loading = false;
    }
  }

  showShard(shard, state) {
    const holders = this.run ? this.run.workers.filter((worker) => worker.shards.includes(shard)) : [];
    const by = holders.length ? `, by ${holders.map((worker) => worker.id).join(" and ")}` : "";
    say(byId("picked"), shard < 0 ? "" : `Shard ${count(shard)}: ${state}${by}`);
  }

  showCharts({ history }) {
    const has = (values) => values.some((value) => value);
    this.charts.rows.show(history.at, [history.rows_per_s]);
    const made = has(history.tokens_out_per_s) ? history.tokens_out_per_s : history.at.map(() => null);
    this.charts.tokens.show(history.at, [history.tokens_per_s, made]);
    const device = has(history.device_bytes) ? history.device_bytes : history.at.map(() => null);
    this.charts.memory.show(history.at, [history.memory_bytes, device]);
    this.charts.use.show(history.at, [history.use]);
  }

  showWorkers(run) {
    const listed = run.workers.length < run.workers_listed_of ? `, the worst ${run.workers.length} of ${count(run.workers_listed_of)}` : "";
    say(byId("workers-count"), `${count(run.workers_live)} at work${listed}`);
    say(byId("placement"), run.placement);
    follow(byId("workers").tBodies[0], run.workers, (worker) => worker.id,
      (worker) => this.makeWorker(worker), (row, worker) => updateWorker(row, worker));
  }

  makeWorker(worker) {
    const button = make("button", { type: "button", "aria-label": `Log of ${worker.id}` }, "Log");
    button.addEventListener("click", () => this.openLog(worker.id));
    const cells = Array.from({ length: 8 }, (_, i) => make("td", { class: [2, 3, 4, 6].includes(i) ? "num" : null }));
    cells[0].append(make("span", { class: "state" }));
    return make("tr", {}, make("th", { scope: "row" }, worker.id), ...cells, make("td", {}, button));
  }

  async openLog(worker) {
    const dialog = byId("log");
    say(byId("log-title"), `The last lines of ${worker}`);
    say(byId("log-text"), "…");
    dialog.showModal();
    try {
      const address = `api/runs/${encodeURIComponent(this.run.key)}/log?worker=${encodeURIComponent(worker)}`;
      const answer = await fetch(address);
      const said = await answer.json();
      say(byId("log-text"), answer.ok ? said.text || "The log is empty." : said.detail);
    } catch {
      say(byId("log-text"), "The monitor does not answer.");
    }
    byId("log-text").focus();
    byId("log-text").scrollTop = byId("log-text").scrollHeight;
  }

  showErrors(run) {
    const reasons = run.reasons || [];
    say(byId("errors-count"), count(run.errors));
    say(byId("errors-none"), run.errors ? (run.reasons === null ? "Their reasons were not recorded." : "") : "None.");
    byId("errors-table").hidden = !reasons.length;
    follow(byId("errors").tBodies[0], reasons, (record) => record.reason,
      () => make("tr", {}, make("td", { class: "num" }), make("td", { class: "text" }), make("td", { class: "text quiet" })),
      (row, record) => {
        say(row.children[0], count(record.count));
        say(row.children[1], record.example || record.reason);
        const place = [record.file, record.shard === null ? "" : `shard ${record.shard}`, record.line === null ? "" : `line ${record.line}`];
        say(row.children[2], [...place, record.id && `id ${record.id}`].filter(Boolean).join(", "));
      });
  }

  showCost(run) {
    const { outlook } = run;
    drawForecast(byId("forecast"), outlook, run.eta_s, duration);
    const done = run.state === "complete";
    const took = outlook.elapsed_s;
    const off = outlook.forecast_off === null ? "" : ` (${outlook.forecast_off > 0 ? "+" : ""}${percent(outlook.forecast_off)} off)`;
    terms(byId("cost"), [
      ["Forecast", outlook.forecast_s === null ? "none: no similar run was measured before" : duration(outlook.forecast_s),
        outlook.forecast_s === null ? "" : `${duration(outlook.forecast_low_s)} to ${duration(outlook.forecast_high_s)}${off}`],
      [done ? "It took" : "So far", duration(took), outlook.began_at === null ? "" : `since ${clock(outlook.began_at)}${describeParts(outlook.parts_s)}`],
      done || run.eta_s === null ? null : ["Expected in all", duration((took ?? 0) + run.eta_s), ""],
      ["Device time", duration(outlook.device_s), "in which devices computed"],
      ["Cost so far", money(outlook.usd), ""],
      done || outlook.usd_at_end === null ? null : ["Cost at the end", money(outlook.usd_at_end), ""],
      outlook.budget_usd === null ? null : ["Budget", money(outlook.budget_usd), overBudget(outlook)],
      outlook.deadline_at === null ? null : ["Deadline", clock(outlook.deadline_at), ""],
      done || outlook.wanted === null ? null : ["Workers wanted", count(outlook.wanted), outlook.wanted_why],
      ...run.steps.filter((step) => step.step !== "sweep").map((step) => [`Step ${step.step}`, step.state, ""]),
    ]);
  }

  showPlan(run) {
    const { plan } = run;
    terms(byId("plan"), [
      ["Task", plan.task, plan.model],
      ["Source", plan.source.join(", "), `${count(plan.files)} ${plan.format} ${plan.files === 1 ? "file" : "files"}, ${bytes(plan.bytes)}`],
      ["Text", plan.text, ""],
      ["Kept", plan.kept.join(", "), ""],
      ["Shards", count(plan.shards), `the largest ${bytes(plan.largest_bytes)}`],
      ["Engine", plan.engine, ""],
      ["Plan", plan.id, ""],
      run.edition ? ["Edition", count(run.edition.edition), describeEdition(run)] : null,
      ["Folder", run.url, ""],
    ]);
    follow(byId("reports"), run.reports, (name) => name,
      (name) => make("a", { href: pageOf(run.key, name), target: "_blank", rel: "noreferrer" }, name),
      () => {});
  }
}

function pageOf(key, name) {
  return name === "map.html" ? `map?run=${encodeURIComponent(key)}` : `api/runs/${encodeURIComponent(key)}/files/${name}`;
}

function failedShare(run) {
  if (!run.errors || !run.rows) return "";
  const share = run.errors / run.rows;
  return share < 0.0001 ? "less than 0.01 %" : `${percent(share, 2)} of all`;
}

/** The parts of the time of a run, if there are several. */
function describeParts(parts) {
  const names = { prepare: "preparing", start: "start-up", work: "work", finish: "finishing" };
  const told = Object.entries(parts).filter(([, seconds]) => seconds >= 1).map(([part, seconds]) => `${names[part]} ${duration(seconds)}`);
  return told.length > 1 ? `: ${told.join(", ")}` : "";
}

function describeEnd(run) {
  if (run.state === "complete") return run.outlook.elapsed_s === null ? "" : `It took ${duration(run.outlook.elapsed_s)}.`;
  if (run.state !== "running") return "";
  if (run.eta_s === null) return "The end is unknown: no worker has a pace yet.";
  const range = `${duration(run.eta_low_s)} to ${duration(run.eta_high_s)}`;
  return `It ends in ${duration(run.eta_s)} (${range}), at ${clock(run.at + run.eta_s)}.`;
}

/** What is known of the edition that is read, and of the one that is being made. */
function describeEdition(run) {
  const { edition, at } = run;
  const said = [];
  if (edition.made_at !== null) said.push(`made ${ago(Math.max(0, at - edition.made_at))} ago`);
  if (edition.next) said.push(`edition ${count(edition.next)} is ${edition.next_state}, ${progress(edition.next_share)}`);
  if (edition.behind_since !== null) said.push(`the source is newer since ${clock(edition.behind_since)}`);
  if (edition.failures) said.push(`${count(edition.failures)} failed in a row: ${edition.error}`);
  return said.join(", ");
}

function overBudget(outlook) {
  const over = Math.max(outlook.usd ?? 0, outlook.usd_at_end ?? 0) - outlook.budget_usd;
  return over > 0 ? `over by ${money(over)}` : "";
}

function showPlace(cell, worker) {
  if (!worker.link) return say(cell, worker.place || worker.host);
  const known = cell.firstElementChild;
  if (known?.getAttribute("href") === worker.link) return;
  cell.replaceChildren(make("a", { href: worker.link, target: "_blank", rel: "noreferrer" }, worker.place));
}

function updateWorker(row, worker) {
  const cells = row.children;
  const state = cells[1].firstElementChild;
  say(state, worker.straggler ? "slow" : worker.state);
  state.dataset.state = worker.straggler ? "slow" : worker.state;
  say(cells[2], worker.device);
  say(cells[3], worker.live ? short(worker.rows_per_s) : "");
  say(cells[4], bytes(worker.device_bytes || worker.memory_bytes));
  say(cells[5], worker.use === null ? "" : percent(worker.use));
  say(cells[6], [worker.shards.join(", "), worker.said].filter(Boolean).join(" · "));
  say(cells[7], ago(worker.beat_s));
  showPlace(cells[8], worker);
  row.classList.toggle("gone", !worker.live);
  const button = cells[9].firstElementChild;
  button.hidden = !worker.has_log && !worker.error;
}
