"""XSum: BBC articles and the one sentence that introduces each.

Source: Narayan, Cohen and Lapata 2018, "Don't Give Me the Details, Just the Summary!".
"""

from diversed.tasks.loading import DataSource
from diversed.tasks.prompts import PromptTemplate, Shot
from diversed.tasks.summaries import SummaryTask

SHOTS = (
    Shot(
        "The bridge over the river Tarn was closed at 04:00 when a lorry carrying 20 tonnes of "
        "sand came to rest across both lanes.\nNobody was hurt, but inspectors found cracks in two "
        "of the supports.\nThe nearest crossing is 18 miles away, and school buses will run an "
        "hour earlier until further notice.\nEngineers hope to finish their survey by Friday.",
        "A road bridge is closed until further notice after a lorry accident revealed cracks in "
        "its supports.",
    ),
    Shot(
        "Researchers counted 312 breeding pairs on the island this summer, up from 47 when rats "
        "were removed ten years ago.\nVolunteers had laid bait along 90 kilometres of coast and "
        "checked it every week for two winters.\nPuffins, which had not nested there since the "
        "1960s, have returned as well.\nThe project's leader said that other islands could follow.",
        "The number of seabirds on an island has grown more than sixfold in the ten years since "
        "its rats were removed.",
    ),
    Shot(
        "The 19-year-old won the deciding set 7-5 after saving four match points.\nShe had never "
        "gone past the second round of a major tournament before this week.\nHer opponent, the top "
        "seed, hit 58 unforced errors and left the court without speaking to reporters.\nThe final "
        "is on Saturday.",
        "A teenager has beaten the top seed to reach the first final of her career at a major "
        "tennis tournament.",
    ),
)


class XSumTask(SummaryTask):
    """One sentence that says what an article is about."""

    name = "xsum"
    source = DataSource(
        hub_id="EdinburghNLP/xsum",
        config_name=None,
        columns=("document", "summary"),
        splits={"train": "train", "validation": "validation", "test": "test"},
        key=("document",),
    )
    template = PromptTemplate(
        instruction=(
            "Say in one sentence what the news article is about. Write nothing but that sentence."
        ),
        text_label="Article",
        answer_label="Summary",
        is_multiline=True,
    )
    shots = SHOTS
    text_column = "document"
    summary_column = "summary"
    long_column = "document"
