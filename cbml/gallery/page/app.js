// The page: reads the address, asks the view for its content, shows it.
import { Trouble, get, keepToken } from "./api.js";
import { announce, byId, count, element, plural, score } from "./elements.js";
import { bindControls, syncControls } from "./controls.js";
import { bindDetail, syncDetail } from "./detail.js";
import { bindKeys } from "./keys.js";
import { address, listen, read } from "./state.js";
import { limitTo, watch } from "./uploads.js";
import * as compare from "./compare.js";
import * as confusions from "./confusions.js";
import * as map from "./map.js";
import * as images from "./images.js";
import * as worst from "./worst.js";

const VIEWS = { images, worst, confusions, compare, map };

let info = null;
let asked = null; // the request under way
let drawn = null; // the state on the screen, without what the dialogs show
let shown = null; // what Export writes

/** Draw the state of the address; `scroll` is where to go, null stays. */
async function draw({ scroll = null } = {}) {
  const state = read();
  syncControls(state, info);
  const wanted = address({ detail: "" }, state);
  asked?.abort(); // a late answer must not replace what the address says
  document.body.classList.remove("busy");
  if (wanted !== drawn) {
    const mine = (asked = new AbortController());
    document.body.classList.add("busy");
    try {
      info ??= await start(mine.signal);
      const result = await VIEWS[state.view].build(state, info, mine.signal);
      if (mine.signal.aborted) return;
      place(result, wanted);
    } catch (error) {
      if (mine.signal.aborted || error.name === "AbortError") return;
      place({ node: failure(error) }, null);
    }
    asked = null;
    document.body.classList.remove("busy");
    if (scroll !== null) scrollTo(0, scroll);
  }
  syncControls(state, info);
  syncDetail(state, info, shown);
}

function place(result, wanted) {
  const main = byId("main");
  const focused = document.activeElement;
  const inside = main.contains(focused);
  drawn = wanted;
  shown = result.shown ?? null;
  main.replaceChildren(result.node);
  result.ready?.();
  document.title = [result.shown?.title, info?.name ?? "cbml gallery"].filter(Boolean).join(" · ");
  if (inside) (main.contains(focused) ? focused : main).focus({ preventScroll: true });
  announce(result.said ?? "");
}

async function start(signal) {
  const found = await get("info", {}, signal);
  byId("gallery").textContent = found.name;
  limitTo(found.limits.body_bytes);
  const about = [checked(found), trained(found)].filter(Boolean).join(" ");
  byId("about").textContent = about;
  byId("about").hidden = !about;
  totals(found).catch(() => {}); // the images are shown without them
  return found;
}

/** What the probabilities were tested on. */
function checked({ probability_check: check }) {
  if (!check) return "";
  const off = `${(100 * check.error).toFixed(1)} points off on average`;
  const tested = `Match probabilities were tested on ${plural(check.results, "search result")}`;
  if (check.on !== "gallery") return `${tested} for images held out of training: they are ${off}.`;
  return `${tested} of this gallery: fitted to one half of its labels, they are ${off} for the other half.`;
}

/** Whether training images are among what the totals are about, or classes that the model knows. */
function trained({ trained_on: number, known_labels: known, labels, images, has_scores: scored }) {
  const better = scored ? ", so the scores are better than for new images" : "";
  const fresh = known ? ` ${number ? "The other scores" : "Scores"} are for new images of known classes: the model was trained on ${known === labels ? "all" : count(known)} of these ${plural(labels, "label")}.` : "";
  if (number === 0) return `None of these images was used in training.${fresh}`;
  if (number === images && images) return `All of these images were used in training${better}.`;
  if (number > 0) return `${count(number)} of these images were used in training${better}.${fresh}`;
  return scored ? "Whether training images are among these is not known." : "";
}

async function totals(found) {
  const figures = [["images", count(found.images)]];
  if (found.labels) figures.push(["labels", count(found.labels)]);
  show(figures);
  if (!found.has_scores) return;
  const scores = await get("scores");
  const titles = { "recall@1": "Recall@1", "map@r": "MAP@R", r_precision: "R-precision", mrr: "MRR" };
  for (const [name, value] of Object.entries(scores.metrics)) {
    if (name === "recall@1" || !name.startsWith("recall@")) figures.push([titles[name] ?? name, score(value)]);
  }
  show(figures);
}

function show(figures) {
  byId("totals").replaceChildren(...figures.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function tokenForm() {
  const field = element("input", { type: "password", id: "token", autocomplete: "off", required: true, "aria-label": "Token" });
  const keep = (event) => {
    event.preventDefault();
    keepToken(field.value.trim());
    draw({ scroll: 0 });
  };
  return element("form", { class: "notice", submit: keep }, element("h2", {}, "This gallery asks for its token"),
    element("p", {}, "It was printed where cbml serve was started, and is kept until this tab is closed."),
    element("div", { class: "actions" }, field, element("button", { class: "primary" }, "Open")));
}

function failure(error) {
  if (error.status === 401) return tokenForm();
  if (!(error instanceof Trouble)) console.error(error); // a fault of this page
  const again = element("button", { type: "button", class: "primary", click: () => draw({ scroll: 0 }) }, "Try again");
  const home = element("a", { class: "button", href: "?" }, "All images");
  return element("div", { class: "notice", role: "alert" }, element("h2", {}, "That did not work"),
    element("p", {}, error.message), element("div", { class: "actions" }, again, home));
}

listen(draw);
bindControls(() => shown);
bindDetail(() => shown);
bindKeys();
watch();
draw({ scroll: 0 });
