"""The page of one run."""

RUN = """
{%- import "parts.html" as parts with context -%}
{{ parts.head(title) }}
<body>
<header>
<p class="eyebrow"><span>fedstats report</span><span class="badge {{ run.status.state }}">{{ run.status.state }}</span>
<span>{{ run.name }}</span></p>
<h1>{{ title }}</h1>
<p class="lead">{{ summary|unbroken }}</p>
{{ parts.facts(facts) }}
{% if sections %}<nav>{% for id, name in sections %}<a href="#{{ id }}">{{ name }}</a>{% endfor %}</nav>{% endif %}
</header>
<main>
{% if tiles %}
<div class="tiles">
{% for value, what in tiles %}<div class="tile"><b>{{ value }}</b><span>{{ what|unbroken }}</span></div>{% endfor %}
</div>
{% endif %}
{% if warnings %}
<section class="warnings" id="warnings"><h2>Before you trust it</h2>
<ul>{% for line in warnings %}<li>{{ line|unbroken }}</li>{% endfor %}</ul></section>
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
<td class="left nowrap"><i class="dot" style="background:{{ parts.ink(row.colour) }}"></i>{{ row.name }}
{%- if row.advised %} <span class="badge good">take this</span>{% endif %}</td>
<td class="nowrap">{{ row.accuracy }}{% if row.interval %}<br><small>{{ row.interval }}</small>{% endif %}</td>
<td class="minor nowrap">{{ row.balanced }}</td><td class="minor nowrap">{{ row.f1 }}</td>
<td class="minor">{{ row.auroc }}</td><td class="minor nowrap">{{ row.each }}</td><td class="nowrap">{{ row.all }}</td>
<td class="minor nowrap">{{ row.solve }}</td><td class="left minor"><small>{{ row.regulariser }}</small></td></tr>
{% endfor %}</tbody></table></div>
{% for line in advice %}<p>{{ line|unbroken }}</p>{% endfor %}
{% if accuracy_charts %}
<figure>{{ parts.chart(accuracy_charts, "accuracy against megabytes") }}
<figcaption>Accuracy on the test {{ run.kind }}s against what all sites send.
{%- if curve %} Line: {{ curve }} at other ranks.{% endif %}</figcaption></figure>
{% endif %}
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
{% if labels %}<h3>Who has which class</h3>
<p class="note">One column per site, one row per class: the darker, the larger its share of that class. Shown of
simulated
sites only.</p>
<div class="heat">{% for row in labels %}
<span class="name" title="{{ row.name }}">{{ row.name }}</span>
<svg viewBox="0 0 {{ run.clients|length }} 1" preserveAspectRatio="none" role="img"
 aria-label="{{ row.name }}: at {{ row.sites }} sites">{% for column, shade, text in row.cells %}
<rect x="{{ column }}" width="1" height="1" opacity="{{ shade }}">
<title>{{ run.site(run.clients[column].client) }}: {{ text }}
</title></rect>{% endfor %}</svg>
{% endfor %}</div>{% endif %}
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
{% if training_charts %}<figure>{{ parts.chart(training_charts, "accuracy over rounds") }}
<figcaption>Test accuracy after every round.</figcaption></figure>
<p class="note">{% for row in legend %}<i class="dot" style="background:{{ parts.ink(row[1]) }}"></i>{{ row[0] }} &ensp;
{% endfor %}</p>{% endif %}
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
<pre>fedstats predict {{ run.name }}{% if run.advised %} --method {{ run.advised }}{% endif %}
 {{ "picture.png" if run.kind == "image" else '--text "a text"' }}</pre>
<pre>import fedstats_app
classifier = fedstats_app.load("{{ run.name }}", "{{ run.advised or methods[0].name|lower }}")
print(classifier.predict({{ '"picture.png"' if run.kind == "image" else '"a text"' }}))</pre>
{% if run.exports_to_onnx %}<p>As one ONNX file, which predicts without torch:</p>
<pre>fedstats export {{ run.name }} --onnx{% if run.advised %} --method {{ run.advised }}{% endif %}</pre>
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
