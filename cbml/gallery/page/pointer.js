// Mouse, pen and fingers on the map: point, click, lasso, move, wheel and pinch.
import { go } from "./state.js";

/** `hoverAt` gets the point under the pointer or -1, `finish` the corners of a drawn outline. */
export function bindPointer(scene, { hoverAt, finish }) {
  const { plot, top, data } = scene;
  const down = new Map(); // pointers that touch, by their number
  let traveled = 0;

  const place = (event) => {
    const box = top.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  top.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    top.setPointerCapture(event.pointerId);
    down.set(event.pointerId, place(event));
    traveled = 0;
    const draws = down.size === 1 && (scene.tool === "lasso") !== event.shiftKey;
    scene.drawing = draws ? [plot.toUnit(...place(event))] : null;
  });

  top.addEventListener("pointermove", (event) => {
    const here = place(event);
    if (!down.size) {
      scene.held = false;
      hoverAt(plot.nearest(...here));
      return;
    }
    const before = down.get(event.pointerId);
    if (!before) return;
    const [dx, dy] = [here[0] - before[0], here[1] - before[1]];
    traveled += Math.hypot(dx, dy);
    if (down.size > 1) pinch(event.pointerId, before, here);
    else if (scene.drawing) scene.drawing.push(plot.toUnit(...here));
    else plot.move(dx, dy);
    down.set(event.pointerId, here);
    if (traveled > 6) hoverAt(-1);
    scene.redraw();
  });

  /** Two fingers: their distance zooms, their middle moves. */
  function pinch(id, before, here) {
    const [other] = [...down].filter(([key]) => key !== id).map(([, spot]) => spot);
    const apart = (spot) => Math.max(10, Math.hypot(spot[0] - other[0], spot[1] - other[1]));
    plot.zoom(apart(here) / apart(before), (here[0] + other[0]) / 2, (here[1] + other[1]) / 2);
    plot.move((here[0] - before[0]) / 2, (here[1] - before[1]) / 2);
    scene.drawing = null;
  }

  function up(event) {
    if (!down.delete(event.pointerId)) return;
    const corners = scene.drawing;
    scene.drawing = null;
    if (event.type === "pointerup" && traveled < 6) click(event);
    else if (corners?.length > 2 && event.type === "pointerup") finish(corners);
    scene.redraw();
  }
  top.addEventListener("pointerup", up);
  top.addEventListener("pointercancel", up);

  /** A click searches; a finger, which cannot hover, first shows and then searches. */
  function click(event) {
    const i = plot.nearest(...place(event), event.pointerType === "mouse" ? 14 : 24);
    const first = event.pointerType !== "mouse" && i !== scene.point;
    hoverAt(i);
    if (i >= 0 && !first) go({ view: "images", query: String(data.ids[i]), upload: "", lasso: "" });
  }

  top.addEventListener("pointerleave", () => { if (!down.size && !scene.held) hoverAt(-1); });
  top.addEventListener("wheel", (event) => {
    event.preventDefault();
    plot.zoom(Math.exp(-Math.max(-120, Math.min(120, event.deltaY)) * 0.0022), ...place(event));
    hoverAt(-1);
    scene.redraw();
  }, { passive: false });
}
