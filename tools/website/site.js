// What zensical draws after a page has loaded, for those who use a keyboard or a screen reader.
"use strict";

function name() {
  document.querySelectorAll(".md-code__nav").forEach((nav, n) => nav.setAttribute("aria-label", `Code ${n + 1}`));
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((table) => (table.tabIndex = 0));
}

new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
name();
