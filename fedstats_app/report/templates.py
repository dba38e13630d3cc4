"""Pages as Jinja templates, in Python strings since a bundle carries no `.html`. They import nothing."""

# The look: light and dark, desk and phone, screen and paper.
STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f5f2; --card: #ffffff; --ink: #1d1c1a; --muted: #66635e; --line: #e4e1da; --accent: #0065a0;
  --warn: #fff5e0; --good: #e4f4ea; --bad: #fbe9e7;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15161a; --card: #1e2026; --ink: #ececea; --muted: #a5a39e; --line: #33353d; --accent: #6cb8ea;
    --warn: #2e2616; --good: #17301f; --bad: #381d1a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
main, header, footer { max-width: 960px; margin: 0 auto; padding: 8px 20px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 8px 0; }
h2 { font-size: 1.2rem; margin: 0; }
h3 { font-size: 1rem; margin: 22px 0 6px; }
a, summary { color: var(--accent); }
summary { cursor: pointer; }
small, .note, dt, th, footer { color: var(--muted); font-size: 0.875rem; font-weight: 400; }
code, pre { font: 0.86em/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { background: var(--page); border-radius: 8px; padding: 12px 14px; overflow-x: auto; }
.badge { border-radius: 99px; padding: 1px 10px; font-size: 0.8rem; background: var(--line); }
.completed, .good { background: var(--good); }
.failed { background: var(--bad); }
nav, .facts, .tiles { display: flex; flex-wrap: wrap; gap: 4px 24px; margin: 16px 0; }
dl { margin: 0; }
dd { margin: 0; }
section, .tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 18px 20px; }
section { margin: 0 0 18px; }
section.warnings { background: var(--warn); }
.tile { flex: 1 0 160px; }
.tile b { display: block; font-size: 1.5rem; }
.scroll { overflow-x: auto; margin: 8px 0 14px; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--line); overflow-wrap: normal; }
th:first-child, td:first-child, .left { text-align: left; }
td:not(.left):not(:first-child) { white-space: nowrap; }
figure { margin: 14px 0; }
figure img { display: block; width: 100%; min-width: 620px; background: #ffffff; border-radius: 8px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); gap: 14px; margin: 14px 0; }
.pictures img { display: block; max-width: 100%; border-radius: 6px; }
.pictures small { display: block; line-height: 1.35; }
@media (max-width: 640px) {
  main, header, footer { padding: 8px 14px; }
  .minor { display: none; }
  th, td { padding: 6px 5px; }
}
@media print {
  section, .tile { border: 0; break-inside: avoid; }
  nav { display: none; }
}
"""

# What sections are made of.
PARTS = """
{% macro rows_of(columns, rows) %}
<div class="scroll"><table><thead><tr>
{% for name, look in columns.items() %}<th class="{{ look }}">{{ name }}</th>{% endfor %}
</tr></thead><tbody>
{% for row in rows %}
<tr>{% for cell in row %}<td class="{{ (columns.values()|list)[loop.index0] }}">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}

{% macro table(columns, rows, shown=20) %}
{{ rows_of(columns, rows[:shown]) }}
{% if rows|length > shown %}
<details><summary>the other {{ rows|length - shown }}</summary>{{ rows_of(columns, rows[shown:]) }}</details>
{% endif %}
{% endmacro %}

{% macro folded(title, part) %}<details><summary>{{ title }}</summary>{{ part }}</details>{% endmacro %}

{% macro heading(text) %}<h3>{{ text }}</h3>{% endmacro %}

{% macro note(text) %}<p class="note">{{ text }}</p>{% endmacro %}

{% macro line(text) %}<p>{{ text }}</p>{% endmacro %}

{% macro listing(lines) %}<ul>{% for one in lines %}<li>{{ one }}</li>{% endfor %}</ul>{% endmacro %}

{% macro code(text) %}<pre>{{ text }}</pre>{% endmacro %}

{% macro pictures(items, kind) %}
<div class="pictures">
{% for sample, lines in items %}
<div>
{% if kind == "image" %}<img src="data:image/jpeg;base64,{{ sample }}" alt="">{% else %}<p>{{ sample }}</p>{% endif %}

{% for one in lines %}<small>{{ one }}</small>{% endfor %}</div>
{% endfor %}
</div>
{% endmacro %}

{% macro figure(picture, what) %}
<figure><div class="scroll"><img src="data:image/png;base64,{{ picture }}" alt="{{ what }}"></div></figure>
{% endmacro %}
"""

PAGE = """
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>{% include "style.css" %}</style>
</head>
<body>
<header>
<p class="note">fedstats report
{% if state %}<span class="badge {{ state }}">{{ state }}</span>{% endif %}
{{ name }}</p>
<h1>{{ title }}</h1>
<p>{{ summary }}</p>
<div class="facts">
{% for key, value in facts %}<dl><dt>{{ key }}</dt><dd>{{ value }}</dd></dl>{% endfor %}
</div>
<nav>{% for place, heading, _ in sections %}<a href="#{{ place }}">{{ heading }}</a>{% endfor %}</nav>
</header>
<main>
<div class="tiles">
{% for value, what in tiles %}<div class="tile"><b>{{ value }}</b><small>{{ what }}</small></div>{% endfor %}
</div>
{% for place, heading, parts in sections %}
<section id="{{ place }}" class="{{ place }}"><h2>{{ heading }}</h2>
{% for part in parts %}{{ part }}{% endfor %}
</section>
{% endfor %}
</main>
<footer>Made by fedstats-app {{ version }} from {{ source }} alone. The page needs no network and runs no program.
</footer>
</body>
</html>
"""

TEMPLATES = {"style.css": STYLE, "parts.html": PARTS, "page.html": PAGE.lstrip()}
