// The service's JSON, as docs/serve-api.md describes it. Answers are kept, so that Back is instant.

const ROOT = "api/v1";
const KEEP = 200;
const answers = new Map();

/** What went wrong, in words for the person at the page. */
export class Trouble extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const TOKEN = "cbml-token";

let token = null; // where a browser keeps nothing for pages, it lasts until they are left
try {
  token = sessionStorage.getItem(TOKEN);
} catch {
  // asked for when it is needed
}

/** Keep the token of the service until this tab is closed. */
export function keepToken(given) {
  token = given;
  try {
    sessionStorage.setItem(TOKEN, given);
  } catch {
    // see above
  }
}

// A link may bring the token behind its #, which is never sent; it does not stay in the address.
if (location.hash.startsWith("#token=")) {
  const given = location.hash.slice("#token=".length);
  try {
    keepToken(decodeURIComponent(given));
  } catch {
    keepToken(given); // not a whole link: the service says so, and the page asks
  }
  history.replaceState(history.state, "", location.pathname + location.search);
}

function authorized(options = {}) {
  if (token === null) return options;
  return { ...options, headers: { ...options.headers, Authorization: `Bearer ${token}` } };
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(`${ROOT}/${path}`, authorized(options));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The service does not answer. Is cbml serve still running?", 0);
  }
  if (response.ok) return response.json();
  let said = "";
  try {
    said = (await response.json()).error?.message ?? "";
  } catch {
    // not JSON: the status has to do
  }
  throw new Trouble(said || `The service answered ${response.status}.`, response.status);
}

function encoded(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== false && value != null);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** GET a path with parameters; empty ones are left out. */
export async function get(path, parameters = {}, signal = undefined) {
  const address = path + encoded(parameters);
  const answer = answers.get(address) ?? (await ask(address, { signal }));
  answers.delete(address); // the one used last goes to the end, the oldest leaves
  answers.set(address, answer);
  if (answers.size > KEEP) answers.delete(answers.keys().next().value);
  return answer;
}

/** POST an image's bytes to `search` or `compare`. */
export async function send(path, blob, parameters, signal) {
  const type = blob.type.startsWith("image/") ? blob.type : "application/octet-stream";
  return ask(`${path}${encoded(parameters)}`, { method: "POST", body: blob, headers: { "Content-Type": type }, signal });
}

const gallery = (which) => (which === "compare" ? "which=compare" : "");
export const thumbnail = (id, size, which) =>
  `${ROOT}/images/${id}/thumbnail?${[`size=${size}`, gallery(which)].filter(Boolean).join("&")}`;
export const original = (id) => `${ROOT}/images/${id}/image`;

/** The bytes of an image of the service. */
export async function blobOf(address) {
  const response = await fetch(address, authorized());
  if (!response.ok) throw new Trouble(`The service answered ${response.status}.`, response.status);
  return response.blob();
}

/** Show an image of the service. Addresses in pages carry no token: then its bytes are fetched. */
export function showImage(image, address, { lazy = false } = {}) {
  if (token === null || !address.startsWith(ROOT)) {
    image.src = address;
    return;
  }
  image.removeAttribute("srcset");
  const load = async () => {
    try {
      const source = URL.createObjectURL(await blobOf(address));
      image.addEventListener("load", () => URL.revokeObjectURL(source), { once: true });
      image.src = source;
    } catch {
      image.dispatchEvent(new Event("error"));
    }
  };
  if (lazy) whenSeen(image, load);
  else load();
}

/** Call `act` once when an element comes near the screen. */
export function whenSeen(node, act) {
  const watcher = new IntersectionObserver(([entry]) => {
    if (!entry.isIntersecting) return;
    watcher.disconnect();
    act();
  }, { rootMargin: "300px" });
  watcher.observe(node);
}
