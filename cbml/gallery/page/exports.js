// What is on the screen, as a file: a table, data, or one page with its images inside.
import { blobOf, thumbnail } from "./api.js";
import { decimals, known, percent, toast } from "./elements.js";

const COLUMNS = ["part", "rank", "id", "name", "label", "similarity", "probability", "relevant"];

/** Save `shown` ({title, address, facts, parts: [{name, images}]}) as csv, json or html. */
export async function save(kind, shown) {
  if (!shown || !shown.parts.some((part) => part.images.length)) {
    toast("There is nothing to export yet.");
    return;
  }
  const writers = { csv: table, json: data, html: page };
  const types = { csv: "text/csv", json: "application/json", html: "text/html" };
  const text = await writers[kind](shown);
  const url = URL.createObjectURL(new Blob([text], { type: `${types[kind]};charset=utf-8` }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `${fileName(shown.title)}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const fileName = (title) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "cbml";

function rows(shown) {
  return shown.parts.flatMap((part) => part.images.map((image) =>
    Object.fromEntries(COLUMNS.map((name) => [name, name === "part" ? part.name : image[name] ?? null]))));
}

function table(shown) {
  const lines = rows(shown).map((row) => COLUMNS.map((name) => cell(row[name])).join(","));
  return [COLUMNS.join(","), ...lines, ""].join("\r\n");
}

/** Quoted where needed; text that a spreadsheet would take for a formula gets an apostrophe. */
function cell(value) {
  if (value === null) return "";
  if (typeof value !== "string") return String(value);
  const harmless = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

function data(shown) {
  return JSON.stringify({ title: shown.title, address: shown.address, metadata: shown.facts, images: rows(shown) }, null, 2);
}

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escape = (text) => String(text).replace(/[&<>"']/g, (sign) => ESCAPES[sign]);

const STYLE = `:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:24px auto;max-width:1200px;padding:0 16px}
dl{display:flex;flex-wrap:wrap;gap:4px 24px}dt,dd{display:inline;margin:0}dd{font-weight:600}
ol{display:grid;grid-template-columns:repeat(auto-fill,minmax(130px,1fr));gap:14px;list-style:none;padding:0}
img{width:100%;aspect-ratio:1;object-fit:cover;border-radius:8px;border:3px solid #8884;box-sizing:border-box}
.relevant img{border-color:#1d9b22}.irrelevant img{border-color:#d8403d}li{font-size:13px;overflow-wrap:anywhere}`;

async function page(shown) {
  const parts = [];
  for (const part of shown.parts) {
    const items = await Promise.all(part.images.map(async (image) => item(image, await inlined(image))));
    if (items.length) parts.push(`<h2>${escape(part.name)}</h2><ol>${items.join("\n")}</ol>`);
  }
  const facts = Object.entries(shown.facts).map(([name, value]) => `<div><dt>${escape(name)}</dt> <dd>${escape(value)}</dd></div>`);
  return `<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><title>${escape(shown.title)}</title><style>${STYLE}</style>
<h1>${escape(shown.title)}</h1><dl>${facts.join("")}</dl>
${shown.query ? `<img alt="The query" src="${escape(await inlined(shown.query))}" style="width:180px">` : ""}
${parts.join("\n")}</html>`;
}

function item(image, source) {
  const verdict = image.relevant === true ? "relevant" : image.relevant === false ? "irrelevant" : "";
  const sign = { relevant: "✓ ", irrelevant: "✗ " }[verdict] ?? "";
  const numbers = [known(image.rank) && `#${image.rank}`, known(image.probability) && percent(image.probability),
    known(image.similarity) && decimals(image.similarity)].filter(Boolean).join(" · ");
  return `<li class="${verdict}"><img alt="" src="${escape(source)}">${sign}${escape(image.label ?? "")}
<div>${escape(image.name)}</div><div>${numbers}</div></li>`;
}

/** An image as a data: address; an upload brings its own `blob`. */
async function inlined(image) {
  try {
    const blob = image.blob ?? (await blobOf(thumbnail(image.id, 192, image.which)));
    return await new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(blob);
    });
  } catch {
    return "data:,"; // the page is still worth having without one image
  }
}
