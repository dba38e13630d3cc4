"""Pages and card as Jinja templates, in Python strings since a bundle carries no `.html`. They import nothing."""

# The look: light and dark, desk and phone, screen and paper. Colours are those of the figures.
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
figure img { display: block; width: 100%; max-width: 900px; height: auto; margin: 0 auto; background: #ffffff;
  border-radius: 8px; }
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
  figure img { width: 620px; max-width: none; }
  table { font-size: 0.88rem; }
  th, td { padding: 6px 5px; }
  td .badge { display: table; }
  .bar { grid-template-columns: 96px 1fr auto; gap: 8px; }
  .bar .value small { display: block; margin: 0; font-size: 0.75rem; line-height: 1.1; }
  .pairs { grid-template-columns: 1fr; }
  .settings { columns: 1; }
}
@media print {
  body { background: none; font-size: 11pt; }
  section, .tile { border: 0; padding: 8px 0; break-inside: avoid; }
  nav { display: none; }
}
"""

# The pieces that pages share.
PARTS = """
{%- macro head(title) -%}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>{% include "style.css" %}</style>
</head>
{%- endmacro %}

{% macro figure(picture, what, caption) %}
{% if picture %}<figure><div class="scroll"><img src="data:image/png;base64,{{ picture }}" alt="{{ what }}"></div>
{% if caption %}<figcaption>{{ caption }}</figcaption>{% endif %}</figure>{% endif %}
{% endmacro %}

{% macro ink(colour) %}{{ "var(--muted)" if colour < 0 else "var(--c%d)" % (colour % 6) }}{% endmacro %}

{% macro intervals(shares, low) %}
<div class="bars">
{% for one in shares %}
<div class="bar">
<span class="name" title="{{ one.name }}">{{ one.name }}</span>
<span class="track" aria-hidden="true">
<i class="range" style="left:{{ place(one.low, low) }}%;width:{{ place(one.high, low) - place(one.low, low) }}%"></i>
<i class="point" style="left:{{ place(one.share, low) }}%"></i></span>
<span class="value">{{ percent(one.share, 1) }}<small>
{%- if one.number %}{{ interval_text((one.low, one.high)) }}{% endif %}</small></span>
</div>
{% endfor %}
<div class="bar axis"><span></span><span class="track"><span>{{ percent(low, 0) }}</span><span>100 %</span></span>
<span></span></div>
</div>
{% endmacro %}

{% macro all_intervals(shares, what) %}
{% set low = axis_start(shares) %}
{{ intervals(shares[:shown], low) }}
{% if shares|length > shown %}
<details><summary>the other {{ shares|length - shown }} {{ what }}</summary>{{ intervals(shares[shown:], low) }}
</details>
{% endif %}
{% endmacro %}

{% macro pairs_of_text(pairs) %}
<dl class="settings">{% for key, value in pairs %}<div><dt>{{ key }}</dt><dd>{{ value }}</dd></div>{% endfor %}</dl>
{% endmacro %}

{% macro facts(entries) %}
<dl class="facts">{% for key, value in entries %}<div><dt>{{ key }}</dt><dd>{{ value }}</dd></div>{% endfor %}</dl>
{% endmacro %}

{% macro footer(version) %}
<footer>Made by fedstats-app {{ version }} from the run folder alone. The page needs no network and runs no program.
</footer>
{% endmacro %}
"""

RUN = """
{%- import "parts.html" as parts with context -%}
{{ parts.head(title) }}
<body>
<header>
<p class="eyebrow"><span>fedstats report</span><span class="badge {{ run.status.state }}">{{ run.status.state }}</span>
<span>{{ run.name }}</span></p>
<h1>{{ title }}</h1>
<p class="lead">{{ summary }}</p>
{{ parts.facts(facts) }}
{% if sections %}<nav>{% for id, name in sections %}<a href="#{{ id }}">{{ name }}</a>{% endfor %}</nav>{% endif %}
</header>
<main>
{% if tiles %}
<div class="tiles">
{% for value, what in tiles %}<div class="tile"><b>{{ value }}</b><span>{{ what }}</span></div>{% endfor %}
</div>
{% endif %}
{% if warnings %}
<section class="warnings" id="warnings"><h2>Before you trust it</h2>
<ul>{% for line in warnings %}<li>{{ line }}</li>{% endfor %}</ul></section>
{% endif %}
{% if methods %}
<section id="methods"><h2>Methods</h2>
<p class="note">Every method is a way to compute the classifier; one pass over the data served all. Accuracy is the
share
of test {{ run.kind }}s that are classified right, with its 95 % interval; bytes are as sent, 1 MB = 1,000,000
bytes.</p>
<div class="scroll"><table>
<thead><tr><th class="left">method</th><th>accuracy</th><th class="minor">balanced</th><th class="minor">macro F1</th>
<th class="minor">AUROC</th><th class="minor">each site sends</th><th>all sites send</th>
<th class="minor">solved in</th>
<th class="left minor">regulariser</th></tr></thead>
<tbody>{% for row in methods %}
<tr{% if row.advised %} class="advised"{% endif %}>
<td class="left nowrap"><i class="dot" style="background:{{ parts.ink(row.colour) }}"></i>{{ row.title }}
{%- if row.advised %} <span class="badge good">take this</span>{% endif %}</td>
<td class="nowrap">{{ row.accuracy }}{% if row.interval != "-" %}<br><small>{{ row.interval }}</small>{% endif %}</td>
<td class="minor nowrap">{{ row.balanced }}</td><td class="minor nowrap">{{ row.f1 }}</td>
<td class="minor">{{ row.auroc }}</td><td class="minor nowrap">{{ row.each }}</td><td class="nowrap">{{ row.all }}</td>
<td class="minor nowrap">{{ row.solve }} s</td><td class="left minor"><small>{{ row.regulariser }}</small></td></tr>
{% endfor %}</tbody></table></div>
{% for line in advice %}<p>{{ line }}</p>{% endfor %}
{{ parts.figure(figures.methods, "accuracy against megabytes", "") }}
</section>
{% endif %}
{% if classes %}
<section id="classes"><h2>Classes</h2>
<p class="note">How many {{ run.kind }}s of each class {{ advised }} gets right, the worst class first. The line is the
95 %
interval (Wilson): more test {{ run.kind }}s make it shorter.</p>
{{ parts.all_intervals(classes, "classes") }}
</section>
{% endif %}
{% if confused %}
<section id="confused"><h2>Most confused</h2>
<p class="note">What {{ advised }} takes for what.{% if pictures %} The pictures are test images of the server, none is
of a
site.{% endif %}</p>
<div class="pairs">{% for pair in confused %}
<div class="pair"><b>{{ pair.true }}</b> taken for <b>{{ pair.predicted }}</b><br>
<small>{{ pair.number }}{% if pair.of %} of {{ pair.of }}{% endif %}</small>
{% if pair.pictures %}<div class="pictures">{% for picture in pair.pictures %}
<img src="data:image/jpeg;base64,{{ picture }}" alt="{{ pair.true }} taken for {{ pair.predicted }}">{% endfor %}
</div>{% endif %}</div>
{% endfor %}</div>
{{ parts.figure(figures.confused, "confusion matrix of " ~ advised, "") }}
</section>
{% endif %}
{% if outcomes %}
<section id="sites"><h2>Sites</h2>
<div class="scroll"><table><thead><tr><th class="left">outcome</th><th class="left">meaning</th><th>sites</th></tr>
</thead>
<tbody>{% for row in outcomes %}<tr><td class="left">{{ row.outcome }}</td><td class="left">{{ row.meaning }}</td>
<td>{{ row.number }}</td></tr>{% endfor %}</tbody></table></div>
{% if left_out %}<h3>Left out</h3>
<div class="scroll"><table><thead><tr><th class="left">who</th><th class="left">outcome</th><th class="left">why</th>
</tr>
</thead><tbody>{% for who, outcome, why in left_out[:shown] %}<tr><td class="left nowrap">{{ who }}</td>
<td class="left">{{ outcome }}</td><td class="left">{{ why }}</td></tr>{% endfor %}</tbody></table></div>
{% if left_out|length > shown %}<details><summary>the other {{ left_out|length - shown }}</summary><ul>
{% for who, outcome, why in left_out[shown:] %}<li>{{ who }}, {{ outcome }}: {{ why }}</li>{% endfor %}</ul></details>
{% endif %}{% endif %}
{% if sites %}<h3>Accuracy at each site</h3>
<p class="note">Of {{ advised }}, on what each site kept aside for testing, the worst first, with 95 % intervals.</p>
{{ parts.all_intervals(sites, "sites") }}{% endif %}
{% if figures.labels %}<h3>Who has which class</h3>
<p class="note">Shown of simulated sites only.</p>
{{ parts.figure(figures.labels, "samples by site and class", "") }}{% endif %}
</section>
{% endif %}
{% if trainings %}
<section id="training"><h2>Training from the heads</h2>
<p class="note">Bytes are up and down, of all sites, with those of the start.</p>
<div class="scroll"><table><thead><tr><th class="left">training</th><th>start</th><th>end</th><th>best</th>
<th class="minor">rounds</th>
<th>bytes</th><th class="left minor">ended by</th></tr></thead><tbody>{% for row in trainings %}
<tr><td class="left">{{ row.name }}</td><td class="nowrap">{{ row.start }}</td><td class="nowrap">{{ row.final }}</td>
<td class="nowrap">{{ row.best }}<br><small>{{ row.when }}</small></td>
<td class="minor">{{ row.rounds }}</td><td class="nowrap">{{ row.bytes }}</td>
<td class="left minor">{{ row.stopped }}</td></tr>{% endfor %}</tbody></table></div>
{{ parts.figure(figures.training, "accuracy over rounds, bytes and compute", "") }}
</section>
{% endif %}
{% if personal %}
<section id="personal"><h2>Models of each site's own</h2>
<p class="note">Accuracy on each site's own test {{ run.kind }}s; every site counts alike.</p>
<div class="scroll"><table><thead><tr><th class="left">approach</th><th>mean</th><th>deviation</th>
<th class="minor">of</th>
<th>up</th><th>down</th></tr></thead><tbody>{% for row in personal %}
<tr><td class="left">{{ row.name }}</td><td class="nowrap">{{ row.mean }}</td><td>{{ row.deviation }}</td>
<td class="minor nowrap">{{ row.sites }}</td><td class="nowrap">{{ row.up }}</td><td class="nowrap">{{ row.down }}
</td></tr>
{% endfor %}</tbody></table></div>
{{ parts.figure(figures.personal, "accuracies of the sites' own models", "") }}
</section>
{% endif %}
{% if phases %}
<section id="time"><h2>Time</h2>
<div class="bars">{% for row in phases %}<div class="bar"><span class="name" title="{{ row.name }}">{{ row.name }}
</span>
<span><i class="fill" style="width:{{ "%.1f" % (100 * row.share) }}%"></i></span><span class="value">{{ row.text }}
</span>
</div>{% endfor %}</div>
</section>
{% endif %}
{% if disclosed %}
<section id="left"><h2>What left the sites</h2>
<p class="note">Everything that the server received, by kind of message. No {{ run.kind }} is among it. That is not
nothing:
the mean of one {{ run.kind }} is that {{ run.kind }}'s features, and counts tell which classes a site has.</p>
{% for kind in disclosed %}
<h3>{{ kind.title|capitalize }}</h3>
<p><code>{{ kind.message }}</code>: {{ kind["from"] }}, {{ kind.replies }} answers, {{ kind.all }} in all, at most
{{ kind.most }} from one site.
{%- if kind.suppressed %} {{ kind.suppressed }} sites kept classes back.{% endif %}
{%- if kind.errors %} {{ kind.errors }} errors were sent.{% endif %}</p>
{% if kind.fields %}<details><summary>{{ kind.fields|length }} fields</summary><div class="scroll"><table>
<thead><tr><th class="left">field</th><th class="left">type</th><th class="left">shape</th><th>sites</th>
<th>bytes</th></tr>
</thead><tbody>{% for one in kind.fields %}<tr><td class="left">{{ one.name }}</td><td class="left">{{ one.dtype }}</td>
<td class="left">{{ one.shape }}</td><td>{{ one.sites }}</td><td class="nowrap">{{ one.all }}</td></tr>{% endfor %}
</tbody></table></div></details>{% endif %}
{% endfor %}
</section>
{% endif %}
{% if methods %}
<section id="use"><h2>How to use it</h2>
<p>In the folder that holds <code>{{ run.name }}</code>, without a server and without network:</p>
<pre>fedstats predict {{ run.name }}{% if run.taken %} --method {{ run.taken }}{% endif %}
 {{ "picture.png" if run.kind == "image" else '--text "a text"' }}</pre>
<pre>import fedstats_app
classifier = fedstats_app.load("{{ run.name }}", "{{ run.taken or methods[0].name }}")
print(classifier.predict({{ '"picture.png"' if run.kind == "image" else '"a text"' }}))</pre>
{% if run.exports_to_onnx %}<p>As one ONNX file, which predicts without torch:</p>
<pre>fedstats export {{ run.name }} --onnx{% if run.taken %} --method {{ run.taken }}{% endif %}</pre>
{% endif %}
<p>Score it on other labelled {{ run.kind }}s, and make this page again:</p>
<pre>fedstats evaluate {{ run.name }} FOLDER
fedstats report {{ run.name }}</pre>
</section>
{% endif %}
{% if settings %}
<section id="settings"><h2>Settings</h2>
<details><summary>{{ settings|length }} settings</summary>{{ parts.pairs_of_text(settings) }}</details>
<details><summary>versions</summary>{{ parts.pairs_of_text(environment) }}</details>
</section>
{% endif %}
</main>
{{ parts.footer(version) }}
</body>
</html>
"""

COMPARISON = """
{%- import "parts.html" as parts with context -%}
{{ parts.head(title) }}
<body>
<header>
<p class="eyebrow"><span>fedstats report</span></p>
<h1>{{ title }}</h1>
<p class="lead">{{ summary }}</p>
</header>
<main style="margin-top: 20px">
{% if warnings %}
<section class="warnings" id="warnings"><h2>Before you compare</h2>
<ul>{% for line in warnings %}<li>{{ line }}</li>{% endfor %}</ul></section>
{% endif %}
<section id="runs"><h2>Runs</h2>
<div class="scroll"><table><thead><tr><th class="left">run</th><th class="left">data</th><th class="left">network</th>
<th>sites</th><th class="left">best method</th><th>accuracy</th><th>all sites send</th></tr></thead>
<tbody>{% for row in rows %}<tr>
<td class="left"><i class="dot" style="background:{{ parts.ink(loop.index0) }}"></i><b>{{ row.letter }}</b>
<span class="nowrap">{{ row.date }}</span><br><small>{{ row.name }}</small>
{%- if row.status != "completed" %} <span class="badge {{ row.status }}">{{ row.status }}</span>{% endif %}</td>
<td class="left">{{ row.data }}</td><td class="left">{{ row.network }}</td><td>{{ row.sites }}</td>
<td class="left">{{ row.best }}</td><td class="nowrap">{{ row.accuracy }}<br><small>{{ row.interval }}</small></td>
<td class="nowrap">{{ row.bytes }}</td></tr>{% endfor %}</tbody></table></div>
</section>
{% if figure %}
<section id="chart"><h2>Accuracy against bytes</h2>
{{ parts.figure(figure, "accuracy against megabytes of all runs", "One colour per run; each point is a method.") }}
</section>
{% endif %}
{% if table %}
<section id="methods"><h2>Methods</h2>
<div class="scroll"><table><thead><tr><th class="left">method</th>{% for row in rows %}<th>{{ row.letter }}
</th>{% endfor %}
</tr></thead><tbody>{% for name, cells in table %}<tr><td class="left">{{ name }}</td>
{% for cell in cells %}<td class="nowrap">{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody></table></div></section>
{% endif %}
{% if differences %}
<section id="settings"><h2>Settings that differ</h2>
<div class="scroll"><table><thead><tr><th class="left">setting</th>{% for row in rows %}<th>{{ row.letter }}
</th>{% endfor %}
</tr></thead><tbody>{% for key, values in differences %}<tr><td class="left">{{ key }}</td>
{% for value in values %}<td>{{ value }}</td>{% endfor %}</tr>{% endfor %}</tbody></table></div></section>
{% endif %}
</main>
{{ parts.footer(version) }}
</body>
</html>
"""

CARD = """
---
library_name: fedstats-app
pipeline_tag: {{ kind }}-classification
tags:
- federated-learning
- flower
- {{ kind }}-classification
- training-free
{% if data.startswith("hub:") %}
datasets:
- {{ data.removeprefix("hub:")|tojson }}
{% endif %}
{% if index %}
model-index:
{% for name, entry in index %}
- name: {{ name|tojson }}
  results: {{ [entry]|tojson }}
{% endfor %}
{% endif %}
---

# {{ kind|capitalize }} classifier of {{ classes|length }} classes, from federated statistics

Linear heads on the features of a pre-trained network, `{{ network }}`,
{{ "at %s x %s pixels" % (input_size, input_size) if kind == "image"
   else "which reads up to %s tokens of a text" % input_size }}.
{%- if features %} The features are {{ features|plain }}.{% endif %}
{%- if arguments %} The network was built with `{{ arguments|plain }}`.{% endif %}

{{ clients }} clients sent statistics of the features of their {{ kind }}s, and no {{ kind }}; the server solved for the
heads in closed form.

Classes: {{ classes[:listed]|map("plain")|join(", ") }}
{%- if classes|length > listed %} and {{ classes|length - listed }} more{% endif %}.

## How to use it

```python
import fedstats_app
classifier = fedstats_app.load("/path/to/the/run/folder", {{ best.name.__repr__() }})
print(classifier.top({{ '"picture.png"' if kind == "image" else '"a text"' }}, k=3))
```

Or in a shell: `fedstats predict /path/to/the/run/folder {{ "picture.png" if kind == "image" else '--text "a text"' }}`.
The run folder is the one that holds `heads`. The network's weights are not in it; their fingerprint is, and other
weights are refused.

## Data

`{{ data|plain }}`: {{ samples }} labelled {{ kind }}s for training, of {{ merged }} clients; {{ asked }} were asked.
{%- if unreadable %} {{ unreadable }} more could not be read and were left out.{% endif %}
{%- if removed %} Then {{ removed|plain }} was removed.{% endif %}


## Training

| head | method | regulariser | clients | sent by all clients |
| --- | --- | --- | --- | --- |
{% for head in heads %}
{{ row("`%s`" % head.name, head.title|plain, regularisers[head.name]|plain or "none", numbers[head.name], head.all) }}
{% endfor %}

Bytes are as sent, as in the run's table; 1 MB is 10^6 bytes.
{%- if trained %} Those of a trained head are up and down, with its start's.{% endif %}


{% if papers %}Papers: {{ papers }}. {% endif %}Seed {{ seed }}. {{ versions or "Versions were not recorded" }}.
{% for name, note in notes %}
{% if loop.first %}

{% endif %}
- `{{ name }}`: {{ note|plain }}.
{% endfor %}

## Evaluation

On {{ evaluated_on }}.

| head | accuracy | 95% interval | balanced accuracy | macro F1 | macro AUROC |
| --- | --- | --- | --- | --- | --- |
{% for head in heads %}
{{ row("`%s`" % head.name, head.accuracy, head.interval, head.balanced, head.f1, head.auroc) }}
{% endfor %}
{% if by_class %}

The classes, with `{{ best.name }}`:

| class | sensitivity | specificity | F1 | AUROC |
| --- | --- | --- | --- | --- |
{% for name, shares, auroc in by_class %}
| {{ name|plain }} |{% for share in shares %} {{ percent(share, 1) }} |{% endfor %} {{ area(auroc) }} |
{% endfor %}
{% endif %}
{% if by_client %}

By client, accuracies of `{{ best.name }}` go from {{ percent(by_client.minimum) }} to {{ percent(by_client.maximum) }};
their mean is {{ percent(by_client.mean) }}.
{% endif %}
{% if advice or curves %}

## Which method

Bytes are those that all clients sent.
{% for line in advice %}
{% if loop.first %}

{% endif %}
- {{ line }}
{% endfor %}
{% for title, points in curves %}

{{ title }} at other ranks:

| rank | sent by all clients | accuracy |
| --- | --- | --- |
{% for one in points %}
| {{ one.rank }} | {{ bytes_with_unit(one.wire_bytes) }} | {{ percent(one.accuracy) }} |
{% endfor %}
{% endfor %}
{% endif %}

## Calibration

Scores divided by the temperature, then a softmax, give the probabilities. The temperature was chosen on the {{ kind }}s
of the evaluation themselves: one number, which changes no prediction, but the errors after it are a little too good.
{% if interpolated %}
Where clients evaluated, or the network was tuned, the calibration error after it is interpolated, to about 0.004;
`fedstats evaluate` counts it exactly.
{% endif %}

| head | temperature | negative log-likelihood | expected calibration error |
| --- | --- | --- | --- |
{% for name, fitted in calibrations %}
{% if fitted %}
{% set likelihood = "%.3f -> %.3f" % (fitted.nll_before, fitted.nll_after) %}
{% set error = "%.3f -> %.3f" % (fitted.ece_before, fitted.ece_after) %}
{{ row("`%s`" % name, "%.4g" % fitted.temperature, likelihood, error) }}
{% else %}
| `{{ name }}` | not calibrated | - | - |
{% endif %}
{% endfor %}

## Privacy

{{ kind|capitalize }}s stayed where they were. What left each site:

{% for name, sent in disclosed %}
- `{{ name }}`: {{ sent }}.
{% endfor %}
{% if on_clients %}
- Evaluation: every client sent how often it saw which class taken for which, histograms of the scores' margins by
  class, and sums over its {{ kind }}s of how sure the heads were.
{% endif %}

These are exact statistics, without noise: no differential privacy is claimed. The mean of a single {{ kind }} is that
{{ kind }}'s features, so they say most about classes with few {{ kind }}s at a site. How many bytes each client sent
stands in `clients.jsonl` of the run folder.
{% if licence %}

## Licence of the backbone

The weights of `{{ network }}`, without which a head is of no use: {{ licence.name|plain }}
{%- if licence.source %} (according to {{ licence.source|plain }}){% endif %}.
{% for warning in licence.warnings %}
- **{{ warning|plain }}**
{% endfor %}
{% endif %}

## Limits

- Every {{ kind }} gets one of the {{ classes|length }} classes, also one of none of them; a low probability is no
  alarm.
- {{ kind|capitalize }}s unlike those it was made from and evaluated on can score worse, with probabilities that are
  off.
- The licences of the network's weights and of the data apply to what is made from them.
"""

TEMPLATES = {
    "style.css": STYLE,
    "parts.html": PARTS,
    "run.html": RUN,
    "comparison.html": COMPARISON,
    "card.md": CARD.removeprefix("\n"),
}
