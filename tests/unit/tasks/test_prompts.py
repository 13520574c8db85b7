"""Prompts in both styles."""

import pytest

from diversed.tasks.prompts import MIN_SHOT_CONTEXT, PromptBuilder, PromptTemplate, Shot

TEMPLATE = PromptTemplate(instruction="Add.", text_label="Sum", answer_label="Result")
SHOTS = (Shot("1 + 1", "2"), Shot("2 + 2", "4"))


def builder(template=TEMPLATE, **options):
    return PromptBuilder(template, SHOTS, **options)


def test_a_plain_prompt_shows_worked_examples_and_ends_where_the_answer_begins():
    assert builder(prompt="plain", num_shots=2).build("3 + 3") == (
        "Add.\n\nSum: 1 + 1\nResult: 2\n\nSum: 2 + 2\nResult: 4\n\nSum: 3 + 3\nResult:"
    )
    assert builder(prompt="plain", num_shots=0).build("3 + 3") == "Add.\n\nSum: 3 + 3\nResult:"


def test_a_conversation_holds_worked_examples_as_turns():
    assert builder(prompt="chat", num_shots=1).build("3 + 3") == [
        {"role": "user", "content": "Add.\n\n1 + 1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Add.\n\n3 + 3"},
    ]


def test_a_system_message_stands_first():
    template = PromptTemplate("", "Sum", "Result", system="You add.")
    assert builder(template, prompt="chat", num_shots=0).build("3 + 3") == [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "3 + 3"},
    ]
    assert builder(template, prompt="plain", num_shots=0).build("3 + 3") == "Sum: 3 + 3\nResult:"


def test_the_instruction_may_follow_the_text():
    template = PromptTemplate("Add.", "Sum", "Result", text_first=True)
    (turn,) = builder(template, prompt="chat", num_shots=0).build("3 + 3")
    assert turn["content"] == "3 + 3\n\nAdd."


def test_long_texts_stand_on_lines_of_their_own():
    template = PromptTemplate("", "Sum", "Result", is_multiline=True)
    assert builder(template, prompt="plain", num_shots=1).build("3 + 3") == (
        "Sum:\n1 + 1\nResult:\n2\n\nSum:\n3 + 3\nResult:\n"
    )


@pytest.mark.parametrize(
    ("options", "has_template", "context", "style", "num_shots"),
    [
        ({}, True, 8192, "chat", 0),
        ({}, False, 8192, "plain", 2),
        ({}, False, MIN_SHOT_CONTEXT, "plain", 2),
        ({}, False, MIN_SHOT_CONTEXT - 1, "plain", 0),
        ({"prompt": "plain"}, True, 8192, "plain", 2),
        ({"prompt": "chat"}, False, 8192, "chat", 0),
        ({"num_shots": 1}, True, 8192, "chat", 1),
        ({"num_shots": 1}, False, 256, "plain", 1),
    ],
)
def test_what_is_left_open_goes_by_the_models(options, has_template, context, style, num_shots):
    prompts = builder(**options)
    prompts.settle(has_chat_template=has_template, context_length=context)
    assert prompts.describe() == {"prompt": style, "num_shots": num_shots}
    assert isinstance(prompts.build("3 + 3"), str if style == "plain" else list)


def test_settling_again_forgets_the_first_time():
    prompts = builder()
    prompts.settle(has_chat_template=True, context_length=8192)
    prompts.settle(has_chat_template=False, context_length=256)
    assert prompts.describe() == {"prompt": "plain", "num_shots": 0}


def test_a_plain_answer_ends_before_a_next_text():
    assert builder(prompt="plain").stop_strings == ("\nSum:",)
    assert builder(prompt="chat").stop_strings == ()


def test_an_unknown_style_names_the_choices():
    with pytest.raises(ValueError, match=r"data\.prompt='base': must be one of chat, plain"):
        builder(prompt="base")


@pytest.mark.parametrize("number", [-1, 3])
def test_only_so_many_worked_examples_exist(number):
    with pytest.raises(ValueError, match=rf"data\.num_shots={number}: .* between 0 and the 2"):
        builder(num_shots=number)
