// Single-letter keys, which can be turned off, and the help that lists them.
import { openDetail } from "./detail.js";
import { byId } from "./elements.js";
import { go } from "./state.js";
import { pick } from "./uploads.js";

const VIEWS = { p: "images", w: "worst", x: "confusions", c: "compare", m: "map" };
const SWITCH = "cbml-single-letter-keys";

function remembered() {
  try {
    return localStorage.getItem(SWITCH) !== "off";
  } catch {
    return true; // storage may be forbidden
  }
}

function remember(on) {
  try {
    localStorage.setItem(SWITCH, on ? "on" : "off");
  } catch {
    // holds until the page is closed
  }
}

export function bindKeys() {
  const toggle = byId("shortcuts");
  toggle.checked = remembered();
  toggle.addEventListener("change", () => remember(toggle.checked));
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  byId("help-close").addEventListener("click", () => byId("help").close());
  document.addEventListener("keydown", (event) => { if (toggle.checked) pressed(event); });
}

function pressed(event) {
  const typing = event.target.closest("input:not([type='checkbox'], [type='range']), select, textarea");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const key = event.key.toLowerCase();
  const focused = document.activeElement?.closest(".tile")?.querySelector("[data-detail]");
  if (key === "?") byId("help").showModal();
  else if (key === "/") find();
  else if (key === "u") pick();
  else if (key === "d" && focused) openDetail(focused.dataset.detail);
  else if (key in VIEWS) go({ view: VIEWS[key], lasso: "" });
  else return;
  event.preventDefault();
}

function find() {
  byId("bar").classList.add("open");
  byId("filter-button").setAttribute("aria-expanded", "true");
  const field = byId("text");
  if (field.closest("[hidden]")) go({ view: "images" });
  field.focus();
  field.select();
}
