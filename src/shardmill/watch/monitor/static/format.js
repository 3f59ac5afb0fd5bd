// Numbers, times and sizes as people read them.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (number) => whole.format(number);

/** 950, 12.3 k, 3.2 G */
export function short(number) {
  if (number === null || number === undefined) return "";
  const size = Math.abs(number);
  if (size < 10 && size % 1) return number.toFixed(1);
  if (size < 10000) return whole.format(number);
  const power = Math.min(4, Math.floor(Math.log10(size) / 3));
  const value = number / 1000 ** power;
  return `${value.toFixed(value < 100 ? 1 : 0)} ${" kMGT"[power]}`;
}

export function bytes(number) {
  if (number === null || number === undefined) return "";
  let power = 0;
  while (number >= 1000 && power < 4) {
    number /= 1024;
    power += 1;
  }
  return `${number.toFixed(power && number < 10 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "?";
  const s = Math.max(0, Math.round(seconds));
  return unbroken(spelled(s));
}

function spelled(s) {
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** A figure and its unit stay on one line. */
const unbroken = (text) => text.replaceAll(" ", "\u00a0");

/** How long ago, in one unit. */
export function ago(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.max(0, seconds);
  if (s < 60) return unbroken(`${Math.round(s)} s`);
  if (s < 3600) return unbroken(`${Math.floor(s / 60)} min`);
  return unbroken(s < 86400 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`);
}

/** A time of day, with the day if it is another; `how` may ask for seconds. */
export function clock(at, how = "") {
  const when = new Date(at * 1000);
  const second = how === "seconds" ? { second: "2-digit" } : {};
  const time = when.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...second });
  if (when.toDateString() === new Date().toDateString()) return time;
  return `${when.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${time}`;
}

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

/** A share that is not done is never shown as 100 %. */
export const progress = (share) => (share >= 1 ? "100 %" : `${Math.min(99.9, Math.floor(1000 * share) / 10).toFixed(1)} %`);

export function money(usd) {
  if (usd === null || usd === undefined) return "unknown";
  return usd < 1 ? `$${usd.toFixed(4)}` : `$${usd.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}
