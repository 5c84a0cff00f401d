// One image large, with everything known about it and the command that repeats the search.
import { get, original } from "./api.js";
import { commandBlock, searchCommand } from "./commands.js";
import { announce, byId, count, decimals, element, known, percent } from "./elements.js";
import { address, go, read } from "./state.js";

let opened = false; // by this page, so that closing is a step back
let neighbors = [];

/** Open, change or close the dialog as the address says. */
export async function syncDetail(state, info, shown) {
  const dialog = byId("detail");
  if (!state.detail) {
    if (dialog.open) dialog.close();
    return;
  }
  neighbors = shown ? shown.parts.flatMap((part) => part.images) : [];
  const found = neighbors.find((image) => String(image.id) === state.detail) ?? {};
  try {
    const image = await get(`images/${state.detail}`);
    if (read().detail !== state.detail) return; // somebody was quicker
    fill({ ...found, ...image }, state, info);
  } catch (error) {
    byId("detail-title").textContent = "Not available";
    byId("detail-body").replaceChildren(element("p", { role: "alert" }, error.message));
  }
  byId("detail-previous").disabled = !target(-1);
  byId("detail-next").disabled = !target(1);
  if (!dialog.open) dialog.showModal();
}

function fill(image, state, info) {
  const search = address({ view: "images", query: String(image.id), upload: "", detail: "", lasso: "" }, state);
  byId("detail-title").textContent = image.name;
  byId("detail-body").replaceChildren(element("div", { class: "detail" },
    element("div", { class: "frame" }, element("img", { src: original(image.id), alt: image.name })),
    element("div", { class: "side" }, facts(image), info && commandBlock(searchCommand(info, state, { ids: [image.id] }), "Search with this image in a terminal"),
      element("div", { class: "actions" }, element("a", { class: "button primary", href: search }, "Search with this image")))));
  announce(`Details of ${image.name}`);
}

function facts(image) {
  const rows = [["label", image.label], ["rank", known(image.rank) && count(image.rank)],
    ["match probability", known(image.probability) && percent(image.probability)],
    ["similarity", known(image.similarity) && decimals(image.similarity, 4)],
    ["as a query: first hit at rank", known(image.first_hit_rank) && count(image.first_hit_rank)],
    ["as a query: average precision", known(image.average_precision) && decimals(image.average_precision)],
    ["same label", known(image.positives) && count(image.positives)],
    ["size", image.width && `${image.width} × ${image.height}`],
    ["bytes", known(image.bytes) && count(image.bytes)], ["number", image.id],
    ["used in training", typeof image.trained_on === "boolean" && (image.trained_on ? "yes" : "no")],
    ["same content", image.same_content?.length > 0 && image.same_content.join(", ")]];
  return element("dl", { class: "facts" }, rows.filter(([, value]) => value !== false && value != null).flatMap(
    ([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]));
}

function target(by) {
  const here = neighbors.findIndex((image) => String(image.id) === read().detail);
  return here < 0 ? undefined : neighbors[here + by];
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
