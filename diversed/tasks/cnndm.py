"""CNN/DailyMail: news articles and the highlights that their editors wrote.

Source: See, Liu and Manning 2017, "Get To The Point", the non-anonymised version 3.0.0.
"""

from diversed.tasks.loading import DataSource
from diversed.tasks.prompts import PromptTemplate, Shot
from diversed.tasks.summaries import SummaryTask

SHOTS = (
    Shot(
        "The harbour town of Brenwick will close its last coal pier in June, the council said on "
        "Monday. The pier, built in 1911, once loaded forty ships a week, but only three called "
        "there last year. Ninety workers will be offered training at the new wind farm depot two "
        "miles up the coast, which is to open in the autumn. Union leader Carla Voss called the "
        'offer "fair but late" and asked for written guarantees. The council plans to turn the '
        "pier into a public walkway with a small museum. Residents may comment on the plan until "
        "the end of March.",
        "Brenwick will close its last coal pier in June after only three ships called there last "
        "year. Ninety workers are offered training at a wind farm depot that opens in the autumn. "
        "Their union wants written guarantees. The pier is to become a public walkway with a "
        "museum.",
    ),
    Shot(
        "A retired teacher has walked 1,200 kilometres to return a library book that was 51 years "
        "overdue. Tomas Lindqvist, 74, found the novel in his attic in February and left his home "
        "in the north of the country on the first of May. He slept in barns and on the sofas of "
        "former pupils. When he reached the library in the capital on Thursday, the director gave "
        "him a lifetime card and waived the fine, which would have come to more than 9,000 euros. "
        "Lindqvist raised 40,000 euros for school libraries on the way. He said he would take the "
        "train home.",
        "Tomas Lindqvist, 74, walked 1,200 kilometres to return a library book that was 51 years "
        "overdue. The library waived a fine of more than 9,000 euros and gave him a lifetime card. "
        "On the way he raised 40,000 euros for school libraries.",
    ),
)


class CnnDailyMailTask(SummaryTask):
    """Three or four sentences that sum up an article."""

    name = "cnndm"
    source = DataSource(
        hub_id="abisee/cnn_dailymail",
        config_name="3.0.0",
        columns=("article", "highlights"),
        splits={"train": "train", "validation": "validation", "test": "test"},
        key=("article",),
    )
    template = PromptTemplate(
        instruction=(
            "Sum up the news article in three or four short sentences. State only what the "
            "article says, and write nothing but the summary."
        ),
        text_label="Article",
        answer_label="Summary",
        is_multiline=True,
    )
    shots = SHOTS
    text_column = "article"
    summary_column = "highlights"
    long_column = "article"
