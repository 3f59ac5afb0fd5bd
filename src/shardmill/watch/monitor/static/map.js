// A map of a run in a sandbox. It cannot ask for anything, so it says here what to search for, and is told points.

const LONGEST = 2000;
const NEAREST = 50;
const frame = document.getElementById("map");
const key = new URLSearchParams(location.search).get("run") || "";
const run = `api/runs/${encodeURIComponent(key)}`;

/** Whoever wrote the map may not be trusted: it is told numbers, and where its view goes is only the address. */
addEventListener("message", async ({ source, data }) => {
  if (source !== frame.contentWindow || data?.from !== "shardmill map") return;
  const tell = (said) => source.postMessage({ from: "shardmill monitor", ...said }, "*");
  if (data.ready) tell({ searches: await searches() });
  if (typeof data.view === "string" && data.view.startsWith("#")) history.replaceState(null, "", data.view);
  if (data.csv instanceof Blob && navigator.userActivation.hasBeenActive) save(data.csv);
  if (typeof data.like === "string") tell({ asked: data.asked, ...(await search(data.like)) });
});

async function searches() {
  const answer = await fetch(run).catch(() => null);
  return Boolean(answer?.ok && (await answer.json()).searchable);
}

async function search(text) {
  try {
    const answer = await fetch(`${run}/search?q=${encodeURIComponent(text.slice(0, LONGEST))}&k=${NEAREST}`);
    const said = await answer.json();
    if (answer.ok) return { points: said.hits.map((hit) => hit.point) };
    return { trouble: typeof said.detail === "string" ? said.detail : "This cannot be searched for." };
  } catch {
    return { trouble: "The monitor does not answer." };
  }
}

/** A sandbox allows no downloads; whatever it hands over is saved as CSV, once somebody has clicked there. */
function save(blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([blob], { type: "text/csv;charset=utf-8" }));
  link.download = "points.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

document.title = `${key} · map`;
frame.src = `${run}/files/map.html${location.hash}`;
addEventListener("hashchange", () => frame.contentWindow.postMessage({ from: "shardmill monitor", view: location.hash }, "*"));
