// An image with its caption, and grids of them that the arrow keys walk through.
import { address, read } from "./state.js";
import { thumbnail } from "./api.js";
import { count, decimals, element, known, percent } from "./elements.js";

/** One image of a grid: a link that searches with it, and a button for its details. */
export function tile(image) {
  const { relevant, rank } = image;
  const verdict = relevant === true ? "relevant" : relevant === false ? "irrelevant" : "";
  const link = element("a", { href: searchWith(image), title: image.name, "aria-label": spoken(image) },
    element("div", { class: "frame" }, small(image)),
    known(rank) && element("span", { class: "rank", "aria-hidden": "true" }, count(rank)),
    verdict && element("span", { class: "verdict", "aria-hidden": "true" }, relevant ? "✓" : "✗"),
    image.duplicate && element("span", { class: "copy", "aria-hidden": "true" }, "≈", element("span", { class: "word" }, " duplicate")));
  return element("li", { class: `tile ${verdict}` }, link, caption(image));
}

/** The address of a search; searching from the comparison stays a comparison. */
function searchWith(image) {
  const id = image.which ? image.other_id : image.id;
  if (id === null) return null; // only the other gallery has it
  const view = read().view === "compare" ? "compare" : "images";
  return address({ view, query: String(id), upload: "", detail: "", lasso: "" });
}

function small(image) {
  const [narrow, wide] = [192, 384].map((size) => thumbnail(image.id, size, image.which));
  return element("img", { srcset: `${narrow} 192w, ${wide} 384w`, sizes: "160px", src: narrow, alt: "", loading: "lazy",
    decoding: "async", width: 192, height: 192, error: (event) => event.target.classList.add("broken") });
}

function more(image) {
  return element("button", { type: "button", class: "more", "aria-label": `Details of ${image.name}`,
    title: "Details (D)", "data-detail": image.id }, "⋯");
}

/** A label in one line, of a nested one that is too long the last part; of a file name in a folder, the end. */
function name(image) {
  const text = image.label ?? image.name, last = text.lastIndexOf("/") + 1;
  if (image.label != null && last > 0) {
    return element("span", { class: "name nested" }, element("bdi", {}, text.slice(0, last)), element("bdi", {}, text.slice(last)));
  }
  return element("span", { class: last > 0 ? "name path" : "name" }, element("bdi", {}, text));
}

function caption(image) {
  const numbers = [
    known(image.probability) && element("b", {}, percent(image.probability)),
    known(image.similarity) && decimals(image.similarity),
  ].filter(Boolean).flatMap((part, i) => (i ? [" · ", part] : [part]));
  return element("div", { class: "caption" },
    element("div", { class: "line" }, name(image), !image.which && more(image)),
    numbers.length > 0 && element("div", { class: "numbers" }, numbers),
    image.change && element("div", { class: `moved ${image.change.way}` }, image.change.text));
}

/** What a screen reader says of an image. */
export function spoken(image) {
  const parts = [`Search with ${image.name}`];
  if (known(image.rank)) parts.unshift(`Rank ${image.rank}`);
  if (image.label != null) parts.push(`label ${image.label}`);
  if (image.relevant != null) parts.push(image.relevant ? "same label as the query" : "another label than the query");
  if (known(image.probability)) parts.push(`match probability ${percent(image.probability)}`);
  if (known(image.similarity)) parts.push(`similarity ${decimals(image.similarity)}`);
  if (image.duplicate) parts.push("near-duplicate");
  if (image.change) parts.push(image.change.spoken);
  return parts.join(", ");
}

/** A grid of images; one Tab stop for all of them, arrow keys within. */
export function grid(images, options = {}) {
  const list = element("ol", { class: options.strip ? "strip" : "grid", "aria-label": options.name ?? "Images",
    keydown: walk, focusin: settle });
  extend(list, images);
  return list;
}

/** Put more images at the end of a grid. */
export function extend(list, images) {
  const items = images.map(tile);
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
