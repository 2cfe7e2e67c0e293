// Packs: base64 of raw deflate of (uint32 header length, JSON header, arrays with their bytes transposed).

import { byId } from "./dom.js";

const ARRAYS = { f4: Float32Array, i4: Int32Array, u4: Uint32Array, i2: Int16Array, u2: Uint16Array, i1: Int8Array, u1: Uint8Array };

const fromBase64 = (text) => Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Bytes grouped by their place in the element, back in the order of the elements. */
function untransposed(raw, Type, count) {
  const size = Type.BYTES_PER_ELEMENT;
  const bytes = new Uint8Array(raw.length);
  for (let place = 0; place < size; place++) {
    const from = place * count;
    for (let i = 0, to = place; i < count; i++, to += size) bytes[to] = raw[from + i];
  }
  return new Type(bytes.buffer);
}

export async function unpack(text) {
  const data = await inflate(fromBase64(text));
  const length = new DataView(data.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + length)));
  const found = { ...header.values };
  let start = 4 + length;
  for (const [name, kind, count] of header.columns) {
    const Type = ARRAYS[kind];
    const end = start + count * Type.BYTES_PER_ELEMENT;
    found[name] = untransposed(data.subarray(start, end), Type, count);
    start = end;
  }
  return found;
}

export const parsed = new Promise((resolve) => {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", resolve, { once: true });
  else resolve();
});

/** A pack that stands before the script. */
export const early = (id) => unpack(byId(id).textContent);

const decoded = new Map();

/** A pack that stands after it: decoded when it is first needed, the last few are kept. */
export function late(id) {
  let found = decoded.get(id);
  decoded.delete(id);
  if (!found) found = parsed.then(() => unpack(byId(id).textContent));
  decoded.set(id, found);
  if (decoded.size > 24) decoded.delete(decoded.keys().next().value);
  return found;
}
