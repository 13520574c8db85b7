"""What the notebooks of `analysis/` are made with: records as tables, and one call per figure.

    python -m diversed.notebooks [--records FOLDER] [--out analysis/out]

executes them all without a screen. A notebook opens its records with `open_records` and shows each
figure or table with `show`, which names what cannot be drawn from them and why.
"""

from diversed.notebooks.data import RecordSet, open_records
from diversed.notebooks.showing import Shown, show

__all__ = ["RecordSet", "Shown", "open_records", "show"]
