// Labels as people type them: in any case, and nearly right.
import { get } from "./api.js";
import { byId, element } from "./elements.js";
import { address } from "./state.js";

const OFFERED = 50;

const names = async (signal) => (await get("labels", {}, signal)).labels.map(({ label }) => label);
const same = (a, b) => a.toLowerCase() === b.toLowerCase();

/** Offer the labels that contain what is typed. */
export async function offerLabels() {
  try {
    const known = await names();
    // Read after the answer: one that was asked for before may come later.
    const typed = byId("label").value.trim().toLowerCase();
    const fitting = known.filter((label) => label.toLowerCase().includes(typed));
    byId("labels").replaceChildren(...fitting.slice(0, OFFERED).map((label) => element("option", { value: label })));
  } catch {
    // a label can still be typed
  }
}

/** The labels nearest to a text that is none, best first. */
export function similarLabels(labels, text) {
  const wanted = text.toLowerCase();
  const distance = (label) => {
    const name = label.toLowerCase();
    if (name.startsWith(wanted)) return 0;
    if (name.includes(wanted)) return 1;
    const words = [name, ...name.split("/"), ...name.split(/[/\s_.-]+/)]; // Vegetables/Tomato/Beef-Tomato
    return 1 + Math.min(...words.map((word) => edits(word, wanted)));
  };
  const most = 1 + Math.max(2, Math.floor(wanted.length / 3));
  return labels.map((label) => [distance(label), label]).filter(([far]) => far <= most)
    .sort(([a], [b]) => a - b).slice(0, 6).map(([, label]) => label);
}

/** How many letters must be changed, added or left out. */
function edits(a, b) {
  let before = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i += 1) {
    const now = [i];
    for (let j = 1; j <= b.length; j += 1) {
      now.push(Math.min(before[j] + 1, now[j - 1] + 1, before[j - 1] + (a[i - 1] !== b[j - 1])));
    }
    before = now;
  }
  return before.at(-1);
}

/** What to show where a label is asked for that does not exist; null where it does. */
export async function emptyLabel(state, signal) {
  const labels = await names(signal);
  if (!state.label || labels.some((label) => same(label, state.label))) return null;
  const similar = similarLabels(labels, state.label);
  return element("div", { class: "notice" }, element("h2", { class: "wrap" }, `There is no label “${state.label}”`),
    element("p", {}, similar.length ? "Did you mean one of these?" : "No label resembles it."),
    element("div", { class: "actions" }, similar.map((label) => element("a", { class: "button", href: address({ label }) }, label)),
      element("a", { class: "button primary", href: address({ label: "" }) }, "Any label")));
}

/** The label as the gallery spells it, or the text itself. */
export const spelled = (labels, text) => labels.find((label) => same(label, text)) ?? text;
