"""The pieces that pages share."""

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

{% macro chart(charts, what) %}
{% for size, one in charts.items() %}
<svg class="{{ size }}" viewBox="0 0 {{ one.width }} {{ one.height }}" role="img" aria-label="{{ what }}">
{% for y, text in one.y_ticks %}
<line class="grid" x1="{{ one.left }}" x2="{{ one.right }}" y1="{{ y|round(1) }}" y2="{{ y|round(1) }}"/>
<text x="{{ one.left - 7 }}" y="{{ (y + 4)|round(1) }}" text-anchor="end">{{ text }}</text>
{% endfor %}
{% for x, text in one.x_ticks %}
<text x="{{ x|round(1) }}" y="{{ one.bottom + 17 }}" text-anchor="middle">{{ text }}</text>
{% endfor %}
<text x="{{ (one.left + one.right) / 2 }}" y="{{ one.height - 7 }}" text-anchor="middle">{{ one.x_title }}</text>
{% for points, colour, dashed in one.lines %}
<polyline points="{{ points }}" fill="none" stroke="{{ ink(colour) }}" stroke-width="1.8" stroke-linejoin="round"
{%- if dashed %} stroke-dasharray="5 4"{% endif %}/>
{% endfor %}
{% for label in one.labels if label.leader %}
<polyline class="leader" points="{{ label.leader }}" stroke="{{ ink(label.colour) }}"/>
{% endfor %}
{% for label in one.labels %}
<text class="label" x="{{ label.x|round(1) }}" y="{{ (label.y + 4.5)|round(1) }}" text-anchor="middle"
 style="fill:{{ ink(label.colour) }}">{{ label.text }}</text>
{% endfor %}
{% for x, y, colour, more in one.dots %}
<circle cx="{{ x|round(1) }}" cy="{{ y|round(1) }}" r="5" fill="{{ ink(colour) }}" stroke="var(--card)">
<title>{{ more }}</title></circle>
{% endfor %}
</svg>
{% endfor %}
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
<span class="value">{{ percent(one.share) }}<small>
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
