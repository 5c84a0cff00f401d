// What is shown, as a line for a terminal; the line finds exactly what the page shows.
import { element, toast } from "./elements.js";

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;
const quoted = (word) => (PLAIN.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
const file = (name) => (name.startsWith("-") ? `./${name}` : name);

/** The search of a state with images of the gallery (`ids`) or files (`names`). */
export function searchCommand(info, state, { ids = [], names = [] }) {
  const words = ["search", info.folder, ...names.map(file), ...ids.flatMap((id) => ["--id", String(id)]),
    "--k", String(Math.min(state.k, info.limits.k))];
  if (state.label) words.push("--label", state.label);
  if (state.text) words.push("--text", state.text);
  if (info.has_probability && state.probability) words.push("--min-probability", String(state.probability));
  if (state.unique) words.push("--hide-duplicates");
  if (info.has_probability && state.sort === "probability") words.push("--sort", "probability");
  return [info.program, ...words.map(quoted)].join(" ");
}

/** A command with a button that copies it. */
export function commandBlock(text, title = "The same search in a terminal") {
  const holder = element("pre", { tabindex: "0", "aria-label": "Command" }, element("code", {}, text));
  return element("div", { class: "command" }, element("h3", {}, title), holder,
    element("button", { type: "button", click: () => copy(text, holder) }, "Copy"));
}

async function copy(text, holder) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied.");
  } catch {
    getSelection().selectAllChildren(holder); // not allowed here: the person can press the keys
    toast("Selected: press Ctrl+C to copy.");
  }
}
