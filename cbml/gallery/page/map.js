// All images as points, near ones close together; a lasso picks some out.
import { get, showImage, thumbnail } from "./api.js";
import { openDetail } from "./detail.js";
import { announce, count, element, plural } from "./elements.js";
import { emptyLabel, spelled } from "./labels.js";
import { Plot, groupColors } from "./plot.js";
import { address, go } from "./state.js";
import { grid } from "./tiles.js";
import { bindPointer } from "./pointer.js";

const LIST = 60; // images shown of a selection
const MOST = 48; // corners of an outline, so that it fits into the address

export async function build(state, info, signal) {
  if (!info.has_map) return { node: missing() };
  const data = await get("map", {}, signal);
  const unknown = state.label && (await emptyLabel(state, signal));
  if (unknown) return { node: unknown };
  const outline = parse(state.lasso);
  const scene = sceneOf(data, state);
  const found = outline ? scene.plot.within(outline).filter((i) => !scene.plot.dimmed?.[i]) : [];
  const images = await described(data, found.slice(0, LIST), signal);
  scene.outline = outline;
  const shown = { title: "Map selection", address: location.href, facts: { selected: found.length },
    parts: [{ name: "selected", images }] };
  const held = document.activeElement === scene.top; // moving an element takes the focus from it
  const node = element("div", { class: "map" }, scene.node, chosen(data, found, images));
  const ready = () => {
    if (held) scene.top.focus({ preventScroll: true });
    scene.redraw();
  };
  return { node, shown, ready, said: outline ? `${plural(found.length, "image")} within the outline` : "Map" };
}

function missing() {
  return element("div", { class: "notice" }, element("h2", {}, "This gallery has no map"),
    element("p", {}, "A map needs at least two images; it is drawn when the gallery is built."));
}

/** Names and labels of some points, asked one by one: a selection is small. */
function described(data, places, signal) {
  return Promise.all(places.map((i) => get(`images/${data.ids[i]}`, {}, signal)));
}

let last = null; // the scene on the screen, so that zoom and place survive a selection

function sceneOf(data, state) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  if (last?.data !== data || last.label !== state.label || last.dark !== dark) last = makeScene(data, state.label, dark);
  return last;
}

function makeScene(data, label, dark) {
  const base = element("canvas", { "aria-hidden": "true" });
  const top = element("canvas", { tabindex: "0", role: "application", "aria-label":
    "Map of all images. Arrow keys go from image to image, Enter searches, D shows details, plus and minus zoom, S selects what is in view." });
  const hover = element("div", { class: "hover", hidden: true, "aria-hidden": "true" });
  const unit = (values) => Float64Array.from(values, (value) => value / 65535);
  const plot = new Plot(unit(data.x), unit(data.y), groupColors(data.labels, dark), base);
  const wanted = data.label_names.indexOf(spelled(data.label_names, label));
  if (label) plot.dimmed = Uint8Array.from(data.labels, (each) => Number(each !== wanted));
  const scene = { plot, data, label, dark, top, hover, outline: null, point: -1, tool: "lasso" };
  scene.node = element("div", { class: "plot" }, tools(scene), base, top, hover);
  plot.image = imageSource(scene);
  scene.redraw = onceAFrame(() => { plot.draw(); overlay(scene); });
  new ResizeObserver(() => { if (base.isConnected) { plot.resize(); scene.redraw(); } }).observe(base);
  bindPointer(scene, { hoverAt: (i) => show(scene, i), finish: (corners) => go({ lasso: write(corners) }) });
  top.addEventListener("keydown", (event) => keys(event, scene));
  return scene;
}

function onceAFrame(act) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; act(); });
  };
}

/** Thumbnails for the points in view, once they are few; each is asked for once. */
function imageSource(scene) {
  const images = new Map();
  return (i) => {
    if (!images.has(i)) {
      const image = new Image();
      image.onload = () => scene.redraw();
      showImage(image, thumbnail(scene.data.ids[i], 96));
      images.set(i, image);
    }
    const image = images.get(i);
    return image.complete && image.naturalWidth ? image : null;
  };
}

function tools(scene) {
  const choice = (name, text) => element("button", { type: "button", "aria-pressed": String(scene.tool === name), "data-tool": name,
    click: () => choose(scene, name) }, text);
  const act = (name, text, work) => element("button", { type: "button", "aria-label": name, title: name,
    click: () => { work(); scene.redraw(); } }, text);
  return element("div", { class: "tools", role: "toolbar", "aria-label": "Map tools" }, choice("lasso", "Lasso"), choice("move", "Move"),
    act("Zoom in", "+", () => scene.plot.zoom(1.6)), act("Zoom out", "−", () => scene.plot.zoom(1 / 1.6)),
    act("Show all", "All", () => scene.plot.fit()), act("Select what is in view", "Select view", () => selectView(scene)));
}

function choose(scene, tool) {
  scene.tool = tool;
  scene.node.classList.toggle("move", tool === "move");
  for (const button of scene.node.querySelectorAll("[data-tool]")) button.setAttribute("aria-pressed", String(button.dataset.tool === tool));
}

function selectView({ plot }) {
  const corners = [[0, 0], [plot.width, 0], [plot.width, plot.height], [0, plot.height]];
  go({ lasso: write(corners.map(([x, y]) => plot.toUnit(x, y))) });
}

/** The upper canvas: the outline, and a ring around the point under the pointer. */
function overlay({ plot, top, outline, drawing, point }) {
  [top.width, top.height] = [plot.canvas.width, plot.canvas.height];
  const context = top.getContext("2d");
  const style = getComputedStyle(top);
  context.setTransform(plot.ratio, 0, 0, plot.ratio, 0, 0);
  context.strokeStyle = style.getPropertyValue("--accent");
  context.lineWidth = 2.5;
  const corners = drawing ?? outline;
  if (corners?.length > 1) {
    context.beginPath();
    for (const [x, y] of corners) context.lineTo(...plot.toScreen(x, y));
    context.closePath();
    context.globalAlpha = 0.12;
    context.fillStyle = context.strokeStyle;
    context.fill();
    context.globalAlpha = 1;
    context.stroke();
  }
  if (point >= 0) {
    context.strokeStyle = style.getPropertyValue("--ink");
    context.beginPath();
    context.arc(...plot.toScreen(plot.xs[point], plot.ys[point]), plot.radius() + 5, 0, 7);
    context.stroke();
  }
}

/** Show the image of a point beside it; -1 hides. */
function show(scene, i) {
  if (i === scene.point) return;
  const { plot, data, hover } = scene;
  scene.point = i;
  scene.redraw();
  hover.hidden = i < 0;
  if (i < 0) return;
  const label = data.label_names[data.labels[i]] ?? `Image ${data.ids[i]}`;
  hover.replaceChildren(element("img", { src: thumbnail(data.ids[i], 192), alt: "", width: 134, height: 134 }), element("div", {}, label));
  const [px, py] = plot.toScreen(plot.xs[i], plot.ys[i]);
  hover.style.left = `${Math.max(4, px + 164 > plot.width ? px - 164 : px + 16)}px`;
  hover.style.top = `${Math.max(4, Math.min(py - 40, plot.height - 186))}px`;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

function keys(event, scene) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { plot, data, point } = scene;
  if (event.key in ARROWS) step(scene, ARROWS[event.key]);
  else if (event.key === "+" || event.key === "=") plot.zoom(1.4);
  else if (event.key === "-") plot.zoom(1 / 1.4);
  else if (event.key === "0") plot.fit();
  else if (event.key === "s") selectView(scene);
  else if (event.key === "Escape") go({ lasso: "" });
  else if (event.key === "Enter" && point >= 0) go({ view: "images", query: String(data.ids[point]), upload: "", lasso: "" });
  else if (event.key === "d" && point >= 0) openDetail(data.ids[point]);
  else return;
  event.preventDefault();
  event.stopPropagation();
  scene.redraw();
}

function step(scene, [dx, dy]) {
  const { plot, data, point } = scene;
  const next = point < 0 ? plot.nearest(plot.width / 2, plot.height / 2, Infinity) : plot.neighbor(point, dx, dy);
  if (next < 0) return;
  scene.held = true; // the pointer leaving does not take it away
  plot.reveal(next);
  show(scene, next);
  announce(`Image ${data.ids[next]}, ${data.label_names[data.labels[next]] ?? "no label"}`);
}

function chosen(data, found, images) {
  if (!found.length) {
    return element("aside", { class: "chosen", "aria-label": "Selection" }, element("h2", {}, plural(data.ids.length, "image")),
      element("p", {}, "Near points look alike to the model. Point at one to see it, click to search with it, draw around some to list them, turn the wheel to zoom."));
  }
  const kinds = new Set(found.map((i) => data.labels[i]).filter((label) => label >= 0));
  return element("aside", { class: "chosen", "aria-label": "Selection" }, element("h2", {}, `${plural(found.length, "image")} selected`),
    element("p", {}, kinds.size ? `${plural(kinds.size, "label")}. ` : "", found.length > LIST ? `The first ${count(LIST)} are listed.` : ""),
    element("div", { class: "actions" }, element("a", { class: "button", href: address({ lasso: "" }) }, "Clear outline")),
    grid(images, { name: "Selected images" }));
}

/** Outlines in the address: corners in thousandths, "120_450.130_460.…". */
function write(corners) {
  const every = Math.max(1, Math.ceil(corners.length / MOST));
  const kept = corners.filter((_, i) => i % every === 0);
  return kept.map((corner) => corner.map((value) => Math.round(value * 1000)).join("_")).join(".");
}

function parse(text) {
  const corners = text.split(".").map((corner) => corner.split("_").map((value) => Number(value) / 1000));
  const sound = corners.length > 2 && corners.every((corner) => corner.length === 2 && corner.every(Number.isFinite));
  return sound ? corners : null;
}
