// Elements, numbers and texts. Everything that comes from data is set as text, never as markup.

const byId = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

const wholeNumber = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const count = (number) => wholeNumber.format(number);
const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// Controls of terminals and of the direction of writing, which could make a text look like another.
const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const plain = (text) => String(text).replace(CONTROLS, " ");

/** A number of a column, as exact as the step between two colours. */
function figure(value, step) {
  const digits = clamp(-Math.floor(Math.log10(Math.abs(step) || 1)), 0, 6);
  if (Math.abs(value) >= 1e9 || (value && Math.abs(value) < 1e-5)) return value.toExponential(2);
  return value.toLocaleString("en-US", { maximumFractionDigits: digits });
}

/** A time in UTC, with the hour if all times lie within a few days. */
function moment(seconds, range) {
  const when = new Date(seconds * 1000);
  if (Number.isNaN(when.getTime())) return "";
  const text = when.toISOString();
  return range > 4 * 86400 ? text.slice(0, 10) : text.slice(0, 16).replace("T", " ");
}

function share(value) {
  const percent = 100 * value;
  return `${percent >= 10 || percent === 0 ? percent.toFixed(0) : percent.toPrecision(1)} %`;
}
