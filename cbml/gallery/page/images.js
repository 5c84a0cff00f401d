// The first view: all images, or those nearest to the query with the positives it missed.
import { blobOf, get, original, send, thumbnail } from "./api.js";
import { commandBlock, searchCommand } from "./commands.js";
import { clearFilters } from "./controls.js";
import { openCrop } from "./crop.js";
import { count, decimals, element, known, percent, plural } from "./elements.js";
import { emptyLabel } from "./labels.js";
import { address } from "./state.js";
import { extend, grid } from "./tiles.js";
import { keptImage, pick } from "./uploads.js";

const PAGE = 120;

export function build(state, info, signal) {
  if (state.upload.includes(".")) return byUploads(state, info, signal);
  if (state.upload) return byUpload(state, info, signal);
  return state.query ? byImage(state, info, signal) : browse(state, info, signal);
}

async function browse(state, info, signal) {
  const filters = { label: state.label, text: state.text, limit: PAGE };
  const found = await get("images", { ...filters, offset: 0 }, signal);
  if (!info.images) return { node: emptyGallery(info) };
  if (!found.total) return { node: (await emptyLabel(state, signal)) ?? nothing(), said: "No image matches." };
  const filtered = Boolean(state.label || state.text);
  const list = grid(found.images, { name: "All images" });
  const shown = { title: filtered ? "Filtered images" : "Images", facts: { images: found.total },
    address: location.href, parts: [{ name: "images", images: found.images }] };
  const title = element("div", { class: "title" },
    element("h2", {}, filtered ? plural(found.total, "matching image") : "All images"),
    element("span", { class: "soft" }, "click one to search with it"));
  const more = (offset) => get("images", { ...filters, offset }, signal);
  const node = element("div", {}, !filtered && welcome(info),
    element("section", { "aria-label": "Images" }, title, list, onward(list, found, shown, more)));
  return { node, shown, said: plural(found.total, "image") };
}

function welcome(info) {
  return element("div", { class: "welcome" },
    element("div", {},
      element("h2", {}, `Search ${plural(info.images, "image")} by looking`),
      element("p", {}, "Drop images anywhere, paste them, or choose some: the nearest images come back",
        info.has_probability ? ", each with the probability that it shows the same thing." : ".")),
    element("button", { type: "button", click: pick }, "Choose images"));
}

/** A button for the next images that presses itself when it comes into view. */
function onward(list, found, shown, more) {
  const button = element("button", { type: "button" });
  const holder = element("div", { class: "onward" }, button);
  const known = shown.parts[0].images; // the kept answer itself: it grows, so that Back finds the same length
  const label = () => {
    button.textContent = `Show more (${count(found.total - known.length)} left)`;
    holder.hidden = known.length >= found.total;
  };
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const next = await more(known.length);
      known.push(...next.images);
      extend(list, next.images);
      label();
    } catch (error) {
      if (error.name !== "AbortError") button.textContent = `${error.message} Try again`;
    }
    button.disabled = false;
  });
  const watcher = new IntersectionObserver(([entry]) => {
    // A few pages come by themselves; then the foot of the page must be reachable.
    if (entry.isIntersecting && known.length < 6 * PAGE && !button.disabled) button.click();
  }, { rootMargin: "600px" });
  watcher.observe(holder);
  label();
  return holder;
}

function emptyGallery(info) {
  return element("div", { class: "notice" }, element("h2", {}, "This gallery has no images yet"),
    element("p", {}, "Fill it from a trained run and a folder of images, then reload:"),
    element("pre", {}, `${info.program} index RUN IMAGES --out ${info.folder}`));
}

function nothing() {
  return element("div", { class: "notice" }, element("h2", {}, "No image matches"),
    element("p", {}, "Try fewer letters, another label, or a lower probability."),
    element("div", { class: "actions" },
      element("button", { type: "button", class: "primary", click: clearFilters }, "Clear filters")));
}

async function byImage(state, info, signal) {
  const found = await get(`images/${state.query}/search`, parameters(state, info), signal);
  const { id } = found.query;
  const query = { ...found.query, source: thumbnail(id, 384), bytes: () => blobOf(original(id)) };
  return results(state, info, found, query, { ids: [id] }, signal);
}

async function byUpload(state, info, signal) {
  const blob = await keptImage(state.upload);
  if (!blob) return { node: lost() };
  const found = await send("search", blob, parameters(state, info), signal);
  const name = blob.name || "pasted.png";
  return results(state, info, found, { name, blob, source: URL.createObjectURL(blob), bytes: async () => blob }, { names: [name] }, signal);
}

/** Several images from this computer: a row of nearest images for each. */
async function byUploads(state, info, signal) {
  const keys = state.upload.split(".");
  const blobs = await Promise.all(keys.map(keptImage));
  if (!blobs.every(Boolean)) return { node: lost() };
  const names = blobs.map((blob) => blob.name || "pasted.png");
  const answers = await Promise.all(blobs.map((blob) => send("search", blob, parameters(state, info), signal)));
  const rows = answers.map((found, i) => {
    const source = URL.createObjectURL(blobs[i]);
    return element("li", { class: "row" },
      element("div", { class: "asking" }, element("div", { class: "frame" },
        element("img", { src: source, alt: `The query: ${names[i]}`, load: () => URL.revokeObjectURL(source) })),
        element("h3", { class: "wrap" }, names[i]), element("a", { href: address({ upload: keys[i] }) }, "This search alone")),
      element("div", { class: "found" }, unlikely(found),
        found.results.length ? grid(found.results, { strip: true, name: `Nearest to ${names[i]}` }) : element("p", {}, "No image matches the filters.")));
  });
  const shown = { title: `Nearest to ${plural(names.length, "image")}`, address: location.href, facts: { queries: names.length },
    parts: answers.map((found, i) => ({ name: names[i], images: found.results })) };
  const node = element("section", { "aria-label": "Nearest images" },
    element("div", { class: "title" }, element("h2", {}, `${plural(names.length, "query image")}`),
      element("span", { class: "soft" }, `the nearest of ${plural(info.images, "image")} to each`)),
    element("ol", { class: "queries" }, rows), commandBlock(searchCommand(info, state, { names })));
  return { node, shown, said: shown.title };
}

function lost() {
  return element("div", { class: "notice" }, element("h2", {}, "The image of this link is on another computer"),
    element("p", {}, "Images you search with stay in your own browser. Choose it again to search with it here."),
    element("div", { class: "actions" },
      element("button", { type: "button", class: "primary", click: pick }, "Choose an image"),
      element("a", { class: "button", href: address({ upload: "" }) }, "All images")));
}

function parameters(state, info) {
  return { k: Math.min(state.k, info.limits.k), label: state.label, text: state.text,
    min_probability: info.has_probability && state.probability ? state.probability : "", hide_duplicates: state.unique,
    sort: info.has_probability && state.sort === "probability" ? "probability" : "" };
}

async function results(state, info, found, query, asked, signal) {
  const facts = figures(query);
  const shown = { title: `Nearest to ${query.name}`, address: location.href, query, facts: { label: query.label ?? "unknown", ...Object.fromEntries(facts) },
    parts: [{ name: "nearest", images: found.results }, { name: "missed", images: found.missed ?? [] }] };
  const command = commandBlock(searchCommand(info, state, asked));
  const empty = found.results.length ? null : (await emptyLabel(state, signal)) ?? nothing();
  const body = element("div", {}, empty ?? nearest(state, found), missed(found));
  const node = element("div", { class: "search" }, panel(info, query, facts, command), body);
  return { node, shown, said: `${plural(found.results.length, "image")} nearest to ${query.name}` };
}

/** First-hit rank and average precision where the query has a label. */
function figures(query) {
  const facts = [];
  if (known(query.positives)) facts.push(["same label", count(query.positives)]);
  if (query.positives > 0) {
    facts.push(["first hit at rank", known(query.first_hit_rank) ? count(query.first_hit_rank) : "–"]);
    facts.push(["average precision", decimals(query.average_precision)]);
  }
  return facts;
}

function panel(info, query, facts, command) {
  const image = element("img", { src: query.source, alt: `The query: ${query.name}`,
    load: () => URL.revokeObjectURL(query.source) });
  const compare = info.compare &&
    element("a", { class: "button", href: address({ view: "compare", detail: "" }) }, "Compare");
  const details = query.id !== undefined &&
    element("button", { type: "button", "data-detail": query.id }, "Details");
  const crop = element("button", { type: "button", click: () => openCrop(query.bytes, query.name) }, "Crop");
  // Only in this browser: for the command it has to be a file.
  const made = query.blob && /-crop\.png$|^pasted\.png$/.test(query.name) &&
    element("button", { type: "button", click: () => keepFile(query) }, "Save image");
  return element("aside", { class: "query", "aria-label": "Query" },
    element("div", { class: "frame" }, image),
    element("div", {}, element("h2", {}, query.name), query.label != null && element("p", { class: "wrap" }, query.label),
      element("dl", { class: "facts" }, facts.flatMap(([name, value]) =>
        [element("dt", {}, name), element("dd", {}, String(value))]))),
    element("div", { class: "actions" }, crop, details, compare, made,
      element("a", { class: "button", href: address({ query: "", upload: "" }) }, "All images")), command);
}

function keepFile({ blob, name }) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A word where no result is more likely right than wrong. */
function unlikely({ results: found }) {
  const best = Math.max(...found.map((image) => image.probability ?? Infinity));
  if (!found.length || best >= 0.5) return null;
  return element("p", { class: "unlikely", role: "note" }, element("b", {}, "Nothing here is likely to show the same thing."),
    ` The most probable result has a chance of ${percent(best)}.`);
}

function nearest(state, found) {
  const relevant = found.results.filter((image) => image.relevant === true).length;
  const note = [
    found.results.some((image) => image.relevant != null) && `${count(relevant)} with the query's label`,
    state.sort === "probability" && "most probable first",
    found.hidden_duplicates && `${plural(found.hidden_duplicates, "near-duplicate")} hidden`,
    `of ${count(found.searched)} in ${Math.max(1, Math.round(found.took_ms))} ms`,
  ].filter(Boolean).join(" · ");
  return element("section", { "aria-label": "Nearest images" },
    element("div", { class: "title" }, element("h2", {}, `${plural(found.results.length, "nearest image")}`),
      element("span", { class: "soft" }, note)),
    unlikely(found), grid(found.results, { name: "Nearest images" }));
}

function missed(found) {
  if (!found.missed?.length) return null;
  const note = "the query's label, but not among the results";
  return element("section", { "aria-label": "Missed positives" },
    element("div", { class: "title" }, element("h2", {}, "Missed positives"), element("span", { class: "soft" }, note)),
    grid(found.missed, { name: "Missed positives" }));
}
