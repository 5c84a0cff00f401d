// The bar above the images: filters, and the export of what is shown.
import { byId, element, later, percent } from "./elements.js";
import { save } from "./exports.js";
import { offerLabels } from "./labels.js";
import { DEFAULTS, address, go, read } from "./state.js";

const FILTERS = ["text", "label", "probability", "unique"];

/** Which controls make sense: browsing, searching, or one of the other views. */
function mode(state) {
  return state.view === "images" && (state.query || state.upload) ? "search" : state.view;
}

/** Show the state in the controls, without touching what somebody is typing in. */
export function syncControls(state, info) {
  const now = mode(state);
  for (const field of document.querySelectorAll("[data-views]")) {
    const words = field.dataset.views.split(" ");
    field.hidden = !words.includes(now) || Boolean(info && field.dataset.needs && !info[field.dataset.needs]);
  }
  for (const name of ["text", "label"]) {
    if (document.activeElement !== byId(name)) byId(name).value = state[name];
  }
  byId("probability").value = state.probability;
  byId("probability-value").textContent = least(state.probability);
  byId("unique").checked = state.unique;
  byId("sort").value = state.sort;
  showSize(state.k);
  byId("clear").hidden = !FILTERS.some((name) => state[name] !== DEFAULTS[name]);
  for (const link of document.querySelectorAll("nav a")) {
    const view = link.dataset.view;
    const home = view === "images" && state.view === "images" ? { query: "", upload: "" } : {};
    link.href = address({ view, detail: "", lasso: "", ...home }, state);
    if (view === state.view) reveal(link);
    else link.removeAttribute("aria-current");
  }
}

/** Mark the link of the view; on narrow screens its bar scrolls. */
function reveal(link) {
  link.setAttribute("aria-current", "page");
  const bar = link.closest("nav");
  bar.scrollLeft = link.offsetLeft - bar.offsetLeft - (bar.clientWidth - link.offsetWidth) / 2;
}

const least = (probability) => (probability > 0 ? `≥ ${percent(probability)}` : "any");

function showSize(k) {
  const select = byId("k");
  if (![...select.options].some((option) => Number(option.value) === k)) select.append(element("option", {}, String(k)));
  select.value = String(k);
}

/** Clear every filter; the query stays. */
export function clearFilters() {
  go(Object.fromEntries(FILTERS.map((name) => [name, DEFAULTS[name]])));
}

/** Connect the bar; `shown` gives what Export writes. */
export function bindControls(shown) {
  const text = later((value) => go({ text: value.trim() }, { replace: true }), 200);
  byId("text").addEventListener("input", (event) => text(event.target.value));
  byId("label").addEventListener("change", (event) => go({ label: event.target.value.trim() }));
  byId("label").addEventListener("focus", offerLabels);
  byId("label").addEventListener("input", offerLabels);
  const probability = later((value) => go({ probability: value }, { replace: true }), 120);
  byId("probability").addEventListener("input", (event) => {
    byId("probability-value").textContent = least(Number(event.target.value));
    probability(Number(event.target.value));
  });
  byId("unique").addEventListener("change", (event) => go({ unique: event.target.checked }));
  byId("k").addEventListener("change", (event) => go({ k: Number(event.target.value) }));
  byId("sort").addEventListener("change", (event) => go({ sort: event.target.value }));
  byId("clear").addEventListener("click", clearFilters);
  byId("bar").addEventListener("submit", (event) => event.preventDefault());
  byId("filter-button").addEventListener("click", (event) => {
    const open = byId("bar").classList.toggle("open");
    event.target.setAttribute("aria-expanded", open);
  });
  bindExport(shown);
  document.addEventListener("click", follow);
}

function bindExport(shown) {
  const menu = byId("export");
  for (const button of menu.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      menu.open = false;
      save(button.dataset.kind, shown());
    });
  }
  for (const each of document.querySelectorAll("details.menu")) bindMenu(each);
}

function bindMenu(menu) {
  document.addEventListener("click", (event) => { if (!menu.contains(event.target)) menu.open = false; });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}

/** Links within the page change the state; with a modifier key they open as usual. */
function follow(event) {
  const link = event.target.closest("a[href^='?']");
  if (!link || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go({ ...read(link.getAttribute("href")) });
}
