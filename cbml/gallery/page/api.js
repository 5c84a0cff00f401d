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

async function ask(path, options) {
  let response;
  try {
    response = await fetch(`${ROOT}/${path}`, options);
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

/** POST a picture's bytes to `search` or `compare`. */
export async function send(path, blob, parameters, signal) {
  const type = blob.type.startsWith("image/") ? blob.type : "application/octet-stream";
  return ask(`${path}${encoded(parameters)}`, { method: "POST", body: blob, headers: { "Content-Type": type }, signal });
}

const gallery = (which) => (which === "compare" ? "which=compare" : "");
export const thumbnail = (id, size, which) =>
  `${ROOT}/pictures/${id}/thumbnail?${[`size=${size}`, gallery(which)].filter(Boolean).join("&")}`;
export const original = (id) => `${ROOT}/pictures/${id}/image`;
