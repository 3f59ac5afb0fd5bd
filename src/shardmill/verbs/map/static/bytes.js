// What the page carries: base64 in elements that nobody executes, and blocks of texts, unpacked when they are asked for.

const BLOCKS_KEPT = 96;

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const plain = atob(text);
  const bytes = new Uint8Array(plain.length);
  for (let i = 0; i < plain.length; i += 1) bytes[i] = plain.charCodeAt(i);
  return bytes;
}

/** Unpack bytes; by hand, as a Blob and a Response around the stream take four times as long. */
async function inflate(bytes) {
  const stream = new DecompressionStream("deflate-raw");
  const writer = stream.writable.getWriter();
  const written = Promise.all([writer.write(bytes), writer.close()]);
  const parts = [];
  const reader = stream.readable.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) parts.push(part.value);
  await written;
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole.buffer;
}

/** Take the bytes of an element of the page; null while the browser has not read that far. */
function carried(id) {
  const element = document.getElementById(id);
  // An element that is followed by another is complete.
  if (!element || (!element.nextElementSibling && document.readyState === "loading")) return null;
  return fromBase64(element.textContent);
}

/** Wait for an element of the page, which may still be on its way. */
async function arrival(id) {
  for (;;) {
    const bytes = carried(id);
    if (bytes) return bytes;
    if (document.readyState !== "loading") throw new Error(`the page has no ${id}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Blocks of one kind: texts, ids, neighbours. The last ones used are kept unpacked. */
class Blocks {
  constructor(kind, read) {
    this.kind = kind;
    this.read = read;
    this.kept = new Map();
  }

  block(number) {
    let found = this.kept.get(number);
    if (found) this.kept.delete(number);
    else found = this.unpack(number).then(this.read);
    this.kept.set(number, found);
    if (this.kept.size > BLOCKS_KEPT) this.kept.delete(this.kept.keys().next().value);
    return found;
  }

  async unpack(number) {
    return inflate(await arrival(`${this.kind}${number}`));
  }
}

const utf8 = new TextDecoder();
const readTexts = (buffer) => JSON.parse(utf8.decode(buffer));
