// Points by word, and points as CSV. Blocks are read one after another, and the page stays usable meanwhile.

const BLOCK_POINTS = 512;
const SLICE_MS = 10;
const AT_ONCE = 8;
const pause = () => new Promise((resolve) => setTimeout(resolve));

/** Find the points whose excerpt has all words, in any case. `onFound` gets all found so far and the share searched. */
async function findWords(points, query, isWanted, onFound) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const escaped = words.map((word) => JSON.stringify(word).slice(1, -1));
  const blocks = Math.ceil(points.count / BLOCK_POINTS);
  const found = [];
  let began = performance.now();
  for (let first = 0; first < blocks; first += AT_ONCE) {
    const numbers = Array.from({ length: Math.min(AT_ONCE, blocks - first) }, (_, i) => first + i);
    const buffers = await Promise.all(numbers.map((number) => points.texts.unpack(number)));
    if (!isWanted()) return null;
    buffers.forEach((buffer, at) => {
      const raw = utf8.decode(buffer);
      const lower = raw.toLowerCase();
      if (!escaped.every((word) => lower.includes(word))) return;
      JSON.parse(raw).forEach((text, i) => {
        const each = text.toLowerCase();
        if (words.every((word) => each.includes(word))) found.push(numbers[at] * BLOCK_POINTS + i);
      });
    });
    if (performance.now() - began > SLICE_MS) {
      onFound(found, (first + numbers.length) / blocks);
      await pause();
      if (!isWanted()) return null;
      began = performance.now();
    }
  }
  onFound(found, 1);
  return Uint32Array.from(found);
}

async function textOf(points, i) {
  return plain((await points.texts.block(Math.floor(i / BLOCK_POINTS)))[i % BLOCK_POINTS]);
}

async function idOf(points, i) {
  return plain((await points.ids.block(Math.floor(i / BLOCK_POINTS)))[i % BLOCK_POINTS]);
}

/** The value of a column at a point, as the data has it; null if there is none. Codes are for colours. */
async function valueOf(points, column, i) {
  if (column.clusters) return column.labels[column.clusterOf(i)] ?? null;
  if (column.values) {
    const value = (await column.values.block(Math.floor(i / BLOCK_POINTS)))[i % BLOCK_POINTS];
    return value === null ? null : plain(value);
  }
  const code = (await points.loadColumn(column))[i];
  return code === NULL ? null : codeText(column, code);
}

/** The points most like one, the nearest first. */
async function similarTo(points, i) {
  const k = points.head.neighbours;
  const block = await points.neighbours.block(Math.floor(i / BLOCK_POINTS));
  const at = (i % BLOCK_POINTS) * k;
  return block.slice(at, at + k).filter((other) => other !== i);
}

/** A cell of CSV. A text that a spreadsheet would take for a formula gets an apostrophe in front. */
function cell(text) {
  const safe = /^[=+\-@\t\r]/.test(text) && !/^-?[\d.,]+(e[+-]?\d+)?$/i.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Points as a file of CSV: id, place, names of clusters, columns, excerpt. */
async function toCsv(points, list, onShare) {
  const { head } = points;
  const [left, low, side] = head.bounds;
  const levels = points.levels.map((_, depth) => `cluster_${depth + 1}`);
  const names = ["id", "x", "y", ...levels, ...points.columns.map((c) => plain(c.name)), "excerpt"];
  const parts = [names.map(cell).join(","), "\r\n"];
  let began = performance.now();
  for (let at = 0; at < list.length; at += 1) {
    const i = list[at];
    const clusters = points.levels.map((level, depth) => {
      const c = points.clusterOf(i, depth);
      return c < 0 ? "" : level.clusters[c].words.slice(0, 3).join(" ");
    });
    const values = await Promise.all(points.columns.map(async (column) => (await valueOf(points, column, i)) ?? ""));
    const place = [points.x[i], points.y[i]].map((step, axis) => (side * (step / LAST_STEP) + (axis ? low : left)).toPrecision(7));
    const row = [await idOf(points, i), ...place, ...clusters, ...values, await textOf(points, i)];
    parts.push(row.map(cell).join(","), "\r\n");
    if (performance.now() - began > SLICE_MS) {
      onShare(at / list.length);
      await pause();
      began = performance.now();
    }
  }
  return new Blob(["\ufeff", ...parts], { type: "text/csv;charset=utf-8" });
}

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = make("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}
