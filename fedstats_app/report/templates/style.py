"""The look of the pages: light and dark, desk and phone, screen and paper. Colours are those of the plots."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f5f2; --card: #ffffff; --ink: #1d1c1a; --muted: #66635e; --line: #e4e1da; --track: #edebe5;
  --accent: #0065a0; --soft: #e6f0f7; --warn: #7a4b00; --warn-page: #fff5e0; --warn-line: #f0d9a8;
  --good: #1a6b42; --good-page: #e4f4ea; --bad: #a3261c; --bad-page: #fbe9e7;
  --c0: #0065a0; --c1: #bf4f00; --c2: #007a5a; --c3: #a8407c; --c4: #3a3936; --c5: #8f6500;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15161a; --card: #1e2026; --ink: #ececea; --muted: #a5a39e; --line: #33353d; --track: #2b2d34;
    --accent: #6cb8ea; --soft: #1d2f3d; --warn: #f2c777; --warn-page: #2e2616; --warn-line: #52431f;
    --good: #7fd3a2; --good-page: #17301f; --bad: #f29a90; --bad-page: #381d1a;
    --c0: #6cb8ea; --c1: #f2975a; --c2: #4fc7a0; --c3: #e08cbd; --c4: #d5d3cd; --c5: #d9b04f;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body {
  margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", "DejaVu Sans", sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
main, header, footer { max-width: 960px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 36px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 10px; letter-spacing: -0.01em; }
h2 { font-size: 1.2rem; margin: 0 0 4px; line-height: 1.3; }
h3 { font-size: 1rem; margin: 22px 0 6px; }
p { margin: 8px 0; }
a { color: var(--accent); }
small, .note { color: var(--muted); font-size: 0.875rem; }
.note { margin: 2px 0 14px; max-width: 46rem; }
code, pre { font: 0.86em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { background: var(--track); border-radius: 8px; padding: 12px 14px; overflow-x: auto; margin: 8px 0 14px; }
.eyebrow { color: var(--muted); font-size: 0.875rem; margin: 0 0 6px; display: flex; gap: 10px; flex-wrap: wrap;
  align-items: center; }
.badge { border-radius: 99px; padding: 1px 10px; font-size: 0.8rem; font-weight: 600; white-space: nowrap;
  background: var(--soft); color: var(--accent); }
.badge.completed, .badge.good { background: var(--good-page); color: var(--good); }
.badge.failed { background: var(--bad-page); color: var(--bad); }
.lead { font-size: 1.075rem; max-width: 46rem; }
.facts { display: flex; flex-wrap: wrap; gap: 4px 28px; margin: 16px 0 0; padding: 0; }
.facts div { min-width: 0; }
.facts dt { color: var(--muted); font-size: 0.8rem; }
.facts dd { margin: 0; font-weight: 550; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 18px 0 0; padding: 10px 0; font-size: 0.9rem;
  border-top: 1px solid var(--line); }
nav a { text-decoration: none; }
nav a:hover { text-decoration: underline; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 22px 24px;
  margin: 0 0 18px; scroll-margin-top: 12px; }
section.warnings { background: var(--warn-page); border-color: var(--warn-line); }
section.warnings h2 { color: var(--warn); }
.warnings ul { margin: 8px 0 0; padding-left: 20px; }
.warnings li { margin: 5px 0; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: 12px; margin: 22px 0 18px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 14px 16px; }
.tile b { display: block; font-size: 1.5rem; line-height: 1.25; letter-spacing: -0.01em; }
.tile span { color: var(--muted); font-size: 0.85rem; display: block; line-height: 1.4; }
.scroll { overflow-x: auto; margin: 8px -4px 14px; padding: 0 4px; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; }
th, td { text-align: right; padding: 7px 10px; border-bottom: 1px solid var(--line); vertical-align: middle;
  overflow-wrap: normal; }
th { color: var(--muted); font-weight: 500; font-size: 0.82rem; vertical-align: bottom; line-height: 1.3; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
.left { text-align: left; }
tbody tr:last-child > * { border-bottom: 0; }
tr.advised > * { background: var(--soft); }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 7px; background: var(--c0); }
.nowrap { white-space: nowrap; }
.bars { display: grid; gap: 3px; margin: 10px 0; font-size: 0.92rem; }
.bar { display: grid; grid-template-columns: minmax(90px, 210px) 1fr 170px; gap: 12px; align-items: center;
  min-height: 26px; }
.bar .name { overflow: hidden; display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2;
  line-height: 1.25; }
.bar .track { position: relative; height: 14px; background: linear-gradient(var(--track), var(--track)) center / 100%
2px
  no-repeat; }
.bar .fill { height: 12px; background: var(--c0); border-radius: 3px; min-width: 2px; display: block; }
.bar .range { position: absolute; top: 5px; height: 4px; background: var(--c0); opacity: 0.42; border-radius: 2px; }
.bar .point { position: absolute; top: 2px; width: 10px; height: 10px; margin-left: -5px; border-radius: 50%;
  background: var(--c0); }
.bar .value { text-align: right; white-space: nowrap; }
.bar .value small { margin-left: 5px; }
.axis { color: var(--muted); font-size: 0.78rem; }
.axis .track { background: none; display: flex; justify-content: space-between; height: auto; }
figure { margin: 14px 0 4px; }
figcaption { color: var(--muted); font-size: 0.875rem; margin-top: 4px; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 12.5px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--muted); }
svg text.label { font-weight: 600; paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .leader { stroke-width: 0.9; fill: none; }
.narrow { display: none; }
.heat { display: grid; grid-template-columns: minmax(70px, 150px) 1fr; gap: 3px 10px; font-size: 0.85rem; }
.heat .name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.heat svg { height: 20px; background: var(--track); border-radius: 3px; }
.heat rect { fill: var(--accent); }
.pairs { display: grid; grid-template-columns: repeat(2, 1fr); gap: 14px 32px; margin-top: 12px; }
.pair b { font-weight: 600; }
.pictures { display: grid; grid-template-columns: repeat(5, minmax(0, 64px)); gap: 6px; margin-top: 6px; }
.pictures img { width: 100%; aspect-ratio: 1; object-fit: contain; border-radius: 6px; background: var(--track); }
details { margin-top: 10px; }
summary { cursor: pointer; color: var(--accent); }
.settings { columns: 2; column-gap: 36px; font-size: 0.85rem; margin: 10px 0 0; }
.settings div { display: flex; justify-content: space-between; gap: 14px; border-bottom: 1px solid var(--line);
  padding: 3px 0; break-inside: avoid; }
.settings dd { margin: 0; text-align: right; }
.settings dt { color: var(--muted); }
footer { color: var(--muted); font-size: 0.85rem; padding-top: 4px; padding-bottom: 40px; }
@media (max-width: 640px) {
  main, header, footer { padding-left: 14px; padding-right: 14px; }
  header { padding-top: 22px; }
  h1 { font-size: 1.4rem; }
  section { padding: 18px 16px; }
  .tiles { grid-template-columns: repeat(2, 1fr); gap: 10px; }
  .tile b { font-size: 1.25rem; }
  .minor { display: none; }
  table { font-size: 0.88rem; }
  th, td { padding: 6px 5px; }
  td .badge { display: table; }
  .wide { display: none; }
  .narrow { display: block; }
  .bar { grid-template-columns: 96px 1fr auto; gap: 8px; }
  .bar .value small { display: block; margin: 0; font-size: 0.75rem; line-height: 1.1; }
  .pairs { grid-template-columns: 1fr; }
  .settings { columns: 1; }
  .heat { grid-template-columns: 84px 1fr; }
}
@media print {
  body { background: none; font-size: 11pt; }
  section, .tile { border: 0; padding: 8px 0; break-inside: avoid; }
  nav { display: none; }
}
"""
