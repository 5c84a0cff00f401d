// One picture large, with everything known about it and the command that repeats the search.
import { get, original } from "./api.js";
import { announce, byId, count, decimals, element, known, percent, toast } from "./elements.js";
import { address, go, read } from "./state.js";

let opened = false; // by this page, so that closing is a step back
let neighbours = [];

/** Open, change or close the dialog as the address says. */
export async function syncDetail(state, shown) {
  const dialog = byId("detail");
  if (!state.detail) {
    if (dialog.open) dialog.close();
    return;
  }
  neighbours = shown ? shown.parts.flatMap((part) => part.pictures) : [];
  const found = neighbours.find((picture) => String(picture.id) === state.detail) ?? {};
  try {
    const picture = await get(`pictures/${state.detail}`);
    if (read().detail !== state.detail) return; // somebody was quicker
    fill({ ...found, ...picture }, state);
  } catch (error) {
    byId("detail-title").textContent = "Not available";
    byId("detail-body").replaceChildren(element("p", { role: "alert" }, error.message));
  }
  byId("detail-previous").disabled = !target(-1);
  byId("detail-next").disabled = !target(1);
  if (!dialog.open) dialog.showModal();
}

function fill(picture, state) {
  const search = address({ view: "pictures", query: String(picture.id), upload: "", detail: "", lasso: "" }, state);
  byId("detail-title").textContent = picture.name;
  byId("detail-body").replaceChildren(element("div", { class: "detail" },
    element("div", { class: "frame" }, element("img", { src: original(picture.id), alt: picture.name })),
    element("div", { class: "side" }, facts(picture), command(picture),
      element("div", { class: "actions" }, element("a", { class: "button primary", href: search }, "Search with this picture")))));
  announce(`Details of ${picture.name}`);
}

function facts(picture) {
  const rows = [["label", picture.label], ["rank", known(picture.rank) && count(picture.rank)],
    ["match probability", known(picture.probability) && percent(picture.probability)],
    ["similarity", known(picture.similarity) && decimals(picture.similarity, 4)],
    ["first hit at rank", known(picture.first_hit_rank) && count(picture.first_hit_rank)],
    ["average precision", known(picture.average_precision) && decimals(picture.average_precision)],
    ["same label", known(picture.positives) && count(picture.positives)],
    ["size", picture.width && `${picture.width} × ${picture.height}`],
    ["bytes", known(picture.bytes) && count(picture.bytes)], ["number", picture.id],
    ["same content", picture.same_content?.length > 0 && picture.same_content.join(", ")]];
  return element("dl", { class: "facts" }, rows.filter(([, value]) => value !== false && value != null).flatMap(
    ([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]));
}

function command(picture) {
  if (!picture.command) return null;
  const text = element("pre", { tabindex: "0", "aria-label": "Command" }, element("code", {}, picture.command));
  return element("div", { class: "command" }, element("h3", {}, "The same search in a terminal"), text,
    element("button", { type: "button", click: () => copy(picture.command, text) }, "Copy"));
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

function target(by) {
  const here = neighbours.findIndex((picture) => String(picture.id) === read().detail);
  return here < 0 ? undefined : neighbours[here + by];
}

function turn(by) {
  const next = target(by);
  if (next) go({ detail: String(next.id) }, { replace: true });
}

function close() {
  if (opened) history.back();
  else go({ detail: "" }, { replace: true });
  opened = false;
}

export function openDetail(id) {
  opened = true;
  go({ detail: String(id) });
}

export function bindDetail() {
  const dialog = byId("detail");
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-detail]");
    if (button) openDetail(button.dataset.detail);
  });
  byId("detail-previous").addEventListener("click", () => turn(-1));
  byId("detail-next").addEventListener("click", () => turn(1));
  byId("detail-close").addEventListener("click", close);
  dialog.addEventListener("cancel", (event) => {
    event.preventDefault();
    close();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest("pre")) return;
    if (event.key === "ArrowLeft") turn(-1);
    if (event.key === "ArrowRight") turn(1);
  });
}
