"""The page that compares several runs."""

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
{% if charts %}
<section id="chart"><h2>Accuracy against bytes</h2>
<figure>{{ parts.chart(charts, "accuracy against megabytes of all runs") }}
<figcaption>One colour per run; each point is a method.</figcaption></figure></section>
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
