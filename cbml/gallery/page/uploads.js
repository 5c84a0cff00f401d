// Images from this computer: dropped, pasted or picked; kept in the browser so that Back and
// reload find them again. They go to the service only to be searched with.
import { byId, toast } from "./elements.js";
import { go } from "./state.js";

const kept = new Map();
const KEEP = 40;
const AT_ONCE = 12; // queries of one search

function database() {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open("cbml-uploads", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("images");
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
}

function finished(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** The image kept under a key, or null when this browser does not have it. */
export async function keptImage(key) {
  if (kept.has(key)) return kept.get(key);
  try {
    const store = (await database()).transaction("images").objectStore("images");
    return (await finished(store.get(key))) ?? null;
  } catch {
    return null; // private windows have no database
  }
}

async function keep(key, file) {
  kept.set(key, file);
  try {
    const store = (await database()).transaction("images", "readwrite").objectStore("images");
    const keys = await finished(store.getAllKeys());
    for (const old of keys.sort().slice(0, Math.max(0, keys.length - KEEP + 1))) store.delete(old);
    await finished(store.put(file, key));
  } catch {
    // the page still works until it is closed
  }
}

let largest = Infinity;

/** Why a file is not searched with; empty where it is. */
function objection(file) {
  if (file.type && !file.type.startsWith("image/")) return `${file.name || "This"} is not an image.`;
  if (file.size > largest) return `This image has ${megabytes(file.size)}; the service takes at most ${megabytes(largest)}.`;
  return "";
}

/** Search with files of this computer; what cannot be used is left out with a word. */
export async function searchWith(files) {
  const good = [...files].filter((file) => !objection(file));
  const problem = [...files].map(objection).find(Boolean);
  if (problem) toast(problem);
  else if (good.length > AT_ONCE) toast(`The first ${AT_ONCE} of ${good.length} images are searched with.`);
  const keys = [];
  for (const file of good.slice(0, AT_ONCE)) {
    const key = Date.now().toString(36) + Math.random().toString(36).slice(2, 6);
    await keep(key, file);
    keys.push(key);
  }
  if (keys.length) go({ view: "images", query: "", upload: keys.join("."), detail: "" });
}

const megabytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MB`;

export function pick() {
  byId("file").click();
}

/** Refuse files of more bytes before they are sent. */
export function limitTo(bytes) {
  largest = bytes;
}

/** Watch for dropped, pasted and picked images. */
export function watch() {
  const hint = byId("drop");
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    event.preventDefault();
    hint.hidden = !hasFiles(event);
  });
  addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) hint.hidden = true;
  });
  addEventListener("drop", (event) => {
    event.preventDefault();
    hint.hidden = true;
    if (event.dataTransfer.files.length) searchWith(event.dataTransfer.files);
    else toast("Drop the image file itself; addresses are not fetched.");
  });
  addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return; // text goes where the cursor is
    event.preventDefault();
    searchWith(event.clipboardData.files);
  });
  byId("pick").addEventListener("click", pick);
  byId("file").addEventListener("change", (event) => {
    searchWith([...event.target.files]);
    event.target.value = ""; // the same file can be chosen again
  });
}
