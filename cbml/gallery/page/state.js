// What is shown lives in the address, so that Back, reload, bookmarks and shared links work.

/** Every setting of the page with its default; defaults stay out of the address. */
export const DEFAULTS = Object.freeze({
  view: "images", // images | worst | confusions | compare | map
  query: "", // the number of an image of the gallery
  upload: "", // or the keys of images from this computer, with a dot between
  k: 24,
  sort: "similarity", // or probability
  label: "",
  text: "",
  probability: 0, // results below it are left out
  unique: false, // near-duplicates are hidden
  detail: "", // the number of the image in the detail view
  lasso: "", // the outline drawn on the map
});

const LIMITS = { k: [1, 500], probability: [0, 1] };

/** The state that an address describes; what cannot be understood falls back to its default. */
export function read(search = location.search) {
  const given = new URLSearchParams(search);
  const state = { ...DEFAULTS };
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = given.get(name);
    if (value === null) continue;
    if (typeof usual === "boolean") state[name] = value === "1";
    else if (typeof usual === "number") state[name] = bounded(Number(value), usual, LIMITS[name]);
    else state[name] = value;
  }
  if (!/^\d{0,15}$/.test(state.query)) state.query = "";
  if (!/^\d{0,15}$/.test(state.detail)) state.detail = "";
  if (!["images", "worst", "confusions", "compare", "map"].includes(state.view)) state.view = DEFAULTS.view;
  if (!["similarity", "probability"].includes(state.sort)) state.sort = DEFAULTS.sort;
  return state;
}

function bounded(value, usual, [least, most]) {
  return Number.isFinite(value) ? Math.min(most, Math.max(least, value)) : usual;
}

/** The address of the present state with changes. */
export function address(changes, from = read()) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...from, ...changes })) {
    if (value === DEFAULTS[name]) continue;
    words.set(name, value === true ? "1" : String(value));
  }
  return `?${words}`;
}

let listener = () => {};

/** Call `changed` after every step, forward or back. */
export function listen(changed) {
  listener = changed;
  history.scrollRestoration = "manual";
  addEventListener("popstate", () => changed({ scroll: history.state?.scroll ?? 0 }));
}

/** Go to the present state with changes; `replace` leaves no step for Back. */
export function go(changes, { replace = false } = {}) {
  const before = read();
  const target = address(changes, before);
  if (target === address({}, before)) return;
  if (replace) history.replaceState(history.state, "", target);
  else {
    history.replaceState({ scroll: scrollY }, "");
    history.pushState(null, "", target);
  }
  listener({ scroll: replace || samePlace(before, read()) ? null : 0 });
}

/** Opening a detail or drawing on the map leaves the page where it is. */
function samePlace(before, after) {
  const passing = { detail: "", lasso: "" };
  return address(passing, before) === address(passing, after);
}
