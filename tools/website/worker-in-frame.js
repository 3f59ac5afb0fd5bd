// Pages that are opened as files may not start workers. There, the search runs in a hidden frame.
"use strict";

class FrameWorker extends EventTarget {
  #frame = document.createElement("iframe");
  #loaded;
  onmessage = null;

  constructor(address) {
    super();
    this.#frame.hidden = true;
    document.body.append(this.#frame);
    const inside = this.#frame.contentWindow;
    inside.postMessage = (data) => this.#answer(data);
    const script = inside.document.createElement("script");
    script.src = new URL(address, document.baseURI);
    this.#loaded = new Promise((resolve) => script.addEventListener("load", resolve));
    inside.document.body.append(script);
  }

  postMessage(data) {
    const inside = this.#frame.contentWindow;
    this.#loaded.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data: structuredClone(data) })));
  }

  terminate() {
    this.#frame.remove();
  }

  #answer(data) {
    const event = new MessageEvent("message", { data });
    this.onmessage?.(event);
    this.dispatchEvent(event);
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
