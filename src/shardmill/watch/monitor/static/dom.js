// Elements by id, texts and lists. Everything that comes from data is set as text, never as markup.

export const byId = (id) => document.getElementById(id);

/** Set the text of an element if it is another one, so that nothing is redrawn for nothing. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** An element with attributes and children; a child that is a string becomes text. */
export function make(tag, attributes = {}, ...children) {
  const element = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** Make the children of `parent` follow `items`: known ones are updated in place, so that focus stays where it is. */
export function follow(parent, items, key, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const item of items) {
    const name = String(key(item));
    let child = known.get(name);
    known.delete(name);
    if (!child) {
      child = create(item);
      child.dataset.key = name;
    }
    const next = before ? before.nextElementSibling : parent.firstElementChild;
    if (next !== child) parent.insertBefore(child, next);
    update(child, item);
    before = child;
  }
  for (const child of known.values()) child.remove();
}

/** A list of terms and what they say: [term, text, note?]. */
export function terms(list, pairs) {
  follow(
    list,
    pairs.filter((pair) => pair && pair[1] !== "" && pair[1] !== null),
    (pair) => pair[0],
    (pair) => make("div", {}, make("dt", {}, pair[0]), make("dd"), make("dd", { class: "note" })),
    (row, pair) => {
      say(row.children[1], pair[1]);
      say(row.children[2], pair[2] || "");
      row.children[2].hidden = !pair[2];
    },
  );
}
