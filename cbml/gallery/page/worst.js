// The queries that fail worst, with what they found instead.
import { get, whenSeen } from "./api.js";
import { count, decimals, element, known, plural, toast } from "./elements.js";
import { emptyLabel } from "./labels.js";
import { address } from "./state.js";
import { grid, tile } from "./tiles.js";

const PAGE = 20;
const STRIP = 8;

export async function build(state, info, signal) {
  if (!info.has_scores) return { node: unlabeled() };
  const found = await get("worst", { offset: 0, limit: PAGE, label: state.label }, signal);
  if (!found.total) return { node: (await emptyLabel(state, signal)) ?? lone(state) };
  const list = element("ol", { class: "worst", "aria-label": "Worst queries" });
  const shown = { title: "Worst queries", address: location.href, facts: { queries: found.total },
    parts: [{ name: "worst", images: found.images }] };
  const perfect = found.images[0].average_precision === 1;
  add(list, found.images, signal);
  const more = element("button", { type: "button", click: next }, "Show more");
  async function next() {
    more.disabled = true; // one press, one page
    try {
      const offset = found.images.length;
      const answer = await get("worst", { offset, limit: PAGE, label: state.label }, signal);
      found.images.push(...answer.images);
      add(list, answer.images, signal);
      more.hidden = found.images.length >= found.total;
    } catch (error) {
      if (error.name !== "AbortError") toast(error.message);
    }
    more.disabled = false;
  }
  more.hidden = found.images.length >= found.total;
  const node = element("section", { "aria-label": "Worst queries" },
    element("div", { class: "title" }, element("h2", {}, perfect ? "No query fails" : "Worst queries first"),
      element("span", { class: "soft" }, perfect ? `Each of ${plural(found.total, "query", "queries")} finds all images of its label before any other.`
        : `${plural(found.total, "query", "queries")} by average precision, each with what it found instead`)),
    list, element("div", { class: "onward" }, more));
  return { node, shown, said: "Worst queries first" };
}

function unlabeled() {
  return element("div", { class: "notice" }, element("h2", {}, "No labels, no verdict"),
    element("p", {}, "This gallery has no labels, so nobody can say which results are relevant. Images in one folder per label get theirs from the folders."));
}

function lone(state) {
  return element("div", { class: "notice" }, element("h2", { class: "wrap" }, `“${state.label}” has no queries`),
    element("p", {}, "Only one image has this label, so a search with it has nothing to find."),
    element("div", { class: "actions" }, element("a", { class: "button primary", href: address({ label: "" }) }, "All labels")));
}

function add(list, queries, signal) {
  for (const query of queries) {
    const strip = element("div", { class: "found" });
    const facts = element("dl", { class: "facts" },
      element("dt", {}, "first hit at rank"), element("dd", {}, known(query.first_hit_rank) ? count(query.first_hit_rank) : "–"),
      element("dt", {}, "average precision"), element("dd", {}, decimals(query.average_precision)),
      element("dt", {}, "same label"), element("dd", {}, count(query.positives)));
    const row = element("li", { class: "row" }, element("ol", {}, tile(query)), facts, strip);
    list.append(row);
    whenSeen(row, () => fill(strip, query, signal));
  }
}

async function fill(strip, query, signal) {
  try {
    const found = await get(`images/${query.id}/search`, { k: STRIP }, signal);
    strip.replaceChildren(grid(found.results, { strip: true, name: `Nearest to ${query.name}` }));
  } catch (error) {
    if (error.name !== "AbortError") strip.textContent = error.message;
  }
}
