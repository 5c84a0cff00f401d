"""How report.html looks; text in a module, so that every installation has it."""

__all__ = ["STYLE"]

STYLE = """
:root { --page: #f9f9f7; --surface: #fcfcfb; --ink: #0b0b0b; --soft: #52514e; --faint: #898781;
  --grid: #e1e0d9; --positive: #2a78d6; --negative: #eb6834; --right: #0c8a0c; --wrong: #d03b3b; }
@media (prefers-color-scheme: dark) { :root { --page: #0d0d0d; --surface: #1a1a19; --ink: #fff;
  --soft: #c3c2b7; --faint: #898781; --grid: #2c2c2a; --positive: #3987e5; --negative: #d95926;
  --right: #2fa92f; --wrong: #e25555; } }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 920px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 8px; } h2 { font-size: 18px; margin: 32px 0 10px; }
p { color: var(--soft); margin: 8px 0; }
.figures { display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 380px), 1fr)); }
figure { margin: 0; background: var(--surface); border: 1px solid var(--grid); border-radius: 8px;
  padding: 10px 12px; }
figcaption { font-size: 13px; color: var(--soft); }
.value { float: right; color: var(--ink); font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 11px; fill: var(--faint); }
.grid { stroke: var(--grid); stroke-width: 1; }
.line { fill: none; stroke: var(--positive); stroke-width: 2; stroke-linejoin: round; }
.dot { fill: var(--positive); stroke: var(--surface); stroke-width: 2; }
polygon { fill-opacity: .28; stroke-width: 2; stroke-linejoin: round; }
polygon.positive { fill: var(--positive); stroke: var(--positive); }
polygon.negative { fill: var(--negative); stroke: var(--negative); }
.key { float: right; margin-left: 12px; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px; }
i.positive { background: var(--positive); } i.negative { background: var(--negative); }
table { border-collapse: collapse; }
th, td { padding: 3px 14px 3px 0; text-align: left; vertical-align: top; }
.scores td { text-align: right; font-variant-numeric: tabular-nums; }
.scores tr:first-child th { color: var(--soft); font-weight: 500; text-align: right; }
.scores tr + tr th { font-weight: 500; } .scores tr + tr { border-top: 1px solid var(--grid); }
.row { display: flex; gap: 6px; margin-bottom: 8px; overflow-x: auto; }
.tile { flex: 0 0 auto; padding: 3px; border: 3px solid var(--grid); text-align: center; }
.tile img { width: 72px; height: 72px; object-fit: contain; display: block; background: #fff;
  border-radius: 3px; }
.tile figcaption { font-size: 12px; }
.tile span { display: block; width: 72px; overflow: hidden; white-space: nowrap;
  text-overflow: ellipsis; color: var(--soft); font-size: 11px; }
.tile.query { border-color: var(--faint); margin-right: 10px; }
.tile.right { border-color: var(--right); } .tile.right figcaption { color: var(--right); }
.tile.wrong { border-color: var(--wrong); } .tile.wrong figcaption { color: var(--wrong); }
.alarms li { color: var(--wrong); overflow-wrap: anywhere; }
details { margin: 4px 0; } summary { cursor: pointer; }
.settings table { font-size: 13px; margin: 6px 0 10px 18px; overflow-wrap: anywhere; }
.settings th { font-weight: 500; color: var(--soft); }
"""
