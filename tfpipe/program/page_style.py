"""Look and behaviour of the page: its style sheet and its script.

Colours of the kinds are from the palette of Okabe and Ito, "Color Universal Design"
(2008), whose hues people with any colour vision can tell apart.
"""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
:root {
  color-scheme: light dark;
  --bg: #fff; --ink: #1a1d21; --soft: #5a636e; --rule: #dfe3e8; --row-bg: #f1f3f5;
  --F: #0072b2; --R: #cc79a7; --B: #e69f00; --W: #009e73; --BW: #d55e00; --U: #4d5560;
  --on-F: #fff; --on-U: #fff; --on: #111;
  --m0: #4477aa; --m1: #66ccee; --m2: #228833; --m3: #ccbb44; --m4: #ee6677;
  --m5: #aa3377; --m6: #999; --m7: #ee8833; --m8: #332288;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #14171a; --ink: #e6e8eb; --soft: #9aa4af; --rule: #31373e;
    --row-bg: #1e2328; --F: #2b8fcf; --U: #aab2bc; --on-F: #08121a; --on-U: #111;
    --m0: #6699cc; --m8: #8877dd;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 36px 40px 64px; max-width: 1280px; background: var(--bg);
  color: var(--ink); font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; font-variant-numeric: tabular-nums;
  -webkit-text-size-adjust: 100%;
}
h1 {
  margin: 0 0 18px; font-size: 24px; line-height: 1.2; font-weight: 600;
  letter-spacing: -0.01em; overflow-wrap: anywhere;
}
h2 { margin: 0 0 10px; font-size: 15px; font-weight: 600; }
h3 { margin: 10px 0 3px; font-size: 13px; font-weight: 600; width: max-content; }
h3:first-child { margin-top: 0; }
h3 span { margin-left: 8px; color: var(--soft); font-weight: 400; }
section { padding-top: 14px; border-top: 1px solid var(--rule); margin-top: 26px;
  min-width: 0; }
.pair { display: grid; column-gap: 40px; }
.wide-left { grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); }
.wide-right { grid-template-columns: minmax(min-content, 2fr) minmax(0, 3fr); }
.pair > section:only-child { grid-column: 1 / -1; }
.small { display: grid; gap: 14px 40px;
  grid-template-columns: repeat(auto-fill, minmax(min(320px, 100%), 1fr)); }
.small .values { min-width: 76px; }
.facts { display: flex; flex-wrap: wrap; gap: 10px 36px; margin: 0; }
dt, th, .note, .names, .values, .legend { color: var(--soft); font-size: 12px; }
dd { margin: 0; overflow-wrap: anywhere; }
.note { margin: 8px 0 0; max-width: 110ch; }
.scroll { overflow: auto; max-width: 100%; }
.tall { max-height: 440px; }
table { border-collapse: collapse; min-width: 100%; }
th { position: sticky; top: 0; background: var(--bg); font-weight: 400;
  text-align: left; vertical-align: bottom; }
th, td { padding: 3px 14px 3px 0; white-space: nowrap; }
th:last-child, td:last-child { padding-right: 4px; }
td { border-top: 1px solid var(--rule); }
.number { text-align: right; }
#comparison table { min-width: 0; }
#comparison th + th, #comparison td + td { padding-left: 14px; }
.bars td { padding-right: 12px; border: 0; }
.bars td:nth-child(2) { width: 100%; min-width: 120px; }
.bars svg { display: block; width: 100%; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 0 0 8px; padding: 0;
  list-style: none; }
.legend svg { width: 10px; height: 10px; margin-right: 6px; }
.tracks { position: relative; padding-right: 14px; }
.track { display: grid; grid-template-columns: 72px minmax(0, 1fr); }
.track svg, .curve svg { display: block; width: 100%; overflow: visible; }
.names { position: sticky; left: 0; z-index: 1; padding-right: 10px;
  background: var(--bg); }
.names div { display: flex; justify-content: space-between; height: var(--row);
  font-size: min(12px, calc(var(--row) - 3px)); line-height: var(--row); }
.names span { opacity: .75; }
.unit { text-align: right; line-height: 16px; }
.stay { position: sticky; left: 0; }
svg text { font-size: 11px; fill: var(--soft); text-anchor: middle; }
svg line { stroke: var(--rule); }
.row { width: 100%; fill: var(--row-bg); }
.spans .end { stroke: var(--ink); stroke-dasharray: 3 2; }
.span { stroke: var(--bg); stroke-width: .75; }
.thin { stroke: none; }
.spans text { font-size: 10px; fill: var(--on); pointer-events: none; }
.F { fill: var(--F); } .R { fill: var(--R); } .B { fill: var(--B); }
.W { fill: var(--W); } .BW { fill: var(--BW); } .U { fill: var(--U); }
.spans text.F { fill: var(--on-F); } .spans text.U { fill: var(--on-U); }
rect.s1 { fill-opacity: .78; } rect.s2 { fill-opacity: .58; }
rect.s3 { fill-opacity: .46; }
.spans text.F.s1, .spans text.s2, .spans text.s3 { fill: var(--ink); }
.m0 { fill: var(--m0); } .m1 { fill: var(--m1); } .m2 { fill: var(--m2); }
.m3 { fill: var(--m3); } .m4 { fill: var(--m4); } .m5 { fill: var(--m5); }
.m6 { fill: var(--m6); } .m7 { fill: var(--m7); } .m8 { fill: var(--m8); }
.limit { stroke: var(--ink); stroke-width: 1.5; }
.curve { display: grid; grid-template-columns: auto minmax(0, 1fr);
  padding-right: 14px; }
.values { position: relative; min-width: 44px; }
.values span { position: absolute; right: 8px; transform: translateY(-50%); }
polyline, .curve circle { fill: none; stroke-width: 1.75;
  vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.c0 { stroke: var(--F); } .c1 { stroke: var(--BW); } .c2 { stroke: var(--W); }
.c3 { stroke: var(--R); } .c4 { stroke: var(--B); } .c5 { stroke: var(--U); }
.legend rect { stroke-width: 0; }
.legend .c0 { fill: var(--F); } .legend .c1 { fill: var(--BW); }
.legend .c2 { fill: var(--W); } .legend .c3 { fill: var(--R); }
.legend .c4 { fill: var(--B); } .legend .c5 { fill: var(--U); }
.strip { fill: transparent; }
.strip:hover { fill: var(--ink); fill-opacity: .06; }
.span:hover { stroke: var(--ink); stroke-width: 1.5; }
.cursor { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--ink);
  opacity: .45; pointer-events: none; display: none; }
#tip { position: fixed; z-index: 9; display: none; padding: 5px 9px; max-width: 320px;
  border-radius: 4px; background: var(--ink); color: var(--bg); font-size: 12px;
  white-space: pre-line; pointer-events: none; }
@media (max-width: 1100px) {
  .pair { display: block; }
}
@media (max-width: 640px) {
  body { padding: 20px 16px 40px; }
  h1 { font-size: 20px; }
  .facts { column-gap: 24px; }
  table { font-size: 13px; }
  th, td { padding-right: 9px; }
  #comparison th + th, #comparison td + td { padding-left: 0; }
}
@media print {
  .tall { max-height: none; }
}
"""

SCRIPT = """
const tip = document.createElement("div");
tip.id = "tip";
document.body.append(tip);

// Moves what an element's <title> says to its data, as browsers show titles late and
// on touch screens never.
function textOf(element) {
  const title = element.querySelector("title");
  if (title) {
    element.dataset.tip = title.textContent;
    title.remove();
  }
  return element.dataset.tip;
}

function showTip(event) {
  const element = event.target.closest(".span, .strip, .part");
  tip.style.display = element ? "block" : "none";
  if (!element) return;
  tip.textContent = textOf(element);
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18;
  const above = event.clientY - tip.offsetHeight - 12;
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = (below + tip.offsetHeight < innerHeight ? below : above) + "px";
}

// Marks one moment in all timelines of a drawing.
function showCursor(event) {
  for (const tracks of document.querySelectorAll(".tracks")) {
    const inside = tracks.contains(event.target) && event.target.closest("svg.spans");
    const cursor = tracks.querySelector(".cursor");
    cursor.style.display = inside ? "block" : "none";
    cursor.style.left = event.clientX - tracks.getBoundingClientRect().left + "px";
  }
}

for (const kind of ["pointermove", "pointerdown"]) {
  document.addEventListener(kind, (event) => { showTip(event); showCursor(event); });
}
document.addEventListener("scroll", () => { tip.style.display = "none"; }, true);
"""
