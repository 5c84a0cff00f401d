// A part of the query image, chosen with the pointer or the arrow keys, as a query of its own.
import { element, toast } from "./elements.js";
import { searchWith } from "./uploads.js";

const LEAST = 0.05; // of the image's side
const LONGEST = 2048; // pixels: models see far fewer

/** Let somebody choose a part of an image; `blob` gives its bytes. */
export async function openCrop(blob, name) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(await blob());
  } catch {
    toast("This image cannot be opened here.");
    return;
  }
  const selection = { bitmap, name, box: [0.2, 0.2, 0.8, 0.8] };
  const canvas = element("canvas", { width: bitmap.width, height: bitmap.height });
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  const scale = Math.min(6, Math.min(860, innerWidth - 80) / bitmap.width, (0.6 * innerHeight) / bitmap.height);
  canvas.style.width = `${bitmap.width * scale}px`; // small images large enough to draw on
  selection.frame = element("div", { class: "part", tabindex: "0", role: "application",
    "aria-label": "Part of the image. Arrow keys move it, with Shift they change its size, Enter searches.", keydown: (event) => keys(event, selection) });
  selection.stage = element("div", { class: "stage" }, canvas, selection.frame);
  selection.dialog = element("dialog", { class: "crop", "aria-labelledby": "crop-title", close: () => selection.dialog.remove() },
    element("div", { class: "title" }, element("h2", { id: "crop-title" }, "Search with a part"),
      element("div", { class: "actions" }, element("button", { type: "button", class: "quiet", click: () => selection.dialog.close() }, "Close"))),
    element("p", {}, "Draw a rectangle around what you are looking for."), selection.stage,
    element("div", { class: "actions" }, element("button", { type: "button", class: "primary", click: () => search(selection) }, "Search with this part")));
  bindPointer(selection);
  document.body.append(selection.dialog);
  selection.dialog.showModal();
  place(selection, selection.box);
  selection.frame.focus();
}

/** Corners in order, inside the image, not too close together. */
function place(selection, [x0, y0, x1, y1]) {
  const span = (a, b) => {
    const low = Math.max(0, Math.min(a, b, 1 - LEAST));
    return [low, Math.min(1, Math.max(a, b, low + LEAST))];
  };
  const [[left, right], [top, bottom]] = [span(x0, x1), span(y0, y1)];
  selection.box = [left, top, right, bottom];
  const sides = { left, top, width: right - left, height: bottom - top };
  for (const [side, value] of Object.entries(sides)) selection.frame.style[side] = `${100 * value}%`;
}

function bindPointer(selection) {
  const { stage } = selection;
  let start = null;
  const spot = (event) => {
    const box = stage.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  };
  stage.addEventListener("pointerdown", (event) => {
    stage.setPointerCapture(event.pointerId);
    start = spot(event);
    event.preventDefault();
    selection.frame.focus();
  });
  stage.addEventListener("pointermove", (event) => { if (start) place(selection, [...start, ...spot(event)]); });
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, () => { start = null; });
}

function keys(event, selection) {
  const steps = { ArrowLeft: [-0.02, 0], ArrowRight: [0.02, 0], ArrowUp: [0, -0.02], ArrowDown: [0, 0.02] };
  if (event.key === "Enter") search(selection);
  if (!(event.key in steps)) return;
  event.preventDefault();
  const [dx, dy] = steps[event.key];
  const [x0, y0, x1, y1] = selection.box;
  if (event.shiftKey) place(selection, [x0, y0, x1 + dx, y1 + dy]);
  else if (x0 + dx >= -1e-9 && x1 + dx <= 1 + 1e-9 && y0 + dy >= -1e-9 && y1 + dy <= 1 + 1e-9) place(selection, [x0 + dx, y0 + dy, x1 + dx, y1 + dy]);
}

async function search({ bitmap, name, box: [x0, y0, x1, y1], dialog }) {
  const [left, top] = [Math.round(x0 * bitmap.width), Math.round(y0 * bitmap.height)];
  const [width, height] = [Math.max(1, Math.round(x1 * bitmap.width) - left), Math.max(1, Math.round(y1 * bitmap.height) - top)];
  const scale = Math.min(1, LONGEST / Math.max(width, height));
  const canvas = element("canvas", { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) });
  canvas.getContext("2d").drawImage(bitmap, left, top, width, height, 0, 0, canvas.width, canvas.height);
  const part = await new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  dialog.close();
  const base = name.split("/").at(-1).replace(/(-crop)?\.[^.]*$/, "");
  searchWith([new File([part], `${base}-crop.png`, { type: "image/png" })]);
}
