// Many thousand points on a canvas: where they are on the screen, how they are drawn, which one is
// under the pointer, which lie within an outline. Knows nothing of the service.

const CELLS = 128; // the grid of the pointer's search, per side
const EDGE = 35; // pixels around the points when all are shown
const TOOLS = 60; // and above them, where the buttons are

export class Plot {
  /** Points in the unit square; `colors` are 0xAABBGGRR numbers, one for each point. */
  constructor(xs, ys, colors, canvas) {
    Object.assign(this, { xs, ys, colors, canvas });
    this.size = xs.length;
    this.dimmed = null; // one byte for each point: 1 is drawn faint
    this.image = () => null; // an image to draw instead of the dot, when few are in view
    this.scale = 1; // pixels for the whole unit square
    this.left = 0;
    this.top = 0;
    this.home = 1;
    this.sort();
  }

  /** Points by cell, so that the nearest is found without looking at all. */
  sort() {
    const cell = Int32Array.from(this.xs, (x, i) => cellOf(this.ys[i]) * CELLS + cellOf(x));
    this.starts = new Int32Array(CELLS * CELLS + 1);
    for (const place of cell) this.starts[place + 1] += 1;
    for (let i = 0; i < CELLS * CELLS; i += 1) this.starts[i + 1] += this.starts[i];
    const next = this.starts.slice();
    this.order = new Int32Array(this.size);
    cell.forEach((place, i) => { this.order[next[place]++] = i; });
  }

  /** Follow the canvas' size; the first time, show everything. */
  resize() {
    const box = this.canvas.getBoundingClientRect();
    this.ratio = Math.min(2, devicePixelRatio || 1);
    const first = !this.width;
    this.width = box.width;
    this.height = box.height;
    this.canvas.width = Math.max(1, Math.round(box.width * this.ratio));
    this.canvas.height = Math.max(1, Math.round(box.height * this.ratio));
    if (first) this.fit();
  }

  /** Show everything, with the first row below the buttons. */
  fit() {
    this.home = Math.max(40, Math.min(this.width - 2 * EDGE, this.height - TOOLS - EDGE));
    this.scale = this.home;
    this.left = (this.width - this.scale) / 2;
    this.top = (this.height + TOOLS - EDGE - this.scale) / 2;
  }

  toScreen(x, y) { return [this.left + x * this.scale, this.top + (1 - y) * this.scale]; }
  toUnit(px, py) { return [(px - this.left) / this.scale, 1 - (py - this.top) / this.scale]; }

  move(dx, dy) {
    this.left += dx;
    this.top += dy;
  }

  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const scale = Math.min(this.home * Math.max(6, Math.sqrt(this.size)), Math.max(this.home / 2, this.scale * factor));
    this.left = px - ((px - this.left) * scale) / this.scale;
    this.top = py - ((py - this.top) * scale) / this.scale;
    this.scale = scale;
  }

  /** Bring a point into view when it is outside. */
  reveal(i) {
    const [px, py] = this.toScreen(this.xs[i], this.ys[i]);
    const out = px < 30 || py < 30 || px > this.width - 30 || py > this.height - 30;
    if (out) this.move(this.width / 2 - px, this.height / 2 - py);
  }

  radius() {
    const even = Math.sqrt((this.home * this.home) / this.size) * 0.22;
    return Math.min(6, Math.max(1.3, even) * Math.pow(this.scale / this.home, 0.35));
  }

  visible() {
    const [x0, y1] = this.toUnit(0, 0);
    const [x1, y0] = this.toUnit(this.width, this.height);
    const found = [];
    this.each(x0, y0, x1, y1, (i) => { found.push(i); });
    return found;
  }

  /** Call `act` with every point in a box of the unit square. */
  each(x0, y0, x1, y1, act) {
    for (let row = cellOf(y0); row <= cellOf(y1); row += 1) {
      const from = this.starts[row * CELLS + cellOf(x0)];
      const to = this.starts[row * CELLS + cellOf(x1) + 1];
      for (let place = from; place < to; place += 1) {
        const i = this.order[place];
        if (this.xs[i] >= x0 && this.xs[i] <= x1 && this.ys[i] >= y0 && this.ys[i] <= y1) act(i);
      }
    }
  }

  /** The point nearest to a place on the screen, within `reach` pixels, or -1. */
  nearest(px, py, reach = 14) {
    const [x, y] = this.toUnit(px, py);
    const far = reach / this.scale;
    let best = -1;
    let least = far * far;
    this.each(x - far, y - far, x + far, y + far, (i) => {
      const distance = (this.xs[i] - x) ** 2 + (this.ys[i] - y) ** 2;
      if (distance <= least) [best, least] = [i, distance];
    });
    return best;
  }

  /** The next point from `i` in a direction; steps to the side count three times. */
  neighbor(i, dx, dy) {
    let best = -1;
    let least = Infinity;
    for (let j = 0; j < this.size; j += 1) {
      const along = (this.xs[j] - this.xs[i]) * dx + (this.ys[j] - this.ys[i]) * dy;
      if (along <= 1e-9) continue;
      const aside = Math.abs((this.xs[j] - this.xs[i]) * dy) + Math.abs((this.ys[j] - this.ys[i]) * dx);
      if (along + 3 * aside < least) [best, least] = [j, along + 3 * aside];
    }
    return best;
  }

  /** The points within an outline given as [[x, y], ...] in the unit square. */
  within(outline) {
    const xs = outline.map(([x]) => x);
    const ys = outline.map(([, y]) => y);
    const found = [];
    this.each(Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys), (i) => {
      if (encloses(outline, this.xs[i], this.ys[i])) found.push(i);
    });
    return found.sort((a, b) => a - b);
  }

  draw() {
    const context = this.canvas.getContext("2d");
    const shown = this.visible();
    if (shown.length > 4000) this.stamp(context, shown);
    else this.paint(context, shown);
    return shown.length;
  }

  /** Dots written straight into the pixels: quick enough for every frame of a zoom. */
  stamp(context, shown) {
    const { width, height } = this.canvas;
    if (!this.raster || this.raster.width !== width || this.raster.height !== height) {
      this.raster = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.raster.data.buffer);
    }
    this.pixels.fill(0);
    const rows = discRows(this.radius() * this.ratio);
    const reach = (rows.length - 1) / 2;
    for (const faint of this.dimmed ? [1, 0] : [0]) { // faint ones first, so that the others lie above
      for (const i of shown) {
        if ((this.dimmed?.[i] ?? 0) !== faint) continue;
        const color = faint ? (this.colors[i] & 0xffffff) | 0x26000000 : this.colors[i];
        const px = Math.round((this.left + this.xs[i] * this.scale) * this.ratio);
        const py = Math.round((this.top + (1 - this.ys[i]) * this.scale) * this.ratio);
        for (let dy = -reach; dy <= reach; dy += 1) {
          if (py + dy < 0 || py + dy >= height) continue;
          const half = rows[dy + reach];
          const to = (py + dy) * width + Math.min(width - 1, px + half);
          for (let at = (py + dy) * width + Math.max(0, px - half); at <= to; at += 1) this.pixels[at] = color;
        }
      }
    }
    context.putImageData(this.raster, 0, 0);
  }

  /** Smooth dots, or the images themselves when there is room for them. */
  paint(context, shown) {
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.strokeStyle = getComputedStyle(this.canvas).getPropertyValue("--surface");
    const radius = this.radius();
    const side = shown.length <= 160 ? Math.min(72, Math.max(30, Math.sqrt((this.width * this.height) / shown.length) * 0.42)) : 0;
    for (const i of shown) {
      const [px, py] = this.toScreen(this.xs[i], this.ys[i]);
      const image = side ? this.image(i) : null;
      context.globalAlpha = this.dimmed?.[i] ? 0.15 : 1;
      context.fillStyle = hex(this.colors[i]);
      if (image) {
        context.fillRect(px - side / 2 - 2, py - side / 2 - 2, side + 4, side + 4);
        context.drawImage(image, px - side / 2, py - side / 2, side, side);
      } else {
        context.beginPath();
        context.arc(px, py, radius, 0, 7);
        context.fill();
        context.stroke();
      }
    }
    context.globalAlpha = 1;
  }
}

const cellOf = (value) => Math.min(CELLS - 1, Math.max(0, Math.floor(value * CELLS)));
const hex = (color) => `rgb(${color & 255} ${(color >> 8) & 255} ${(color >> 16) & 255})`;

function discRows(radius) {
  const reach = Math.max(1, Math.round(radius));
  const whole = reach === 1 ? Math.floor : Math.round; // the smallest dot is a cross, not a square
  return Array.from({ length: 2 * reach + 1 }, (_, row) =>
    whole(Math.sqrt(Math.max(0, radius * radius - (row - reach) ** 2))));
}

function encloses(outline, x, y) {
  let inside = false;
  for (let i = 0, j = outline.length - 1; i < outline.length; j = i, i += 1) {
    const [xi, yi] = outline[i];
    const [xj, yj] = outline[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}

/** A color for each group: hues far apart for neighbors in the alphabet, gray for none (-1). */
export function groupColors(groups, dark) {
  const colors = new Uint32Array(groups.length);
  const strength = new Set(groups).size > 40 ? 0.42 : 0.62; // many groups in full color are noise
  groups.forEach((group, i) => {
    if (group < 0) colors[i] = dark ? 0xff8f8d87 : 0xff7d7b74;
    else colors[i] = fromHue((group * 137.508) % 360, (dark ? [0.6, 0.68, 0.76] : [0.42, 0.5, 0.36])[group % 3], strength);
  });
  return colors;
}

function fromHue(hue, lightness, strength) {
  const chroma = strength * Math.min(lightness, 1 - lightness);
  const channel = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (lightness - chroma * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return ((255 << 24) | (channel(4) << 16) | (channel(8) << 8) | channel(0)) >>> 0;
}
