// Where `shardmill monitor` shows the page, it can be asked for points by meaning. It knows the model; the page does not.

const PAGE = "shardmill map";
const MONITOR = "shardmill monitor";

class Monitor {
  constructor(map) {
    this.map = map;
    this.known = false;
    this.searches = false;
    this.asked = 0;
    this.waiting = new Map();
    this.framed = parent !== window;
    addEventListener("message", (event) => event.source === parent && event.data?.from === MONITOR && this.hear(event.data));
    this.tell({ ready: true });
  }

  tell(said) {
    if (this.framed) parent.postMessage({ from: PAGE, ...said }, "*");
  }

  hear({ searches, view, asked, points, trouble }) {
    this.known = true;
    if (typeof view === "string") location.hash = view;
    if (typeof searches === "boolean") {
      this.searches = searches;
      this.map.offer();
    }
    this.waiting.get(asked)?.({ points: this.check(points), trouble: plain(String(trouble || "")) });
    this.waiting.delete(asked);
  }

  check(points) {
    const { count: n } = this.map.points;
    return Uint32Array.from((points || []).filter((i) => Number.isInteger(i) && i >= 0 && i < n));
  }

  /** The points nearest in meaning to a text, nearest first, or why there are none. */
  ask(text) {
    this.asked += 1;
    const asked = this.asked;
    return new Promise((resolve) => {
      this.waiting.set(asked, resolve);
      this.tell({ like: text, asked });
    });
  }
}
