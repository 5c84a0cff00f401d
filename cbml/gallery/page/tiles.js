// A picture with its caption, and grids of them that the arrow keys walk through.
import { address, read } from "./state.js";
import { thumbnail } from "./api.js";
import { count, decimals, element, known, percent } from "./elements.js";

/** One picture of a grid: a link that searches with it, and a button for its details. */
export function tile(picture) {
  const { correct, rank } = picture;
  const verdict = correct === true ? "right" : correct === false ? "wrong" : "";
  const link = element("a", { href: searchWith(picture), title: picture.name, "aria-label": spoken(picture) },
    element("div", { class: "frame" }, image(picture)),
    known(rank) && element("span", { class: "rank", "aria-hidden": "true" }, count(rank)),
    verdict && element("span", { class: "verdict", "aria-hidden": "true" }, correct ? "✓" : "✗"),
    picture.duplicate && element("span", { class: "copy", "aria-hidden": "true" }, "≈ duplicate"));
  return element("li", { class: `tile ${verdict}` }, link, caption(picture));
}

/** The address of a search; searching from the comparison stays a comparison. */
function searchWith(picture) {
  const id = picture.which ? picture.other_id : picture.id;
  if (id === null) return null; // only the other gallery has it
  const view = read().view === "compare" ? "compare" : "pictures";
  return address({ view, query: String(id), upload: "", detail: "", lasso: "" });
}

function image(picture) {
  const [small, large] = [192, 384].map((size) => thumbnail(picture.id, size, picture.which));
  return element("img", { srcset: `${small} 192w, ${large} 384w`, sizes: "160px", src: small, alt: "", loading: "lazy",
    decoding: "async", width: 192, height: 192, error: (event) => event.target.classList.add("broken") });
}

function more(picture) {
  return element("button", { type: "button", class: "more", "aria-label": `Details of ${picture.name}`,
    title: "Details (D)", "data-detail": picture.id }, "⋯");
}

function caption(picture) {
  const numbers = [
    known(picture.probability) && element("b", {}, percent(picture.probability)),
    known(picture.similarity) && decimals(picture.similarity),
  ].filter(Boolean).flatMap((part, i) => (i ? [" · ", part] : [part]));
  return element("div", { class: "caption" },
    element("div", { class: "line" }, element("span", { class: "name" }, picture.label ?? picture.name),
      !picture.which && more(picture)),
    numbers.length > 0 && element("div", { class: "numbers" }, numbers),
    picture.change && element("div", { class: `moved ${picture.change.way}` }, picture.change.text));
}

/** What a screen reader says of a picture. */
export function spoken(picture) {
  const parts = [`Search with ${picture.name}`];
  if (known(picture.rank)) parts.unshift(`Rank ${picture.rank}`);
  if (picture.label != null) parts.push(`label ${picture.label}`);
  if (picture.correct != null) parts.push(picture.correct ? "same label as the query" : "another label than the query");
  if (known(picture.probability)) parts.push(`match probability ${percent(picture.probability)}`);
  if (known(picture.similarity)) parts.push(`similarity ${decimals(picture.similarity)}`);
  if (picture.duplicate) parts.push("near-duplicate");
  if (picture.change) parts.push(picture.change.spoken);
  return parts.join(", ");
}

/** A grid of pictures; one Tab stop for all of them, arrow keys within. */
export function grid(pictures, options = {}) {
  const list = element("ol", { class: options.strip ? "strip" : "grid", "aria-label": options.name ?? "Pictures",
    keydown: walk, focusin: settle });
  extend(list, pictures);
  return list;
}

/** Put more pictures at the end of a grid. */
export function extend(list, pictures) {
  const items = pictures.map(tile);
  for (const item of items) setStop(item, false);
  list.append(...items);
  if (list.firstElementChild && !list.querySelector("a[tabindex='0']")) setStop(list.firstElementChild, true);
}

function setStop(item, on) {
  for (const control of item.querySelectorAll("a, button")) control.tabIndex = on ? 0 : -1;
}

function settle(event) {
  const item = event.target.closest(".tile");
  for (const old of event.currentTarget.querySelectorAll("a[tabindex='0']")) setStop(old.closest(".tile"), false);
  setStop(item, true);
}

function walk(event) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns(event), ArrowDown: columns(event),
    Home: -Infinity, End: Infinity };
  if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
  const items = [...event.currentTarget.children];
  const here = items.indexOf(event.target.closest(".tile"));
  const there = Math.max(0, Math.min(items.length - 1, here + steps[event.key]));
  if (Math.abs(steps[event.key]) > 1 && Number.isFinite(steps[event.key]) && there !== here + steps[event.key]) return;
  event.preventDefault();
  items[there].querySelector("a").focus();
}

function columns(event) {
  const tracks = getComputedStyle(event.currentTarget).gridTemplateColumns;
  return tracks === "none" ? 1 : tracks.split(" ").length;
}
