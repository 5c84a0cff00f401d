// Which labels are taken for which: the nearest image of a query has another label than the query.
import { get } from "./api.js";
import { count, element, plural, toast } from "./elements.js";
import { emptyLabel } from "./labels.js";
import { address } from "./state.js";
import { tile } from "./tiles.js";

const PAGE = 20;

export async function build(state, info, signal) {
  if (!info.has_scores) return { node: notice("No labels, no confusions", "This gallery has no two images of one label, so nothing can be taken for something else.") };
  const found = await get("confusions", { limit: PAGE, label: state.label }, signal);
  if (!found.total) return { node: await empty(state, info, signal), said: "No confusions" };
  const list = element("ol", { class: "confusions", "aria-label": "Confusions" });
  const shown = { title: "Confusions", address: location.href, facts: { errors: found.errors }, parts: [] };
  const more = element("button", { type: "button", click: next }, "Show more");
  const listed = [];
  const add = (confusions) => {
    listed.push(...confusions);
    list.append(...confusions.map((one) => row(one)));
    for (const one of confusions) shown.parts.push(part(one));
    more.hidden = listed.length >= found.total;
  };
  async function next() {
    more.disabled = true; // one press, one page
    try {
      add((await get("confusions", { limit: PAGE, offset: listed.length, label: state.label }, signal)).confusions);
    } catch (error) {
      if (error.name !== "AbortError") toast(error.message);
    }
    more.disabled = false;
  }
  add(found.confusions);
  const node = element("section", { "aria-label": "Confusions" },
    element("div", { class: "title" }, element("h2", {}, "Labels that are confused"),
      element("span", { class: "soft" }, `the nearest image has another label for ${plural(found.errors, "query", "queries")}, in ${plural(found.total, "pair")} of labels`)),
    list, element("div", { class: "onward" }, more));
  return { node, shown, said: `${plural(found.total, "pair")} of labels are confused` };
}

const part = (one) => ({ name: `${one.label} taken for ${one.taken_for}`,
  images: one.examples.flatMap(({ query, nearest }) => [query, nearest]) });

function row({ label, taken_for: other, count: times, examples }) {
  const only = (name) => element("a", { class: "wrap", href: address({ label: name }) }, name);
  const pairs = examples.map(({ query, nearest }) => element("li", { class: "example" },
    element("ul", {}, tile(query), element("li", { class: "arrow", "aria-label": "is nearest to" }, "→"), tile(nearest))));
  return element("li", { class: "row" },
    element("div", {}, element("h3", { class: "wrap" }, only(label), " taken for ", only(other)),
      element("p", {}, times === 1 ? "once" : `${count(times)} times`)),
    element("ol", { class: "examples", "aria-label": `${label} taken for ${other}` }, pairs));
}

async function empty(state, info, signal) {
  if (state.label) {
    const unknown = await emptyLabel(state, signal);
    return unknown ?? notice(`“${state.label}” is not confused`, "No image of this label is taken for another, and none of another for it.");
  }
  return notice("No confusions", `The nearest image of every query has its label. Galleries made by an earlier version are looked through once ${info.program} index has run again.`);
}

function notice(title, text) {
  return element("div", { class: "notice" }, element("h2", {}, title), element("p", {}, text),
    element("div", { class: "actions" }, element("a", { class: "button", href: "?" }, "All images")));
}
