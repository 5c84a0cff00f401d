// Building the page's elements. Data enters as text nodes and attributes only, never as markup.

import { showImage } from "./api.js";

/** An element with attributes (functions become callbacks) and children (strings become text). */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (name === "src" && tag === "img") continue; // set below, when its listeners are there
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  if (tag === "img" && attributes.src) showImage(made, attributes.src, { lazy: attributes.loading === "lazy" });
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Say something to screen readers without moving the focus. */
export function announce(text) {
  byId("status").textContent = text;
}

/** A short note at the foot of the page, gone after a while. */
export function toast(text) {
  const note = byId("toast");
  note.textContent = text;
  note.hidden = false;
  clearTimeout(note.timer);
  note.timer = setTimeout(() => { note.hidden = true; }, 6000);
}

const whole = new Intl.NumberFormat("en");
export const count = (number) => whole.format(number);
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
export const decimals = (number, places = 3) => (known(number) ? number.toFixed(places) : "–");
export const known = (number) => typeof number === "number" && Number.isFinite(number);

/** A probability as people say it; certainty is never claimed by rounding. */
export function percent(probability) {
  if (!known(probability)) return "–";
  if (probability > 0.995 && probability < 1) return "> 99 %";
  if (probability < 0.005 && probability > 0) return "< 1 %";
  return `${Math.round(probability * 100)} %`;
}

/** A fraction of a whole test set, where a tenth of a point matters. */
export const score = (fraction) => (known(fraction) ? `${(fraction * 100).toFixed(1)} %` : "–");

/** Wait until nothing was asked for some milliseconds. */
export function later(act, milliseconds) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...values), milliseconds);
  };
}
