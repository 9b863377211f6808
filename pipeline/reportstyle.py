# SPDX-License-Identifier: BSD-3-Clause
"""The style sheet of the report, panels that follow the reader's light or dark setting, and the script of its table."""

CSS = """
:root{color-scheme:light dark;--page:#f6f7f9;--panel:#fff;--ink:#1b2330;--soft:#5a6577;--line:#dde2ea;--sky:#eef1f6;
--accent:#1d5fa8;--warm:#b2182b;--cold:#2166ac;--good:#1f7a43;--bad:#b3261e;--warn:#8a5a00;--area:#9db9dc}
@media(prefers-color-scheme:dark){:root{--page:#12161d;--panel:#1a202a;--ink:#e6eaf1;--soft:#9aa6b8;--line:#2d3644;
--sky:#232b37;--accent:#7db4f0;--warm:#f08a80;--cold:#7db4f0;--good:#6fcf97;--bad:#ff8a80;--warn:#f0c05a;--area:#3d5f88}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main,header{max-width:1200px;margin:0 auto;padding:0 20px}
header{padding-top:28px}
h1{font-size:26px;margin:0 0 2px;letter-spacing:-.01em}
h2{font-size:20px;margin:0}
h3{font-size:15px;margin:26px 0 10px}
p{margin:6px 0}
a{color:var(--accent)}
.soft{color:var(--soft)}
.num{font-variant-numeric:tabular-nums}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;margin:18px 0}
.tile{background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:10px 14px}
.tile b{display:block;font-size:20px;font-weight:600;overflow-wrap:anywhere}
.tile span{color:var(--soft);font-size:13px}
.panel{background:var(--panel);border:1px solid var(--line);border-radius:12px;padding:18px 20px;margin:18px 0}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:500;white-space:nowrap}
td.num,th.num{text-align:right}
tr:last-child td{border-bottom:0}
th button{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer}
th[aria-sort=ascending] button::after{content:" \\25b2"}
th[aria-sort=descending] button::after{content:" \\25bc"}
.status{display:inline-block;border-radius:99px;padding:1px 10px;font-size:13px;font-weight:600;
border:1px solid currentColor;white-space:nowrap}
.done{color:var(--good)}.failed{color:var(--bad)}.flagged{color:var(--warn)}
.head{display:flex;flex-wrap:wrap;gap:6px 14px;align-items:center}
.notes{list-style:none;margin:12px 0 0;padding:0}
.notes li{border-left:3px solid var(--warn);padding:2px 0 2px 12px;margin:6px 0;overflow-wrap:anywhere}
.notes li.error{border-color:var(--bad)}
.notes code{font-weight:600}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,250px),1fr));gap:16px}
figure{margin:0;min-width:0}
figure img,.trio img{display:block;width:100%;height:auto;border-radius:6px;
background:repeating-linear-gradient(45deg,var(--line) 0 3px,var(--sky) 3px 7px)}
figure.pixels img{image-rendering:pixelated}
figcaption{font-size:13px;color:var(--soft);margin-top:5px}
figcaption b{color:var(--ink);font-weight:600}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:11px}
svg .axis,svg .tick{stroke:var(--soft);fill:none}
svg .grid{stroke:var(--line);fill:none}
svg .area{fill:var(--area);stroke:none}
svg .model{fill:none;stroke:var(--warm);stroke-width:2}
svg .field{fill:var(--sky);stroke:var(--line)}
svg .dot{fill:var(--c,var(--accent));stroke:var(--soft);stroke-width:.7}
svg .ring{fill:none;stroke:var(--c,var(--accent));stroke-width:1.8}
svg .cross{fill:none;stroke:var(--c,var(--warm));stroke-width:1.8}
.key{display:inline-block;width:10px;height:10px;border-radius:50%;background:var(--accent);margin-right:3px}
.key.open{background:none;border:2px solid var(--accent)}
.key.x{background:none;color:var(--warm);width:auto;height:auto;font-weight:700;line-height:10px}
.bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:4px 10px;font-size:13px;align-items:center}
.bars i{display:block;height:10px;border-radius:3px;background:var(--area);min-width:2px}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,230px),1fr));gap:14px}
.card{border:1px solid var(--line);border-radius:8px;padding:10px;min-width:0}
.trio{display:grid;grid-template-columns:repeat(3,1fr);gap:4px}
.trio img{image-rendering:pixelated;border-radius:3px}
.card p{margin:6px 0 0;font-size:13px;overflow-wrap:anywhere}
details{margin-top:16px}
summary{cursor:pointer;color:var(--accent)}
footer{max-width:1200px;margin:0 auto;padding:4px 20px 32px;color:var(--soft);font-size:13px}
@media(max-width:520px){main,header,footer{padding-left:12px;padding-right:12px}.panel{padding:14px 12px}}
""".strip()

SORT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const words = new Intl.Collator("en", {numeric: true}).compare;
  heads.forEach((head, column) => {
    const numbers = rows.some(row => row.cells[column].dataset.value !== undefined);
    const value = row => numbers ? parseFloat(row.cells[column].dataset.value) : row.cells[column].textContent;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const known = rows.filter(row => !numbers || !isNaN(value(row)));
      known.sort((a, b) => sign * (numbers ? value(a) - value(b) : words(value(a), value(b))));
      body.append(...known, ...rows.filter(row => !known.includes(row)));
    });
  });
}
""".strip()
"""Sorts the rows of a table by the column whose heading is pressed, the other way round when it is pressed again.

Cells with ``data-value`` count as that number; those without one, in a column that has some, come last either way.
"""
