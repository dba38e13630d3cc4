"""The pages as Jinja templates, in Python strings since a bundle carries no `.html`. They import nothing."""

from fedstats_app.report.templates.comparison import COMPARISON
from fedstats_app.report.templates.parts import PARTS
from fedstats_app.report.templates.run import RUN
from fedstats_app.report.templates.style import STYLE

TEMPLATES = {"style.css": STYLE, "parts.html": PARTS, "run.html": RUN, "comparison.html": COMPARISON}
