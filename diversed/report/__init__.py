"""Records -> one self-contained HTML page of generated texts, token by token.

    python -m diversed.report RUN_DIR [OTHER_RUN_DIR ...] [--out report.html]

Reads records, traces and manifests only; decodes nothing and needs no model.
"""
