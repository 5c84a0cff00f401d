// Two models side by side: the same query, both rankings, and how far each image moved.
import { get, send, thumbnail } from "./api.js";
import { count, decimals, element, known, plural, score, toast } from "./elements.js";
import { emptyLabel } from "./labels.js";
import { address } from "./state.js";
import { grid, tile } from "./tiles.js";
import { keptImage } from "./uploads.js";

const PAGE = 48;

export async function build(state, info, signal) {
  if (!info.compare) return { node: alone(info) };
  const sides = info.has_scores ? ["main", "compare"] : [];
  const [ours, theirs] = await Promise.all(sides.map((which) => totals(which, signal)));
  const names = [info.name, info.compare];
  if (!state.query && !state.upload) return overview(state, names, [ours, theirs], signal);
  const blob = state.upload ? await keptImage(state.upload.split(".")[0]) : null;
  if (state.upload && !blob) return { node: ask() };
  const size = { k: Math.min(state.k, info.limits.k) };
  const found = blob ? await send("compare", blob, size, signal) : await get(`compare/${state.query}`, size, signal);
  const left = found.main.results.map((image) => ({ ...image, change: change(image) }));
  const right = found.compare.results.map((image) => ({ ...image, which: "compare", change: change(image) }));
  const query = { ...found.query, name: found.query.name ?? blob?.name ?? "Pasted image", blob };
  const node = element("div", {}, asked(query),
    element("div", { class: "pair" }, column(names[0], ours, found.main.query, left),
      column(names[1], theirs, found.compare.query, right)));
  const shown = { title: `Compared on ${query.name}`, address: location.href, query, facts: {},
    parts: [{ name: names[0], images: left }, { name: names[1], images: right }] };
  return { node, shown, said: `Two rankings for ${query.name}` };
}

async function totals(which, signal) {
  try {
    return await get("scores", which === "main" ? {} : { which }, signal);
  } catch (error) {
    if (error.status === 404) return null; // nothing is labeled
    throw error;
  }
}

/** Where an image stands with the other model, in a word. */
function change({ moved, other_rank: there }) {
  if (!known(moved)) return { way: "", text: "not in the other", spoken: "not ranked by the other model" };
  if (moved === 0) return { way: "", text: "= same rank", spoken: "same rank in the other model" };
  const [way, sign, word] = moved > 0 ? ["up", "▲", "better"] : ["down", "▼", "worse"];
  return { way, text: `${sign} ${count(Math.abs(moved))} (there ${count(there)})`,
    spoken: `${count(Math.abs(moved))} ranks ${word} than in the other model, rank ${count(there)} there` };
}

function asked(query) {
  const source = query.blob ? URL.createObjectURL(query.blob) : thumbnail(query.id, 192);
  return element("div", { class: "asked" },
    element("div", { class: "frame" }, element("img", { src: source, alt: `The query: ${query.name}` })),
    element("div", {}, element("h2", { class: "wrap" }, query.name), query.label != null && element("p", {}, query.label),
      element("div", { class: "actions" }, element("a", { class: "button", href: address({ view: "images" }) }, "This search alone"))));
}

function column(name, totals, query, images) {
  return element("section", { "aria-label": `Model ${name}` }, element("h2", { class: "wrap" }, name),
    figures(totals, query), grid(images, { name: `Nearest by ${name}` }));
}

function figures(totals, query) {
  const rows = [];
  if (totals) rows.push(["Recall@1, all queries", score(totals.metrics["recall@1"])], ["MAP@R, all queries", score(totals.metrics["map@r"])]);
  if (known(query?.first_hit_rank)) rows.push(["first hit at rank", count(query.first_hit_rank)]);
  if (known(query?.average_precision)) rows.push(["average precision", decimals(query.average_precision)]);
  return element("dl", { class: "facts" }, rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function both(names, scores) {
  return element("div", { class: "pair" }, names.map((name, i) =>
    element("section", { "aria-label": `Model ${name}` }, element("h2", { class: "wrap" }, name), figures(scores[i], null))));
}

/** Both models' totals, and the queries on which they differ most. */
async function overview(state, names, scores, signal) {
  const found = scores[0] && scores[1] ? await get("differences", { limit: PAGE, label: state.label }, signal) : { total: 0, images: [] };
  const list = element("ol", { class: "differences", "aria-label": "Largest differences" });
  const shown = { title: "Largest differences", address: location.href, facts: { queries: found.total }, parts: [{ name: "differences", images: found.images }] };
  const more = element("button", { type: "button", click: next }, "Show more");
  const add = (images) => {
    list.append(...images.map((image) => difference(image, names)));
    more.hidden = found.images.length >= found.total;
  };
  async function next() {
    more.disabled = true; // one press, one page
    try {
      const answer = await get("differences", { limit: PAGE, offset: found.images.length, label: state.label }, signal);
      found.images.push(...answer.images);
      add(answer.images);
    } catch (error) {
      if (error.name !== "AbortError") toast(error.message);
    }
    more.disabled = false;
  }
  add(found.images);
  const empty = found.total === 0 && state.label && (await emptyLabel(state, signal));
  const part = found.total ? element("section", { "aria-label": "Largest differences" },
    element("div", { class: "title" }, element("h2", {}, "Where the two models differ most"),
      element("span", { class: "soft" }, `${plural(found.total, "query", "queries")} by the change of average precision; click one to see both rankings`)),
    list, element("div", { class: "onward" }, more)) : empty || ask();
  return { node: element("div", {}, both(names, scores), part), shown, said: "Where the two models differ most" };
}

function difference(image, names) {
  const gain = image.other_average_precision - image.average_precision;
  const change = { way: gain > 0 ? "up" : "down", text: `${gain > 0 ? "▲" : "▼"} ${decimals(Math.abs(gain))} with ${names[1]}`,
    spoken: `average precision ${decimals(image.average_precision)} with ${names[0]}, ${decimals(image.other_average_precision)} with ${names[1]}` };
  const item = tile({ ...image, change });
  item.querySelector(".caption").append(element("div", { class: "numbers" }, `${decimals(image.average_precision)} → ${decimals(image.other_average_precision)}`));
  return item;
}

function ask() {
  return element("div", { class: "notice" }, element("h2", {}, "Which image shall both models search with?"),
    element("p", {}, "Drop one, or choose among the images and press “Compare”."),
    element("div", { class: "actions" }, element("a", { class: "button primary", href: "?" }, "All images"),
      element("a", { class: "button", href: "?view=worst" }, "Worst queries")));
}

function alone(info) {
  return element("div", { class: "notice" }, element("h2", {}, "One model is served"),
    element("p", {}, "Index the same images with a second run and serve both galleries to see how ranks move:"),
    element("pre", {}, `${info.program} serve ${info.folder} --compare OTHER_GALLERY`));
}
