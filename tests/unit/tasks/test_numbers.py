"""Numbers in text, read exactly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diversed.tasks.numbers import MAX_DIGITS, find_numbers, first_number, last_number, number_text

TEXTS = {
    "18": ["18"],
    "007": ["7"],
    "18.": ["18"],
    "18.50": ["18.5"],
    ".5": ["0.5"],
    "1,234": ["1234"],
    "1,234,567.8": ["1234567.8"],
    "3,4": ["3", "4"],
    "12,34": ["12", "34"],
    "1,2345": ["1", "2345"],
    "1\u202f234\u00a0567": ["1234567"],
    "-7": ["-7"],
    "\u22127": ["-7"],
    "+7": ["7"],
    "- 7": ["7"],  # an item of a list
    "10-3": ["10", "3"],
    "10\u201315": ["10", "15"],
    "(-3)": ["-3"],
    "x-3": ["3"],
    "$18": ["18"],
    "-$18": ["-18"],
    "$-18": ["-18"],
    "\\$18": ["18"],
    "€1,000.5": ["1000.5"],
    "25%": ["25"],
    "1/2": ["0.5"],
    "-3/4": ["-0.75"],
    "1/3": ["1/3"],
    "1 1/2": ["1.5"],
    "-1 1/2": ["-1.5"],
    "2\u00bd": ["2.5"],
    "\u00be": ["0.75"],
    "1\u20442": ["0.5"],
    "1/0": [],
    "12/25/2024": ["12", "25", "2024"],
    "1.5e3": ["1500"],
    "2E-2": ["0.02"],
    "-1e-1": ["-0.1"],
    "1e5x": ["1"],
    "18kg": ["18"],
    "x2": [],
    "CO2": [],
    "**18**": ["18"],
    "__18__": ["18"],
    "1{,}234": ["1234"],
    "1\\,234": ["1234"],
    "\\frac{3}{4}": ["0.75"],
    "\\dfrac{-1}{2}": ["-0.5"],
    "5 \\times 3": ["5", "3"],
    "\u0663": [],  # a digit of another script
    "9" * (MAX_DIGITS + 1) + " 5": ["5"],
    "": [],
    "none": [],
}


@pytest.mark.parametrize(("text", "wanted"), TEXTS.items())
def test_numbers_are_found_and_spelt_in_one_way(text, wanted):
    numbers = list(find_numbers(text))
    assert [number_text(number) for number in numbers] == wanted
    assert first_number(text) == (numbers[0] if numbers else None)
    assert last_number(text) == (numbers[-1] if numbers else None)


@given(st.fractions(max_denominator=1000))
def test_a_spelt_number_reads_as_itself(value):
    assert first_number(number_text(value)) == value


@given(st.integers(min_value=-(10**15), max_value=10**15), st.integers(min_value=0, max_value=6))
def test_pythons_own_spelling_is_read(number, places):
    value = Fraction(number, 10**places)
    assert first_number(f"It is {number / 10**places:,.{places}f}.") == pytest.approx(
        float(value), rel=1e-9
    )
    assert first_number(f"{number:,}") == number


@given(st.text(alphabet="0123456789.,/-+eE$%{}\\ ()=\u2212\u00bd\u2044\u00a0frac#", max_size=200))
def test_no_text_is_too_strange(text):
    for number in find_numbers(text):
        assert first_number(number_text(number)) == number or len(number_text(number)) > MAX_DIGITS
